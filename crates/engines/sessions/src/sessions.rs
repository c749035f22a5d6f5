//! All sessions of the instance, and their connection to the node ([`fabric::session`]).

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::ops::Bound;
use std::os::fd::RawFd;
use std::process::{ChildStdin, ExitStatus};
use std::time::{Duration, Instant};

use fabric::attach::{NotStarted, ToNode, ToProcess};
use fabric::session::{End, FromSession, MAX_SESSIONS, SessionId, ToSession, Word};

use crate::attach::Attachment;
use crate::launch::Launch;
use crate::own_input::OwnInput;
use crate::session::Session;

/// The number of messages sent at a time: the node's `Suspend` must not wait behind commands that write without end.
const TURN: usize = 16;

/// The sessions.
pub struct Sessions {
    /// A session inherits from it all that its order leaves open.
    launch: Launch,
    environment: fn() -> Vec<(OsString, OsString)>,
    own_input: OwnInput,
    node: Attachment,
    open: BTreeMap<SessionId, Session>,
    /// Sessions beyond the limit, until their refusal is sent.
    refused: VecDeque<SessionId>,
    /// Whether a report of all sessions' states is due.
    list_due: bool,
    /// The session that has sent last: each gets its turn.
    last: SessionId,
    /// Whether more messages can be sent at once.
    has_more: bool,
}

impl Sessions {
    /// No sessions yet, and a connection to the node. A session inherits from `launch` and `environment` all that its order leaves open;
    /// `own_stdin` is the input of the instance's own command.
    #[must_use]
    pub fn new(
        node: Attachment,
        launch: Launch,
        environment: fn() -> Vec<(OsString, OsString)>,
        own_stdin: Option<ChildStdin>,
    ) -> Self {
        Self {
            own_input: OwnInput::new(own_stdin, launch.is_emulator()),
            launch,
            environment,
            node,
            open: BTreeMap::new(),
            refused: VecDeque::new(),
            list_due: false,
            last: SessionId(0),
            has_more: false,
        }
    }

    /// The descriptors and the events to poll them for.
    pub fn interest(&self) -> impl Iterator<Item = (RawFd, libc::c_short)> + '_ {
        self.node.interest().into_iter().chain(self.open.values().flat_map(Session::interest))
    }

    /// How soon to call [`Self::step`] again, at the latest.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.has_more {
            return Some(Duration::ZERO);
        }
        let deadlines = self.open.values().filter_map(Session::deadline);
        let deadline = deadlines.chain(self.own_input.deadline()).min();
        let patience = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        patience.into_iter().chain(self.node.retry_after()).min()
    }

    /// Records the end of a process of the instance, which was reaped.
    pub fn reaped(&mut self, pid: i32, status: ExitStatus) {
        self.open.values_mut().for_each(|session| session.reaped(pid, status));
    }

    /// Reaps commands that have ended, in a process that has other children too.
    pub fn reap(&mut self) {
        self.open.values_mut().for_each(Session::reap);
    }

    /// Handles the node's messages, moves data of the pipes that are `ready`, and sends messages to the node.
    pub fn step(&mut self, ready: impl Fn(RawFd) -> bool) {
        let Self { node, open, .. } = self;
        if node.step(|| hold(open)) {
            self.open.values_mut().for_each(Session::go_on);
            self.say_again();
        }
        for message in self.node.take_heard() {
            match message {
                ToProcess::Session { id, message } => self.hear(id, message),
                _ => self.say_again(),
            }
        }
        let now = Instant::now();
        for session in self.open.values_mut() {
            session.carry(&ready);
            session.kill_overdue(now);
        }
        if !self.node.is_attached() {
            self.own_input.cannot_be_asked_for();
        }
        self.own_input.end_overdue(now);
        for (_, mut over) in self.open.extract_if(.., |_, session| session.is_over()) {
            self.own_input.give_back(over.return_console());
        }
        self.tell();
    }

    /// Repeats messages: the connection to the coordinator is new, and messages over the former one may be lost.
    fn say_again(&mut self) {
        self.list_due = true;
        self.own_input.may_be_asked_for(Instant::now());
        self.open.values_mut().for_each(Session::say_again);
    }

    fn hear(&mut self, id: SessionId, message: ToSession) {
        if let Some(session) = self.open.get_mut(&id) {
            return session.hear(message);
        }
        // Other messages are for a session that was left, or that is not open yet: the node repeats its `Open`.
        let ToSession::Open(order) = message else { return };
        if self.open.len() < MAX_SESSIONS {
            let session = match order.for_own {
                _ if self.launch.is_emulator() => {
                    Session::for_console(self.own_input.take(), order.input_from)
                }
                true => Session::for_own(self.own_input.take()),
                false => Session::start(&self.launch, &order, (self.environment)()),
            };
            self.open.insert(id, session);
        } else {
            self.refused.push_back(id);
            self.refused.truncate(MAX_SESSIONS);
        }
    }

    fn tell(&mut self) {
        self.has_more = false;
        for _ in 0..TURN {
            if !self.node.has_room() {
                return;
            }
            let Some(message) = self.next_word() else { return };
            self.node.send(&ToNode::Sessions(message));
        }
        self.has_more = true;
    }

    fn next_word(&mut self) -> Option<Word> {
        if std::mem::take(&mut self.list_due) {
            let states = self.open.iter_mut().map(|(id, session)| (*id, session.state()));
            return Some(Word::All(states.collect()));
        }
        if let Some(id) = self.refused.pop_front() {
            return Some(Word::One(id, too_many()));
        }
        let word = |(id, session): (&SessionId, &mut Session)| Some((*id, session.next_word()?));
        let after = self.open.range_mut((Bound::Excluded(self.last), Bound::Unbounded)).find_map(word);
        let (id, message) = after.or_else(|| self.open.range_mut(..=self.last).find_map(word))?;
        self.last = id;
        Some(Word::One(id, message))
    }
}

/// Stops all sessions for a move. Returns the last message of a console, of which there is one at most.
fn hold(open: &mut BTreeMap<SessionId, Session>) -> Option<ToNode> {
    open.values_mut().for_each(Session::hold);
    let word = open.iter_mut().find_map(|(id, session)| Some(Word::One(*id, session.last_word()?)));
    word.map(ToNode::Sessions)
}

fn too_many() -> FromSession {
    let what = format!("the instance already runs {MAX_SESSIONS} commands beside its own");
    let remedy = "wait until one of them has ended".to_owned();
    FromSession::Ended { end: End::NotStarted(NotStarted { code: 126, what, remedy }), lengths: [0, 0] }
}
