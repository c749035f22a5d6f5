//! The phases of a side: agree with the peer, work, compare.
//!
//! ```text
//! client                         server
//!    │ Hello ──────────────────────▶│   workload, memory, queue pairs
//!    │◀───────────────────── Welcome│   its own, ready
//!    │ Ready ──────────────────────▶│   both initiate from here on
//!    │ Stop ◀──────────────────────▶│   the side that stops first tells the other
//!    │ Finished ───────────────────▶│   all posted requests have completed: so many messages
//!    │◀──────────────────── Finished│
//!    │ Right ─────────────────────▶ │   all of these arrived, and the counters hold their sums
//!    │◀─────────────────────── Right│
//! ```

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

use crate::control::{Control, Message};
use crate::endpoint::{Endpoint, Failure};
use crate::meter::Meter;
use crate::options::Local;
use crate::report::Report;
use crate::verbs::Device;
use crate::violation::Violation;
use crate::workload::{Side, Workload};

/// How often the control connection and the clock are polled.
const TICK: Duration = Duration::from_millis(2);

/// Polls without a completion after which a polling side lets others run.
const EMPTY_POLLS: u32 = 64;

/// Polls at the end, when nothing must come any more.
const LAST_POLLS: u32 = 64;

/// Set by SIGINT and SIGTERM.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// One side at work.
pub struct Run<'a> {
    side: Side,
    local: &'a Local,
    control: Control,
    endpoint: Endpoint,
    meter: Meter,
    report: &'a Report,
    /// When to stop without a signal.
    limit: Option<Duration>,
    stop: bool,
    finished_sent: bool,
    expected: Option<Vec<u64>>,
    right_sent: bool,
    peer_is_right: bool,
    next_report: Instant,
}

/// Agrees with the server at the other end of `control`, to work with `device`.
///
/// # Errors
/// If the peer or the device refuses.
pub fn client<'a>(
    device: &Device,
    mut control: Control,
    workload: &Workload,
    limit: Option<Duration>,
    local: &'a Local,
    report: &'a Report,
) -> Result<Run<'a>> {
    let mut endpoint = Endpoint::new(device, workload, Side::Client, local.events)?;
    control.send(&Message::Hello(workload.clone(), endpoint.describe()?))?;
    let Message::Welcome(peer) = control.receive()? else { return Err(out_of_turn()) };
    endpoint.connect(&peer)?;
    control.send(&Message::Ready)?;
    Ok(Run::new(Side::Client, local, control, endpoint, report, limit))
}

/// Agrees with the client at the other end of `control`, to work with `device`.
///
/// # Errors
/// If the peer or the device refuses.
pub fn server<'a>(
    device: &Device,
    mut control: Control,
    local: &'a Local,
    report: &'a Report,
) -> Result<Run<'a>> {
    let Message::Hello(workload, peer) = control.receive()? else { return Err(out_of_turn()) };
    let mut endpoint = Endpoint::new(device, &workload, Side::Server, local.events)?;
    endpoint.connect(&peer)?;
    control.send(&Message::Welcome(endpoint.describe()?))?;
    let Message::Ready = control.receive()? else { return Err(out_of_turn()) };
    Ok(Run::new(Side::Server, local, control, endpoint, report, None))
}

fn out_of_turn() -> anyhow::Error {
    anyhow!("unexpected message from the peer; is it a verbs-check of the other role?")
}

impl<'a> Run<'a> {
    fn new(
        side: Side,
        local: &'a Local,
        control: Control,
        endpoint: Endpoint,
        report: &'a Report,
        limit: Option<Duration>,
    ) -> Self {
        let now = Instant::now();
        Self {
            side,
            local,
            control,
            endpoint,
            meter: Meter::new(now),
            report,
            limit,
            stop: false,
            finished_sent: false,
            expected: None,
            right_sent: false,
            peer_is_right: false,
            next_report: now + local.report_interval.unwrap_or_default(),
        }
    }

    /// Works until both sides have agreed that all is right, or one found a violation.
    ///
    /// # Errors
    /// The violation, or why the workload could not go on.
    pub fn work(&mut self) -> Result<(), Failure> {
        watch_signals();
        let outcome = self.work_until_agreed();
        if let Err(Failure::Violation(violation)) = &outcome
            && !matches!(violation, Violation::Reported(_))
        {
            // Only the violation matters, whether or not the peer can be told.
            let _ = self.control.send(&Message::Wrong(violation.to_string()));
        }
        outcome
    }

    /// The measurements.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    fn work_until_agreed(&mut self) -> Result<(), Failure> {
        let mut next_tick = Instant::now();
        let mut empty_polls = 0;
        while !(self.right_sent && self.peer_is_right) {
            let completions = self.endpoint.poll(&mut self.meter)?;
            self.endpoint.post(self.stop)?;
            empty_polls = if completions == 0 { empty_polls + 1 } else { 0 };
            let now = Instant::now();
            if now >= next_tick || empty_polls > EMPTY_POLLS {
                self.tick(now)?;
                next_tick = now + TICK;
            }
            if empty_polls > EMPTY_POLLS {
                self.idle()?;
            }
        }
        Ok(())
    }

    fn tick(&mut self, now: Instant) -> Result<(), Failure> {
        // A peer that is content may leave: its connection has ended where its last message has.
        while !self.peer_is_right
            && let Some(message) = self.control.try_receive()?
        {
            self.hear(message)?;
        }
        if let Some(event) = self.endpoint.async_event()? {
            return Err(Violation::AsyncEvent { event }.into());
        }
        self.print_interval(now);
        self.consider_stopping(now)?;
        self.consider_finishing()?;
        self.check_stall(now)
    }

    fn hear(&mut self, message: Message) -> Result<(), Failure> {
        match message {
            Message::Stop => self.stop = true,
            Message::Finished(messages) => self.expected = Some(messages),
            Message::Right => self.peer_is_right = true,
            Message::Wrong(what) => return Err(Violation::Reported(what).into()),
            Message::Hello(..) | Message::Welcome(_) | Message::Ready => return Err(out_of_turn().into()),
        }
        Ok(())
    }

    fn print_interval(&mut self, now: Instant) {
        if let Some(interval) = self.local.report_interval
            && now >= self.next_report
        {
            self.report.interval(&self.meter.interval(now));
            self.next_report = now + interval;
        }
    }

    fn consider_stopping(&mut self, now: Instant) -> Result<()> {
        let over = self.limit.is_some_and(|limit| self.meter.elapsed(now) >= limit);
        if !self.stop && (over || INTERRUPTED.load(Ordering::Relaxed)) {
            self.stop = true;
            self.control.send(&Message::Stop)?;
        }
        Ok(())
    }

    /// The server speaks second, so that two long messages never wait for each other.
    fn consider_finishing(&mut self) -> Result<(), Failure> {
        let first = self.side == Side::Client;
        if !self.finished_sent && (first || self.expected.is_some()) && self.endpoint.is_finished() {
            self.control.send(&Message::Finished(self.endpoint.messages()))?;
            self.finished_sent = true;
        }
        let Some(expected) = &self.expected else { return Ok(()) };
        if !self.finished_sent || self.right_sent || !self.endpoint.has_received(expected)? {
            return Ok(());
        }
        for _ in 0..LAST_POLLS {
            self.endpoint.poll(&mut self.meter)?;
        }
        let expected = self.expected.as_deref().unwrap_or_default();
        self.endpoint.has_received(expected)?;
        self.endpoint.check_counters()?;
        self.control.send(&Message::Right)?;
        self.right_sent = true;
        Ok(())
    }

    fn check_stall(&self, now: Instant) -> Result<(), Failure> {
        let idle = self.meter.idle(now);
        if idle < self.local.stall_limit {
            return Ok(());
        }
        let waiting = self.endpoint.waiting();
        Err(Violation::Stalled { seconds: idle.as_secs(), waiting }.into())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        if !self.local.events {
            std::hint::spin_loop();
            return Ok(());
        }
        self.endpoint.arm()?;
        if self.endpoint.poll(&mut self.meter)? > 0 {
            return self.endpoint.post(self.stop).map_err(Failure::from);
        }
        self.wait()?;
        Ok(())
    }

    /// Sleeps until a completion event, a message of the peer, or the next thing to do by time.
    fn wait(&self) -> Result<()> {
        let queues = self.endpoint.queues();
        let descriptors = [queues[0].descriptor(), queues[1].descriptor(), Some(self.control.descriptor())];
        let ready = poll(descriptors.map(|fd| fd.unwrap_or(-1)), self.longest_sleep())?;
        for (queue, ready) in queues.into_iter().zip(ready) {
            if ready {
                queue.take_event()?;
            }
        }
        Ok(())
    }

    fn longest_sleep(&self) -> Duration {
        let report = self.local.report_interval.unwrap_or(Duration::MAX);
        Duration::from_millis(20).min(report)
    }
}

/// Waits until one of `descriptors` is readable; which of them are.
fn poll(descriptors: [RawFd; 3], timeout: Duration) -> Result<[bool; 3]> {
    let mut wanted = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1);
    // SAFETY: the array has three valid elements.
    let ready = unsafe { libc::poll(wanted.as_mut_ptr(), 3, millis) };
    if ready == -1 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).context("poll");
        }
        return Ok([false; 3]);
    }
    Ok(wanted.map(|one| one.revents & libc::POLLIN != 0))
}

fn watch_signals() {
    extern "C" fn note(_signal: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    let handler = note as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is safe in a signal handler.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}
