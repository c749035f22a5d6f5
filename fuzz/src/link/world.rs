//! The devices, and the invariants.

use std::time::Duration;

use fabric::{Epoch, FabricId, ProcessId, Vid};
use softhca::wire::Hello;
use softhca::*;
use verbs::Policy;

use crate::input::Input;

use super::application::{Application, GRANTED_BYTE, Honest, MemoryMap, READABLE_BYTE};
use super::arena::{Guarded, Lent, UNTOUCHED};
use super::attacker::{Attacker, Line};
use super::pipe;

/// Everybody's fabric.
pub const FABRIC: FabricId = FabricId(7);

/// Acts of one script: its time is limited.
const MOST_ACTS: usize = 200;

/// Rounds in which the honest exchange must be over.
const MOST_ROUNDS: usize = 500;

/// The process with this LID.
#[must_use]
pub fn process(lid: u16) -> ProcessId {
    ProcessId { vid: Vid::new(lid).expect("a small LID"), index: 1 }
}

/// A device of `process`.
fn device(process: ProcessId, policy: Policy) -> Device {
    let handles = policy.source(u64::from(process.vid.lid()));
    Device::new(Config {
        process,
        fabric: FABRIC,
        incarnation: 1,
        epoch: Epoch(0),
        handles,
        limits: Limits::default(),
    })
}

/// See the module.
pub struct World {
    now: Duration,
    epoch: Epoch,
    victim: Device,
    friend: Device,
    memory: Lent,
    friends_memory: Lent,
    application: Application,
    honest: Honest,
    attacker: Attacker,
    events: Vec<Event>,
}

impl World {
    /// Devices with their links up. `policy` chooses how the victim picks its handles.
    #[must_use]
    pub fn new(policy: u8, line: fn() -> (Line, Box<dyn Stream>)) -> Self {
        let policy = Policy::ALL[usize::from(policy) % Policy::ALL.len()];
        let (mut victim, mut friend) = (device(process(1), policy), device(process(2), Policy::Stable));
        // The friend's own memory need not be guarded; it is one mapping all the same.
        let (mut memory, friends_memory) = (Guarded::take(), Guarded::take());
        memory.store(MemoryMap::GRANTED.0, &[GRANTED_BYTE; MemoryMap::GRANTED.1]);
        memory.store(MemoryMap::READABLE.0, &[READABLE_BYTE; MemoryMap::READABLE.1]);
        let application = Application::new(&mut victim, &memory);
        let honest = Honest::new(&mut victim, &memory, &mut friend, &friends_memory);
        let attacker = Attacker::new(&application, &honest, &memory, line);
        let mut world = Self {
            now: Duration::from_secs(1),
            epoch: Epoch(0),
            victim,
            friend,
            memory,
            friends_memory,
            application,
            honest,
            attacker,
            events: Vec::new(),
        };
        world.attacker.link(&mut world.victim, true);
        world.join();
        world.progress();
        world
    }

    /// Runs the script, and checks the invariants.
    pub fn run(mut self, input: &mut Input<'_>) {
        for _ in 0..MOST_ACTS {
            if input.is_empty() {
                break;
            }
            self.act(input);
            self.progress();
        }
        self.exchange();
        self.attacker.listen();
        self.check_memory();
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=6 => self.attacker.say_frame(input),
            7 => self.attacker.say(input.bytes()),
            8 => self.application.act(&mut self.victim, input),
            9 => {
                let greets = input.coin();
                self.attacker.link(&mut self.victim, greets);
            }
            10 => self.now += Duration::from_millis(u64::from(input.byte())),
            11 => self.exchange(),
            12 => self.attacker.listen(),
            13 => self.attacker.repeat(input.byte()),
            14 => self.attacker.harm_memory(input),
            _ => self.move_victim(),
        }
    }

    /// A round of everything.
    fn progress(&mut self) {
        self.victim.progress(self.now);
        self.friend.progress(self.now);
        self.application.poll(&mut self.victim);
        self.check_events();
        let mut wanted = Vec::new();
        self.victim.take_link_requests(&mut wanted);
        self.friend.take_link_requests(&mut wanted);
        // The attacker comes when it likes.
        if wanted.iter().any(|peer| *peer != self.attacker.id()) {
            self.join();
        }
    }

    /// Joins the victim and its friend.
    fn join(&mut self) {
        let (near, far) = pipe::pair();
        self.victim.link_up(process(2), Epoch(0), Box::new(near));
        self.friend.link_up(process(1), self.epoch, Box::new(far));
    }

    fn move_victim(&mut self) {
        self.victim.suspend(self.now);
        self.epoch = self.epoch.next();
        self.victim.resume(self.epoch);
    }

    /// The event is about the attacker.
    fn check_events(&mut self) {
        self.victim.take_events(&mut self.events);
        for event in self.events.drain(..) {
            match event {
                Event::LinkLost { peer, reason: LinkLoss::Violation(what) } => {
                    assert_eq!(peer, self.attacker.id(), "{what}");
                }
                Event::Async(
                    AsyncEvent::QpFatal(qp) | AsyncEvent::QpAccessError(qp) | AsyncEvent::QpRequestError(qp),
                ) => {
                    assert!(!self.honest.has(qp), "{event:?}");
                }
                Event::Async(AsyncEvent::CqError(cq)) => panic!("{cq:?} has overrun"),
                _ => {}
            }
        }
    }

    /// Honest messages in all ways arrive.
    fn exchange(&mut self) {
        self.honest.post(&mut self.victim, &mut self.memory, &mut self.friend, &mut self.friends_memory);
        for _ in 0..MOST_ROUNDS {
            self.progress();
            if self.honest.is_done(&mut self.victim, &mut self.friend) {
                return self.honest.check(&self.memory, &self.friends_memory);
            }
            self.now += Duration::from_millis(1);
        }
        panic!("honest messages do not arrive");
    }

    fn check_memory(&self) {
        let readable = (MemoryMap::READABLE, READABLE_BYTE);
        let ungranted = MemoryMap::UNGRANTED.iter().map(|part| (*part, UNTOUCHED));
        for ((offset, length), holds) in ungranted.chain([readable]) {
            let bytes = self.memory.load(offset, length);
            assert!(bytes.iter().all(|byte| *byte == holds), "memory at {offset:#x} was not granted");
        }
    }
}

/// The attacker's HELLO.
#[must_use]
pub fn hello(process: ProcessId) -> Hello {
    Hello { process, fabric: FABRIC, epoch: Epoch(0), incarnation: 2 }
}
