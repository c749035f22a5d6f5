//! Commands that run beside the instance's own: nothing of them is lost with a connection.

use std::os::fd::OwnedFd;

use fabric::attach::OutputStream::Stdout;
use fabric::attach::{NotStarted, Role, ToNode, ToProcess};
use fabric::session::{End, FromSession, MAX_SESSIONS, Order, SessionId, State, ToSession, Word};

use crate::lab::{Host, Lab, Node, workload};

/// An instance, what it attaches to, and the connection that is not for sessions.
struct Instance {
    listener: OwnedFd,
    _first: Node,
}

impl Instance {
    fn start(host: &Host, name: &str, number: u8) -> Self {
        let spec = workload(name, number, &["count", "1000000"]);
        host.call(|engine| engine.prepare(&spec, 0)).unwrap();
        let listener = host.listen(&spec.name);
        host.call(|engine| engine.start(&spec.name)).unwrap();
        let first = Node::accept(&listener);
        Self { listener, _first: first }
    }

    /// A connection for sessions, which begins with all of them.
    fn attach(&self, all: &[(SessionId, State)]) -> Node {
        let mut node = Node::accept_as(Role::Sessions, &self.listener);
        let mut word = hear(&mut node);
        // What waited for a connection comes first.
        if matches!(word, Word::One(..)) {
            word = hear(&mut node);
        }
        assert_eq!(word, Word::All(all.to_vec()));
        node
    }
}

fn hear(node: &mut Node) -> Word {
    loop {
        match node.receive() {
            Some(ToNode::Sessions(word)) => return word,
            Some(ToNode::Resumed { .. }) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn tell(node: &Node, id: SessionId, message: ToSession) {
    node.send(&ToProcess::Session { id, message });
}

fn order(command: &[&str]) -> ToSession {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    ToSession::Open(Order { command, input: true, ..Order::default() })
}

fn output(offset: u64, bytes: &[u8]) -> FromSession {
    FromSession::Output { stream: Stdout, offset, bytes: bytes.to_vec() }
}

#[test]
fn a_session_survives_lost_connections() {
    const ID: SessionId = SessionId(7);
    let lab = Lab::new();
    let host = lab.host("a");
    let instance = Instance::start(&host, "echo", 60);
    let say = |node: &Node, message| tell(node, ID, message);
    let input = |offset, bytes: &[u8]| ToSession::Input { offset, bytes: bytes.to_vec() };
    let mut node = instance.attach(&[]);
    say(&node, order(&["cat"]));
    assert_eq!(hear(&mut node), Word::One(ID, FromSession::State(State::default())));
    say(&node, input(0, b"abc"));
    assert_eq!(hear(&mut node), Word::One(ID, output(0, b"abc")));
    drop(node);
    let has = |input| (ID, State { input, signals: 0 });
    let mut node = instance.attach(&[has(3)]);
    assert_eq!(hear(&mut node), Word::One(ID, output(0, b"abc")));
    say(&node, ToSession::Taken { stream: Stdout, up_to: 3 });
    say(&node, input(4, b"too early"));
    say(&node, input(1, b"bcdef"));
    assert_eq!(hear(&mut node), Word::One(ID, output(3, b"def")));
    say(&node, ToSession::InputEnd { length: 6 });
    let ended = Word::One(ID, FromSession::Ended { end: End::Exited(0), lengths: [6, 0] });
    assert_eq!(hear(&mut node), ended);
    node.send(&ToProcess::SayAgain);
    assert_eq!(hear(&mut node), Word::All(vec![has(6)]));
    assert_eq!(hear(&mut node), Word::One(ID, output(3, b"def")));
    assert_eq!(hear(&mut node), ended);
    say(&node, ToSession::Leave);
    node.send(&ToProcess::SayAgain);
    assert_eq!(hear(&mut node), Word::All(vec![]));
}

#[test]
fn sessions_beyond_the_limit_are_refused() {
    let lab = Lab::new();
    let host = lab.host("a");
    let instance = Instance::start(&host, "crowded", 61);
    let mut node = instance.attach(&[]);
    for number in 0..MAX_SESSIONS as u64 {
        tell(&node, SessionId(number), order(&["cat"]));
        assert_eq!(hear(&mut node), Word::One(SessionId(number), FromSession::State(State::default())));
    }
    let late = SessionId(MAX_SESSIONS as u64);
    tell(&node, late, order(&["cat"]));
    let Word::One(refused, FromSession::Ended { end: End::NotStarted(why), .. }) = hear(&mut node) else {
        panic!("it was started")
    };
    assert!(refused == late && matches!(why, NotStarted { code: 126, .. }), "{why:?}");
    // One that is left ends, and makes room.
    tell(&node, SessionId(0), ToSession::Leave);
    tell(&node, SessionId(1), ToSession::Signal { number: 1, signal: libc::SIGTERM });
    let state = State { input: 0, signals: 1 };
    assert_eq!(hear(&mut node), Word::One(SessionId(1), FromSession::State(state)));
    let killed = FromSession::Ended { end: End::Exited(128 + libc::SIGTERM), lengths: [0, 0] };
    assert_eq!(hear(&mut node), Word::One(SessionId(1), killed));
}
