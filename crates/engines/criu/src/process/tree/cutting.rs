//! Cuts the link of a stopped tree that has no blockers.

use std::time::Duration;

use crate::criu::check;
use crate::criu::root::OwnRoot;
use crate::error::{Doing, Error, Result};
use crate::instance::InstanceSpec;
use crate::linux::orphans;
use crate::process::network::link::Link;

/// How long a stopped tree waits for the peers of connections that it has closed: a peer may delay an acknowledgement by 0.2 s.
const ACKNOWLEDGED: Duration = Duration::from_millis(250);

/// Cuts the link of the stopped tree below `first`, and makes sure that it has no blockers then. It cuts at once, before a peer
/// connects. For unsent data of closed connections, it mends the link for a moment.
pub fn cut(link: &Link, spec: &InstanceSpec, own: Option<OwnRoot<'_>>, first: i32) -> Result<()> {
    let InstanceSpec { name, network, .. } = spec;
    let stopped = check::Subject { first, network, own };
    let must_be_free = || match check::inspect_stopped(&stopped)?.into_iter().next() {
        Some(blocker) => Err(Error::Pinned { name: name.clone(), blocker }),
        None => Ok(()),
    };
    let have_sent_all = |patience| {
        let sent = orphans::have_sent_all(first, patience, || must_be_free().is_err());
        sent.doing(|| format!("inspecting the connections of `{name}`"))
    };
    link.cut().doing(|| "cutting the link".into())?;
    must_be_free()?;
    if have_sent_all(Duration::ZERO)? {
        return Ok(());
    }
    link.mend().doing(|| "mending the link".into())?;
    let sent = have_sent_all(ACKNOWLEDGED)?;
    link.cut().doing(|| "cutting the link".into())?;
    must_be_free()?;
    if sent { Ok(()) } else { Err(Error::Pinned { name: name.clone(), blocker: orphans::blocker() }) }
}
