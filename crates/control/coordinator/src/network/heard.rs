//! Messages of nodes about the overlay.

use std::sync::Arc;

use ::moves::HostName;
use api::{NetSwitchedOff, Occurrence};
use rpc::net::{DeviceKind, FromNode};
use tokio::time::Instant;

use super::misbehaviour::Misbehaviour;
use super::rollout::Rollout;
use super::{orders, own};
use crate::core::{Cluster, State};

/// The longest reason that a node may report for switching off an offload, in bytes.
const LONGEST_WORD: usize = 256;

/// Handles a message of a node.
pub async fn take(cluster: &Arc<Cluster>, host: &HostName, message: FromNode) {
    if let FromNode::Own { device, address, mtu, former } = message {
        let wanted = own::Wanted { device, kind: DeviceKind::Station { address, mtu }, former };
        return own::wish(cluster, host, wanted).await;
    }
    let host = host.clone();
    cluster.edit(move |state| note(state, &host, message)).await;
    cluster.signals().network_changed.notify_waiters();
}

fn note(state: &mut State, host: &HostName, message: FromNode) {
    let rollout = state.get_mut::<Rollout>();
    let order = match message {
        FromNode::Installed { version } => rollout.installed(host, version),
        FromNode::NotInstalled { version, reason } => rollout.not_installed(host, version, reason),
        FromNode::SwitchedOff(off) => return note_offload(state, host, off),
        // It is a wish, and changes nothing here.
        FromNode::Own { .. } => None,
    };
    orders::send(state, order);
}

/// Logs that `host` has switched off an offload.
fn note_offload(state: &mut State, host: &HostName, off: NetSwitchedOff) {
    let words = [Some(&off.offload), off.link.as_ref(), off.device.as_ref(), Some(&off.reason)];
    // Genuine reports are never longer.
    let is_short = words.into_iter().flatten().all(|word| word.len() <= LONGEST_WORD);
    if is_short && state.get_mut::<Misbehaviour>().admits(host, Instant::now()) {
        state.log().note(&Occurrence::OffloadSwitchedOff { host: host.to_string(), off });
    }
}
