//! Messages between managers: datagrams that wait when there is no room for them.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use cm::Peer;
use cm::wire::MAX_MESSAGE;

use crate::datagrams::{Datagrams, Shape};
use crate::device::Device;
use crate::errno::Result;

/// The key is "trcm".
const SHAPE: Shape = Shape { depth: 512, size: MAX_MESSAGE, key: 0x7472_636d };

/// Datagrams that are taken at a time: others' timers wait meanwhile.
const AT_A_TIME: usize = SHAPE.depth;

/// The most datagrams that wait to be sent: beyond it they are dropped, and repeated by the manager.
const MAX_WAITING: usize = 1 << 16;

/// See the module. Used under the manager's lock.
pub(crate) struct Messenger {
    datagrams: Datagrams,
    waiting: VecDeque<(Peer, Vec<u8>)>,
}

impl Messenger {
    /// # Errors
    /// The errors of verbs.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        Ok(Self { datagrams: Datagrams::new(device, SHAPE)?, waiting: VecDeque::new() })
    }

    /// Where others reach this manager.
    pub(crate) fn qpn(&self) -> u32 {
        self.datagrams.qpn()
    }

    /// Readable when something may have come.
    pub(crate) fn fd(&self) -> RawFd {
        self.datagrams.fd()
    }

    /// Sends a datagram, now or when there is room.
    pub(crate) fn send(&mut self, to: Peer, datagram: Vec<u8>) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back((to, datagram));
        }
        self.send_waiting();
    }

    fn send_waiting(&mut self) {
        while self.datagrams.has_room()
            && let Some((to, datagram)) = self.waiting.pop_front()
        {
            self.datagrams.send(to, &[&datagram]);
        }
    }

    /// Takes arrived messages, up to a limit; returns whether there may be more, without a wake-up of the descriptor.
    pub(crate) fn receive(&mut self, take: impl FnMut(Peer, &[u8])) -> bool {
        let more = self.datagrams.receive(AT_A_TIME, take);
        self.send_waiting();
        more
    }
}
