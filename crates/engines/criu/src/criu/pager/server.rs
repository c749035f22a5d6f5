//! Requests to the source, through the node.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use fabric::seqpacket;

use super::owed::{Owed, Source};
use super::wire::{Fetched, Message};
use crate::memory::PAGE;

/// How often to report progress.
const TOLD: Duration = Duration::from_millis(100);

/// The limit of requests in flight, however many threads wait. The connection has room for these, for as many that an earlier node
/// has not read, and for other messages.
const UNDER_WAY: usize = 64;

/// The pager's end of the connection to the node. [`Server::theirs`] is the node's end, which a restarted node takes from this process.
pub struct Server {
    ours: OwnedFd,
    /// Held open, so that messages wait for the next node.
    _theirs: OwnedFd,
    /// Whether a node answers requests.
    is_served: bool,
    /// Requests without an answer.
    asked: Vec<Source>,
    fetched: Fetched,
    told: Option<Instant>,
}

impl Server {
    pub fn new(ours: OwnedFd, theirs: OwnedFd) -> Self {
        let (asked, fetched) = (Vec::new(), Fetched::default());
        Self { ours, _theirs: theirs, is_served: false, asked, fetched, told: None }
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.ours.as_raw_fd()
    }

    /// The next packet of the node, with its descriptor.
    pub fn hear(&self) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
        match seqpacket::receive(self.ours.as_fd()) {
            Ok(packet) => Ok(Some((packet.bytes, packet.descriptors.into_iter().next()))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Begins to send requests to a connected node. Earlier requests are void.
    pub fn begin(&mut self) {
        self.is_served = true;
        self.asked.clear();
        self.told = None;
    }

    pub fn is_answered(&mut self, source: Source) {
        self.asked.retain(|asked| *asked != source);
    }

    /// Whether fewer than `most` requests are in flight, and a node answers them.
    pub fn may_ask(&self, most: usize) -> bool {
        self.is_served && self.asked.len() < most
    }

    /// Requests missing pages for which a thread waits, or reads them `ahead`. Does nothing if no node answers or too many requests are in
    /// flight: then call it again after an answer.
    pub fn want(&mut self, owed: &mut Owed, page: u64, pages: u64, ahead: bool) {
        let Some(run) = owed.find(page).filter(|_| self.may_ask(UNDER_WAY)) else { return };
        let Source { pid, page: first } = run.source;
        if self.say(Message::Want { pid, address: first * PAGE as u64, pages, ahead }) {
            owed.ask(page, pages);
            self.asked.push(run.source);
        }
    }

    /// Counts pages that have arrived.
    pub fn count(&mut self, pages: u64, was_waited_for: bool) {
        let bytes = pages * PAGE as u64;
        *(if was_waited_for { &mut self.fetched.demanded } else { &mut self.fetched.pushed }) += bytes;
    }

    /// Reports progress, if a report is due.
    pub fn tell_progress(&mut self, left: impl FnOnce() -> u64) {
        if self.told.is_none_or(|told| told.elapsed() >= TOLD) {
            self.told = Some(Instant::now());
            self.say(Message::Progress(Fetched { left: left() * PAGE as u64, ..self.fetched }));
        }
    }

    /// Reports that no page is missing any more.
    pub fn tell_whole(&mut self) {
        self.say(Message::Whole(self.fetched));
    }

    /// Sends a message, and returns whether it was sent. A node that does not read does not answer either; the next node announces
    /// itself.
    fn say(&mut self, message: Message) -> bool {
        let said = self.is_served && seqpacket::send(self.ours.as_fd(), &message.encode(), &[]).is_ok();
        self.is_served = said;
        said
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::super::owed::Run;
    use super::*;

    const PAGES: u64 = 1000;

    /// As many threads wait as there are pages, and no node reads the requests; nor does the next node at first.
    #[test]
    fn requests_do_not_exceed_the_room_of_the_connection() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let ours = UnixStream::from(ours);
        ours.set_nonblocking(true).unwrap();
        let mut server = Server::new(ours.into(), theirs.try_clone().unwrap());
        let mut owed = Owed::default();
        owed.insert(0, Run { pages: PAGES, source: Source { pid: 7, page: 0 }, is_asked: false });
        for node in 1..=2 {
            owed.forget_asked();
            server.begin();
            (0..PAGES).for_each(|page| server.want(&mut owed, page, 1, false));
            assert_eq!((server.is_served, server.asked.len()), (true, UNDER_WAY), "node {node}");
        }
        server.tell_whole();
        let last = 2 * UNDER_WAY;
        for packet in 0..=last {
            let read = seqpacket::receive(theirs.as_fd()).unwrap();
            let (message, _) = Message::decode(&read.bytes).unwrap();
            assert_eq!(matches!(message, Message::Whole(_)), packet == last, "{message:?}");
        }
        server.is_answered(Source { pid: 7, page: 0 });
        server.want(&mut owed, PAGES - 1, 1, false);
        assert_eq!(server.asked.len(), UNDER_WAY);
        assert_eq!(owed.find(PAGES - 1).map(|run| run.is_asked), Some(true));
    }
}
