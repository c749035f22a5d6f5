//! Change notices: sent when a LAN port is blocked because of a loop, or opened again.
//!
//! Looping frames came from everywhere, and the LAN has another port now. So learned places are wrong, on
//! each node and on the LAN's own switches:
//!
//! ```text
//! node of the port ── notice, repeated ──▶ all nodes ── reverse ARP for each station ──▶ their LANs
//!   forgets learned MACs                      likewise
//! ```
//!
//! Nodes trust each other. Notices from ports are ignored.

use std::time::Duration;

use super::probe::{content, own_frame};
use super::{Parcel, Place, Switch, To, resolution};
use crate::ethernet::Front;
use crate::mac::Mac;

/// How often, and in which intervals, each change is announced: notices get lost, or are overtaken by looping frames.
const NOTICES: u8 = 3;
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

/// A notice so soon after another one is part of the same change, or will be repeated.
const SAME: Duration = Duration::from_millis(500);

/// How many stations are announced to LANs at a time: a few thousand in a second.
const AT_A_TIME: usize = 256;

/// The header and content of a notice: "transhume LAN change".
const MAGIC: &[u8; 4] = b"thlc";

/// The pending announcements.
#[derive(Default)]
pub(super) struct LanChanges {
    /// So many notices, and when the next one is due.
    notices: u8,
    due: Duration,
    heard: Option<Duration>,
    /// Stations that are still to be announced to the LANs here, and whether the announcement is repeated.
    unannounced: Vec<Mac>,
    once_more: bool,
}

/// Whether a frame is a notice.
#[inline]
pub(super) fn is_notice(front: &Front, frame: &[u8]) -> bool {
    content(MAGIC, front, frame).is_some()
}

impl Switch {
    /// A way into a LAN was closed here, or opened.
    pub(super) fn lan_has_changed(&mut self, now: Duration) {
        (self.lan_changes.notices, self.lan_changes.due) = (NOTICES, now);
        self.relearn();
    }

    /// A notice has come.
    pub(super) fn on_change_notice(&mut self, now: Duration) {
        if self.lan_changes.heard.is_none_or(|heard| now >= heard + SAME) {
            self.lan_changes.heard = Some(now);
            self.relearn();
        }
    }

    fn relearn(&mut self) {
        self.learned.forget_all();
        // A restart at each change could starve the last stations.
        self.lan_changes.once_more = true;
    }

    fn announce_next(&mut self, now: Duration, out: &mut Vec<Parcel>) {
        if self.lan_changes.unannounced.is_empty()
            && std::mem::take(&mut self.lan_changes.once_more)
            && self.ports.have_lan()
        {
            self.lan_changes.unannounced = self.managed.iter().map(|(mac, ..)| mac).collect();
            self.lan_changes.unannounced.sort_unstable();
        }
        let rest = self.lan_changes.unannounced.len().saturating_sub(AT_A_TIME);
        for mac in self.lan_changes.unannounced.split_off(rest) {
            self.announce(mac, now, out);
        }
    }

    /// Adds due notices and announcements to `out`.
    pub(super) fn announce_changes(&mut self, now: Duration, out: &mut Vec<Parcel>) {
        if self.ports.have_opened(now) {
            self.lan_has_changed(now);
        }
        if self.lan_changes.notices > 0 && now >= self.lan_changes.due {
            self.lan_changes.notices -= 1;
            self.lan_changes.due = now + NOTICE_INTERVAL;
            self.send_notice(out);
            self.relearn();
        }
        self.announce_next(now, out);
    }

    fn send_notice(&self, out: &mut Vec<Parcel>) {
        let mut ways = Vec::new();
        self.to_everyone(&mut ways);
        out.extend(ways.into_iter().map(|to| Parcel::whole(to, own_frame(self.me, &[MAGIC]))));
    }

    /// Tells each LAN here where the station with `mac` is reached, unless that is behind it.
    fn announce(&self, mac: Mac, now: Duration, out: &mut Vec<Parcel>) {
        let Some(managed) = self.managed.get(mac) else { return };
        for port in self.ports.open_lans(now).filter(|port| managed.home != Some(Place::Port(*port))) {
            // Of its addresses nothing has changed.
            let frames = resolution::announcements(managed.station(mac), &[]).into_iter();
            out.extend(frames.map(|frame| Parcel::whole(To::Port(port), frame)));
        }
    }
}
