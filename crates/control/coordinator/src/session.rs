//! The coordinator's state of a session ([`fabric::session`]), without IO: messages that the instance and events that the client
//! have not yet received.

use std::collections::VecDeque;

use api::{Bytes, Event, Failure};
use fabric::attach::OutputStream;
use fabric::session::{End, FromSession, MAX_PIECE, Order, State, ToSession, WindowSize};
use fabric::stream::{Receiving, Sending};

use crate::failure;

/// The limit of signals that may be queued for the command.
const MAX_SIGNALS: usize = 64;

/// A session.
#[derive(Debug)]
pub struct Session {
    /// The instance's name.
    name: String,
    order: Order,
    /// The instance has confirmed the order.
    is_known: bool,
    /// The first process that knew it has stayed behind in a move.
    is_parted: bool,
    open_due: bool,
    input: Sending,
    input_ended: bool,
    /// The end of input has to be sent.
    end_due: bool,
    /// Whether the client must learn how much input was consumed.
    room_due: bool,
    signals: VecDeque<i32>,
    /// Number of signals that were delivered and dropped from `signals`.
    signals_taken: u32,
    /// Number of `signals` that were sent since the last loss of messages.
    signals_told: usize,
    /// The latest size of the client's terminal window, if it has changed.
    window: Option<WindowSize>,
    /// The window size has to be sent.
    window_due: bool,
    output: [Receiving; 2],
    /// Output that the client has not received.
    untold: VecDeque<(OutputStream, Vec<u8>)>,
    end: Option<(End, [u64; 2])>,
    failure: Option<Failure>,
    is_over: bool,
}

/// The client has exceeded a limit of the protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMuch;

impl Session {
    /// A new session with a command for the instance `name`.
    pub fn new(name: &str, order: Order) -> Self {
        Self {
            name: name.to_owned(),
            order,
            is_known: false,
            is_parted: false,
            open_due: true,
            input: Sending::default(),
            input_ended: false,
            end_due: false,
            room_due: false,
            signals: VecDeque::new(),
            signals_taken: 0,
            signals_told: 0,
            window: None,
            window_due: false,
            output: Default::default(),
            untold: VecDeque::new(),
            end: None,
            failure: None,
            is_over: false,
        }
    }

    /// Whether the instance has confirmed the order.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Queues input from the client.
    pub fn give(&mut self, bytes: &[u8]) -> Result<(), TooMuch> {
        if bytes.len() > self.input.room() || self.input_ended || !self.order.input {
            return Err(TooMuch);
        }
        self.input.push(bytes);
        Ok(())
    }

    /// Marks the end of the client's input.
    pub fn end_input(&mut self) {
        (self.input_ended, self.end_due) = (true, true);
    }

    /// Queues a signal from the client.
    pub fn signal(&mut self, signal: i32) -> Result<(), TooMuch> {
        if self.signals.len() == MAX_SIGNALS {
            return Err(TooMuch);
        }
        self.signals.push_back(signal);
        Ok(())
    }

    /// Records a new size of the client's window.
    pub fn resize(&mut self, size: WindowSize) -> Result<(), TooMuch> {
        if self.order.terminal.is_none() {
            return Err(TooMuch);
        }
        (self.window, self.window_due) = (Some(size), true);
        Ok(())
    }

    /// Fails the session.
    pub fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Handles a message from the instance.
    pub fn hear(&mut self, message: FromSession) {
        self.is_known = true;
        match message {
            FromSession::State(state) => {
                self.is_parted = false;
                self.has_come(state);
            }
            FromSession::Parted(state) => {
                self.is_parted = self.order.for_own;
                self.has_come(state);
            }
            FromSession::Output { stream, offset, bytes } => {
                let new = self.output[stream as usize].accept(offset, &bytes);
                if !new.is_empty() {
                    self.untold.push_back((stream, new.to_vec()));
                }
            }
            FromSession::Ended { end, lengths } => self.end = Some((end, lengths)),
        }
    }

    /// Resumes after a possible loss of messages, from the state that the instance reports; `None` if it does not know the session.
    pub fn go_on(&mut self, state: Option<State>) {
        match state {
            Some(state) => {
                (self.is_known, self.is_parted) = (true, false);
                self.has_come(state);
            }
            None if self.is_parted => {
                self.order.input_from = self.input.taken();
                self.open_due = true;
            }
            None if self.is_known => self.fail(failure::session_lost(&self.name)),
            None => self.open_due = true,
        }
        self.input.rewind();
        self.output.iter_mut().for_each(Receiving::tell_again);
        self.end_due = self.input_ended;
        self.window_due = self.window.is_some();
        self.signals_told = 0;
    }

    fn has_come(&mut self, State { input, signals }: State) {
        self.input.confirm(input);
        self.room_due = true;
        let taken = (signals.saturating_sub(self.signals_taken) as usize).min(self.signals.len());
        self.signals.drain(..taken);
        self.signals_taken += taken as u32;
        self.signals_told = self.signals_told.saturating_sub(taken);
    }

    /// The next message for the instance, if any.
    pub fn next_message(&mut self) -> Option<ToSession> {
        if std::mem::take(&mut self.open_due) {
            return Some(ToSession::Open(self.order.clone()));
        }
        if let Some(size) = self.window.filter(|_| std::mem::take(&mut self.window_due)) {
            return Some(ToSession::Resize(size));
        }
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            if let Some(up_to) = self.output[stream as usize].word() {
                return Some(ToSession::Taken { stream, up_to });
            }
        }
        if let Some(&signal) = self.signals.get(self.signals_told) {
            self.signals_told += 1;
            return Some(ToSession::Signal { number: self.signals_taken + self.signals_told as u32, signal });
        }
        if let Some((offset, bytes)) = self.input.next(MAX_PIECE) {
            return Some(ToSession::Input { offset, bytes });
        }
        std::mem::take(&mut self.end_due).then(|| ToSession::InputEnd { length: self.input.length() })
    }

    /// The next event for the client, if any; nothing follows the last event.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.is_over {
            return None;
        }
        if let Some((stream, bytes)) = self.untold.pop_front() {
            self.output[stream as usize].take(bytes.len());
            return Some(Event::Written { stream, bytes: Bytes(bytes) });
        }
        let last = self.whole_end().or_else(|| self.failure.clone().map(Event::Failed));
        self.is_over = last.is_some();
        if self.is_over {
            return last;
        }
        let room = std::mem::take(&mut self.room_due) && self.order.input;
        room.then(|| Event::InputTaken { bytes: self.input.taken() })
    }

    /// The end of the command, if all of its output has arrived.
    fn whole_end(&self) -> Option<Event> {
        let (end, lengths) = self.end.as_ref()?;
        let is_whole = self.output.iter().zip(lengths).all(|(output, length)| output.arrived() == *length);
        is_whole.then(|| match end.clone() {
            End::Exited(code) => Event::Exited { code },
            End::NotStarted(why) => {
                Event::NotStarted { code: why.code, failure: Failure::new(why.what, why.remedy) }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use fabric::attach::OutputStream::{Stderr, Stdout};
    use fabric::stream::WINDOW;

    use super::*;

    fn session() -> Session {
        Session::new("job", Order { command: vec!["cat".into()], input: true, ..Order::default() })
    }

    fn messages(session: &mut Session) -> Vec<ToSession> {
        std::iter::from_fn(|| session.next_message()).collect()
    }

    fn events(session: &mut Session) -> Vec<Event> {
        std::iter::from_fn(|| session.next_event()).collect()
    }

    fn written(stream: OutputStream, bytes: &[u8]) -> Event {
        Event::Written { stream, bytes: Bytes(bytes.into()) }
    }

    fn output(stream: OutputStream, offset: u64, bytes: &[u8]) -> FromSession {
        FromSession::Output { stream, offset, bytes: bytes.into() }
    }

    #[test]
    fn a_lost_order_is_repeated_until_it_is_confirmed() {
        let mut session = session();
        let open = ToSession::Open(session.order.clone());
        session.give(b"abc").unwrap();
        let input = |offset, bytes: &[u8]| ToSession::Input { offset, bytes: bytes.into() };
        assert_eq!(messages(&mut session), [open.clone(), input(0, b"abc")]);
        session.go_on(None);
        assert_eq!(messages(&mut session), [open, input(0, b"abc")]);
        session.hear(FromSession::State(State::default()));
        assert!(session.is_known());
        session.go_on(Some(State { input: 1, signals: 0 }));
        assert_eq!(messages(&mut session), [input(1, b"bc")]);
        session.go_on(None);
        assert!(matches!(&events(&mut session)[..], [Event::Failed(_)]));
    }

    #[test]
    fn signals_and_the_end_of_input_are_repeated_until_they_are_confirmed() {
        let mut session = session();
        messages(&mut session);
        let signal = |number, signal| ToSession::Signal { number, signal };
        session.signal(2).unwrap();
        session.signal(15).unwrap();
        session.end_input();
        let end = ToSession::InputEnd { length: 0 };
        assert_eq!(messages(&mut session), [signal(1, 2), signal(2, 15), end.clone()]);
        session.hear(FromSession::State(State { input: 0, signals: 1 }));
        assert_eq!(messages(&mut session), []);
        session.signal(1).unwrap();
        assert_eq!(messages(&mut session), [signal(3, 1)]);
        session.go_on(Some(State { input: 0, signals: 2 }));
        assert_eq!(messages(&mut session), [signal(3, 1), end]);
        assert_eq!(session.give(b"x"), Err(TooMuch));
    }

    #[test]
    fn a_console_that_has_parted_is_opened_again_from_where_it_was() {
        let order = Order { for_own: true, input: true, ..Order::default() };
        let mut session = Session::new("guest", order);
        session.give(b"abc").unwrap();
        messages(&mut session);
        session.hear(FromSession::State(State::default()));
        session.hear(FromSession::Parted(State { input: 2, signals: 0 }));
        for _repeated_if_lost in 0..2 {
            session.go_on(None);
            let order = Order { input_from: 2, ..session.order.clone() };
            let input = ToSession::Input { offset: 2, bytes: b"c".into() };
            assert_eq!(messages(&mut session), [ToSession::Open(order), input]);
        }
        session.hear(FromSession::State(State { input: 2, signals: 0 }));
        session.go_on(None);
        assert!(events(&mut session).iter().any(|event| matches!(event, Event::Failed(_))));
    }

    #[test]
    fn the_last_window_size_is_repeated_when_it_may_be_lost() {
        let [first, last] = [40, 50].map(|rows| WindowSize { rows, columns: 80 });
        let order = Order { terminal: Some(WindowSize::default()), ..Order::default() };
        let mut session = Session::new("job", order.clone());
        assert_eq!(messages(&mut session), [ToSession::Open(order)]);
        session.go_on(Some(State::default()));
        assert_eq!(messages(&mut session), []);
        session.resize(first).unwrap();
        session.resize(last).unwrap();
        assert_eq!(messages(&mut session), [ToSession::Resize(last)]);
        session.go_on(Some(State::default()));
        assert_eq!(messages(&mut session), [ToSession::Resize(last)]);
        assert_eq!(Session::new("job", Order::default()).resize(first), Err(TooMuch));
    }

    #[test]
    fn input_of_the_client_has_limits() {
        let mut session = session();
        session.give(&vec![0; WINDOW]).unwrap();
        assert_eq!(session.give(b"x"), Err(TooMuch));
        session.hear(FromSession::State(State { input: 7, signals: 0 }));
        assert_eq!(events(&mut session), [Event::InputTaken { bytes: 7 }]);
        session.give(b"x").unwrap();
        for _ in 0..MAX_SIGNALS {
            session.signal(1).unwrap();
        }
        assert_eq!(session.signal(1), Err(TooMuch));
        let mut closed = Session::new("job", Order::default());
        assert_eq!(closed.give(b"x"), Err(TooMuch));
    }

    #[test]
    fn output_comes_once_and_the_end_behind_all_of_it() {
        let mut session = session();
        session.hear(output(Stdout, 0, b"ab"));
        session.hear(output(Stderr, 0, b"!"));
        session.hear(output(Stdout, 0, b"abc"));
        session.hear(FromSession::Ended { end: End::Exited(3), lengths: [4, 1] });
        let expected = [written(Stdout, b"ab"), written(Stderr, b"!"), written(Stdout, b"c")];
        assert_eq!(events(&mut session), expected);
        session.hear(output(Stdout, 3, b"d"));
        assert_eq!(events(&mut session), [written(Stdout, b"d"), Event::Exited { code: 3 }]);
        session.fail(Failure::new("too late", ""));
        assert_eq!(events(&mut session), []);
    }

    #[test]
    fn the_command_waits_for_a_client_that_lags() {
        let mut session = session();
        messages(&mut session);
        let piece = vec![1; MAX_PIECE];
        for number in 0..20 {
            session.hear(output(Stdout, number * MAX_PIECE as u64, &piece));
        }
        assert_eq!(messages(&mut session), []);
        assert_eq!(events(&mut session).len(), WINDOW / MAX_PIECE);
        let taken = [ToSession::Taken { stream: Stdout, up_to: WINDOW as u64 }];
        assert_eq!(messages(&mut session), taken);
        assert_eq!(messages(&mut session), []);
        // It may have been lost, and the command would wait for ever.
        session.go_on(Some(State::default()));
        assert_eq!(messages(&mut session), taken);
    }
}
