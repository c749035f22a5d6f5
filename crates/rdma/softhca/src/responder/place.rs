//! A responder's position in the sequence of its peer's messages.

use std::collections::VecDeque;

use crate::handle::{Cq, Pd, Srq};
use crate::memory_window::Bearer;
use crate::receive_queue::Receive;
use crate::wire::{Header, Opcode, Syndrome, flag};

/// A responder's place in its peer's messages.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The message to execute next.
    pub expected: u64,
    /// The one to execute first.
    first: u64,
    /// The message with some arrived segments.
    pub(super) begun: Option<Begun>,
    /// The receive that the begun message consumes, if it holds one. It outlives a lost link.
    pub receive: Receive,
    pub holds_receive: bool,
    /// A NAK is under way; later requests that the peer sent before it got the NAK are dropped.
    pub(super) dropping: Option<Dropping>,
    pub(super) answers: VecDeque<Answer>,
    /// The latest READs and atomics.
    pub(super) queries: VecDeque<Query>,
    /// In its link's list of acknowledgements due.
    pub ack_due: bool,
    /// The shared receive queue of an XRC target: that of the receive which it holds, or the one that its peer has named. It
    /// outlives a lost link.
    pub selected: Option<Selected>,
    /// The one that the peer has named last.
    pub named: Option<Selected>,
    /// The peer has named one, and meant no other by that name.
    pub(super) has_name: bool,
    /// The peer's queue pair is in a new incarnation, and has sent nothing since that is for this one.
    pub peer_has_restarted: bool,
    /// Why the queue pair failed its peer.
    pub(super) fatal: Option<(u64, Syndrome)>,
}

/// The shared receive queue that an XRC target uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selected {
    pub srq: Srq,
    pub pd: Pd,
    pub cq: Cq,
}

/// Messages are dropped until the refused one arrives again, or the peer sends another one in its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropping {
    /// The refused one, as reported to the peer.
    pub(super) astray: Option<u64>,
    /// The last that was dropped: messages right behind it left before the peer learnt of the refusal.
    pub(super) last: u64,
}

/// How the responder treats a message.
pub(super) enum Treatment {
    /// It is executed, if it is the expected one, or has been.
    GoOn,
    Drop,
    /// It is dropped, and the peer gets a NAK.
    Refuse(Syndrome),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) msn: u64,
    pub(super) opcode: Opcode,
    pub(super) total: u32,
    pub(super) arrived: u32,
}

/// A READ or atomic that was executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub(super) msn: u64,
    /// The value that an atomic found.
    pub(super) found: u64,
    /// Its answer has left over the link that there is, or will.
    pub(super) is_answered: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Read { msn: u64, rkey: u32, va: u64, total: u32, sent: u32, bearer: Bearer },
    Atomic { msn: u64, found: u64 },
    Nak { msn: u64, syndrome: Syndrome },
}

impl Responder {
    /// Expects message `msn` first.
    pub fn start(&mut self, msn: u64) {
        *self = Self { expected: msn, first: msn, ..Self::default() };
    }

    /// Nothing was executed yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.expected == self.first
    }

    /// True if the expected message number may be sent to the peer that asks with `header`.
    pub(super) fn may_be_answered(&self, header: &Header) -> bool {
        header.msn == self.expected || !self.peer_has_restarted && !self.is_fresh()
    }

    /// Whether `header` is a message that was executed, and comes again.
    pub(super) fn has_executed(&self, header: &Header) -> bool {
        let executed = self.first..self.expected;
        header.flags & flag::RETRANSMITTED != 0 && executed.contains(&header.msn)
    }

    /// How to treat the message that begins with `header`.
    pub(super) fn treatment_of(&mut self, header: &Header, is_unreliable: bool) -> Treatment {
        let msn = header.msn;
        // One that is not complete yet never will be.
        self.begun = None;
        let is_due = msn == self.expected || self.has_executed(header);
        let follows = self.dropping.is_some_and(|dropping| dropping.last.checked_add(1) == Some(msn));
        let astray = self.dropping.and_then(|dropping| dropping.astray);
        if is_unreliable && !follows {
            if !is_due {
                // Those in between were lost, or the peer's queue pair has a new incarnation.
                self.expected = msn;
                self.first = self.first.min(msn);
            }
            return Treatment::GoOn;
        }
        // If only the queue pair of a peer has a new incarnation, the peer reuses numbers that were executed. Messages
        // behind these are not the expected one either.
        let is_anothers = astray.is_some_and(|astray| astray < self.expected);
        let is_expected = msn == self.expected;
        if is_due && !(is_anothers && (follows || !is_expected)) {
            return Treatment::GoOn;
        }
        let is_told = astray == Some(msn) || is_expected;
        if follows && !is_told {
            self.dropping = Some(Dropping { astray, last: msn });
            // An unreliable sender may never send the first one again.
            return if is_unreliable { Treatment::Refuse(Syndrome::StaleHandle) } else { Treatment::Drop };
        }
        let astray = if is_expected { astray } else { Some(msn) };
        self.dropping = Some(Dropping { astray, last: msn });
        Treatment::Refuse(Syndrome::NotReady)
    }

    /// Keeps a query that was executed, and `most` in all: as many as any peer may have unanswered.
    pub(super) fn keep(&mut self, msn: u64, found: u64, most: u8) {
        if self.queries.len() >= usize::from(most) {
            self.queries.pop_front();
        }
        self.queries.push_back(Query { msn, found, is_answered: true });
    }

    pub(super) fn kept(&mut self, msn: u64) -> Option<&mut Query> {
        self.queries.iter_mut().find(|query| query.msn == msn)
    }

    /// Forgets the state of this link.
    pub fn interrupt(&mut self) {
        self.begun = None;
        self.dropping = None;
        self.ack_due = false;
        self.answers.clear();
        self.queries.iter_mut().for_each(|query| query.is_answered = false);
    }

    /// True if the next message is `msn`, and nothing else has begun.
    #[inline]
    pub fn awaits(&self, msn: u64) -> bool {
        let is_plain = self.begun.is_none() && self.dropping.is_none() && !self.holds_receive;
        msn == self.expected && is_plain && !self.peer_has_restarted
    }

    /// Gives up the receive that it holds. Returns its `wr_id`.
    pub fn give_receive(&mut self) -> Option<u64> {
        std::mem::take(&mut self.holds_receive).then_some(self.receive.wr_id)
    }

    /// True if answers to reads or atomics are still to be sent, or refusals.
    pub fn owes_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The last messages for the peer once no more requests are executed: the message before which all are done, if that was not
    /// acknowledged yet, and the first answer that it will not get.
    pub fn final_acknowledgements(&self) -> (Option<u64>, Option<u64>) {
        let owed = self.answers.front().map(|answer| match *answer {
            Answer::Read { msn, .. } | Answer::Atomic { msn, .. } | Answer::Nak { msn, .. } => msn,
        });
        (self.ack_due.then(|| owed.unwrap_or(self.expected)), owed)
    }

    pub(super) fn is_in(&self, header: &Header) -> bool {
        self.begun.is_some_and(|begun| begun.msn == header.msn)
    }
}
