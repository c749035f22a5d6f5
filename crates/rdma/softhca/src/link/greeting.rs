//! The first frames of a link, and later updates of handle translations.

use verbs::Translation;

use crate::core::Core;
use crate::link::{Link, LinkLoss, State};
use crate::stream::Stream;
use crate::wire::{self, Header, Hello, MAX_TRANSLATIONS, Opcode};

impl Link {
    /// Begins to talk over `stream`.
    pub fn open(&mut self, core: &Core, stream: Box<dyn Stream>, own: &Hello) {
        self.stream = Some(stream.into());
        self.rx.begin();
        self.state = State::Greeting { heard: false };
        self.unreachable_since = None;
        let hello = own.encode();
        self.tx.frame(&Header { length: hello.len() as u32, ..Header::new(Opcode::Hello) });
        self.tx.copy(&hello);
        let lines: Vec<Translation> = core
            .qp_names
            .translations()
            .chain(core.srq_names.translations())
            .chain(core.regions.translations())
            .collect();
        for lines in lines.chunks(MAX_TRANSLATIONS) {
            self.translate(lines, 0);
        }
        self.tx.frame(&Header::new(Opcode::Ready));
    }

    /// Tells the peer of a handle, new or withdrawn, that meant `previous` before.
    pub fn announce(&mut self, line: Translation, previous: u32) {
        if self.stream.is_some() {
            let generation = self.out.announce(line, previous);
            self.translate(&[line], generation);
        }
    }

    fn translate(&mut self, lines: &[Translation], generation: u64) {
        let mut payload = Vec::new();
        wire::encode_translations(lines, &mut payload);
        let header = Header::new(Opcode::Translate);
        self.tx.frame(&Header { msn: generation, length: payload.len() as u32, ..header });
        self.tx.copy(&payload);
    }

    pub(super) fn on_hello(&mut self, core: &mut Core, payload: &[u8]) -> Result<(), LinkLoss> {
        let hello = Hello::decode(payload)?;
        if self.state != (State::Greeting { heard: false }) {
            return Err(LinkLoss::Violation("a second HELLO"));
        }
        if hello.process != self.peer || hello.fabric != core.fabric {
            return Err(LinkLoss::Violation("the peer's identity does not match the announced one"));
        }
        if hello.epoch < self.epoch {
            return Err(LinkLoss::Violation("the stream is older than the peer's latest move"));
        }
        self.epoch = hello.epoch;
        if self.incarnation.replace(hello.incarnation).is_some_and(|before| before != hello.incarnation) {
            self.datagrams.restart(core);
        }
        self.out.lookup.clear();
        self.state = State::Greeting { heard: true };
        Ok(())
    }

    pub(super) fn on_translate(&mut self, header: &Header, payload: &[u8]) -> Result<(), LinkLoss> {
        if !matches!(self.state, State::Greeting { heard: true } | State::Up) {
            return Err(LinkLoss::Violation("TRANSLATE before HELLO"));
        }
        for line in wire::decode_translations(payload)? {
            let learnt = self.out.lookup.learn(line?);
            learnt.map_err(|_| LinkLoss::Violation("more handles than a device can have"))?;
        }
        if header.msn != 0 {
            self.out.control(Header { msn: header.msn, ..Header::new(Opcode::TranslateAck) });
        }
        Ok(())
    }

    pub(super) fn on_ready(&mut self, core: &mut Core) -> Result<(), LinkLoss> {
        if self.state != (State::Greeting { heard: true }) {
            return Err(LinkLoss::Violation("READY before HELLO"));
        }
        self.state = State::Up;
        self.out.control(self.datagrams.acknowledgement());
        for at in 0..self.qps.len() {
            let handle = self.qps[at];
            if let Some(qp) = core.qps.get(handle.0).filter(|qp| qp.awaits_barrier) {
                self.ask_for_barrier(qp);
            }
            if core.has_requests(handle) {
                self.schedule(core, handle);
            }
        }
        Ok(())
    }

    /// The last frame, if the stream stands at the end of one.
    pub fn say_goodbye(&mut self) {
        let Some(stream) = self.stream.as_mut() else { return };
        if self.tx.is_empty() {
            self.tx.frame(&Header::new(Opcode::Goodbye));
            // A peer that does not get it finds the stream ended, which is nearly the same.
            let _ = self.tx.flush(&mut **stream);
        }
    }
}
