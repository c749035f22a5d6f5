//! Links to peers, timers, and suspension.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::Duration;

use fabric::attach::LinkRefusal;
use fabric::{Epoch, ProcessId};
use verbs::Translation;
use waiting::Uncancelled;

use crate::attr::QpKind;
use crate::core::Core;
use crate::device::traffic::Counted;
use crate::device::{Device, Progress, Suspended};
use crate::event::Event;
use crate::handle::Qp;
use crate::link::{Link, LinkLoss, State};
use crate::stream::{self, Stream, Waitable};
use crate::timer::Pause;
use crate::wire::{Header, Hello, Opcode, Syndrome};

/// Bytes moved per link and direction before others get their turn, and the lock is given up.
const BUDGET: usize = 256 * 1024;

/// Before a link is asked for again.
const AFTER_REFUSAL: Duration = Duration::from_millis(20);
/// The same after the link broke: at once would be a loop if the peer talks nonsense.
const AFTER_LOSS: Duration = Duration::from_millis(2);
/// A peer that cannot be reached for this long is given up.
const OUTAGE_LIMIT: Duration = Duration::from_secs(60);

/// All links of a device. Unused links are evicted: a process may have very many peers while it runs.
#[derive(Default)]
pub(super) struct Links {
    pub links: Vec<Link>,
    by_peer: HashMap<ProcessId, usize>,
    /// Places of forgotten ones.
    free: Vec<usize>,
    /// How many were forgotten with their numbers, for want of room.
    evicted: u64,
    /// Connected queue pairs that wait for a link to their peers.
    linkless: Vec<(ProcessId, Qp)>,
    /// Those with a stream.
    pub live: Vec<usize>,
    requests: Vec<ProcessId>,
    /// Changes with the set of descriptors to sleep on.
    version: u64,
    /// Acknowledgements are left for the application's next request.
    holds_acks: bool,
    /// Requests are left for the application's next poll, or the peer's next answer.
    pub lingers: bool,
    /// The link that had its turn, of the ones that posts poll.
    pub turn: usize,
    /// Short SENDs that have left since a post looked at links.
    pub unseen: u32,
    /// Payload that was counted on forgotten links.
    pub counted: Counted,
}

impl Links {
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// True if link `at` has something to send that is not left for others.
    fn is_due(&self, at: usize) -> bool {
        let link = &self.links[at];
        if self.holds_acks { link.has_urgent_work() } else { link.has_work() }
    }

    /// The link to `peer`, made if need be.
    fn to(&mut self, peer: ProcessId) -> usize {
        *self.by_peer.entry(peer).or_insert_with(|| {
            let link = Link::new(peer, self.evicted);
            if let Some(at) = self.free.pop() {
                self.links[at] = link;
                return at;
            }
            self.links.push(link);
            self.links.len() - 1
        })
    }

    /// True if there may be a link to `peer` among at most `limit`.
    fn has_room(&self, peer: ProcessId, limit: u32) -> bool {
        self.by_peer.contains_key(&peer) || self.by_peer.len() < limit as usize
    }

    /// Forgets an idle link that is to none of `kept`, also if something is known of its peer: to that the next one is the link of
    /// another process then. Misdeeds are forgotten last.
    fn evict(&mut self, own: ProcessId, kept: &[ProcessId]) -> bool {
        let idle = || {
            let links = self.by_peer.values().map(|&at| (at, &self.links[at]));
            links.filter(|(_, link)| link.is_idle() && link.peer != own && !kept.contains(&link.peer))
        };
        let unknown = || idle().find(|(_, link)| !link.is_known());
        let harmless = || idle().find(|(_, link)| !link.has_misbehaved());
        let found = unknown().or_else(harmless).or_else(|| idle().next());
        let Some((at, is_known)) = found.map(|(at, link)| (at, link.is_known())) else { return false };
        self.evicted += u64::from(is_known);
        self.forget(at);
        true
    }

    /// Evicts link `at` if it is unused, holds no state that matters, and its successor would look the same to the peer.
    fn tidy(&mut self, own: ProcessId, at: usize) {
        let link = &self.links[at];
        let looks_the_same = link.renewal == self.evicted;
        if link.is_idle() && link.pause.is_over() && !link.is_known() && looks_the_same && link.peer != own {
            self.forget(at);
        }
    }

    /// Of a place that is free already the peer may have another link by now.
    fn forget(&mut self, at: usize) {
        let peer = self.links[at].peer;
        if self.by_peer.get(&peer) == Some(&at) {
            self.by_peer.remove(&peer);
            self.counted.add(peer.vid, self.links[at].tx.traffic);
            self.links[at] = Link::new(peer, 0);
            self.free.push(at);
        }
    }

    fn find(&mut self, peer: ProcessId) -> Option<&mut Link> {
        self.links.get_mut(*self.by_peer.get(&peer)?)
    }

    /// `qp` is connected to `peer` from now on. Past the limit of peers it has no link before another queue pair, or the peer, gets
    /// one.
    pub fn attach(&mut self, core: &mut Core, peer: ProcessId, qp: Qp) {
        match self.reach(core.process, peer, core.limits.max_peers) {
            Some(at) => {
                self.links[at].attach(core, at, qp);
                self.adopt(core, at);
            }
            None => self.linkless.push((peer, qp)),
        }
    }

    /// There is a link `at` for queue pairs that had none.
    fn adopt(&mut self, core: &mut Core, at: usize) {
        let link = &mut self.links[at];
        let peer = link.peer;
        for (_, qp) in self.linkless.extract_if(.., |(wanted, _)| *wanted == peer) {
            link.attach(core, at, qp);
        }
    }

    /// The link to `peer`, for datagrams; `None` past `limit` peers.
    pub fn reach(&mut self, own: ProcessId, peer: ProcessId, limit: u32) -> Option<usize> {
        (self.has_room(peer, limit) || self.evict(own, &[])).then(|| self.to(peer))
    }

    /// Finds or makes links to several peers that are needed together: none is evicted for another.
    pub fn reach_all(&mut self, own: ProcessId, peers: &[ProcessId], limit: u32) -> Vec<usize> {
        let mut links = Vec::with_capacity(peers.len());
        for peer in peers {
            if self.has_room(*peer, limit) || self.evict(own, peers) {
                links.push(self.to(*peer));
            }
        }
        links
    }

    /// `qp` has a datagram for which link `at` has no room.
    pub fn wait_for_room(&mut self, at: usize, qp: Qp) {
        // A sleeping thread has to learn that this wait has an end.
        self.version += u64::from(self.links[at].datagrams.wait_for_room(qp));
    }

    pub fn detach(&mut self, core: &mut Core, peer: ProcessId, qp: Qp) {
        self.linkless.retain(|(_, attached)| *attached != qp);
        if let Some(&at) = self.by_peer.get(&peer) {
            self.links[at].detach(core, qp);
            self.tidy(core.process, at);
        }
    }

    /// Tells peers of a handle; those without a link learn it from the next greeting.
    pub fn announce(&mut self, line: Translation, previous: u32) {
        for &at in &self.live {
            self.links[at].announce(line, previous);
        }
    }

    pub fn copy_out_range(&mut self, address: u64, length: u64) {
        for &at in &self.live {
            self.links[at].tx.copy_out_range(address, length);
        }
    }

    /// Copies the unsent bytes of messages of `qp` before `msn`.
    pub fn copy_out(&mut self, qp: Qp, msn: u64) {
        for &at in &self.live {
            self.links[at].tx.copy_out(qp, msn);
        }
    }

    /// `qp` stops executing requests: its peer learns which ones were executed, and must not wait for ever for answers
    /// that it will not give.
    fn end_responder(&mut self, core: &mut Core, peer: ProcessId, handle: Qp) {
        let Some(link) = self.find(peer) else { return };
        let Some(qp) = core.qps.get_mut(handle.0) else { return };
        if link.state == State::Up {
            let (done, owed) = qp.responder.final_acknowledgements();
            let word = |opcode| crate::requester::addressed(qp, &link.out.lookup, opcode);
            let ack = done.map(|msn| Header { msn, ..word(Opcode::Ack) });
            let syndrome = Some(Syndrome::NotReady);
            let refusal = owed.map(|msn| Header { msn, syndrome, ..word(Opcode::Nak) });
            ack.into_iter().chain(refusal).for_each(|word| link.out.control(word));
        }
        qp.responder.interrupt();
        link.out.carried_ack(handle);
    }

    fn close(&mut self, core: &mut Core, at: usize) {
        self.links[at].close(core);
        self.live.retain(|live| *live != at);
        self.version += 1;
    }

    /// Asks for a link where queue pairs wait for one.
    fn ask_if_needed(&mut self, core: &Core, at: usize) {
        let link = &mut self.links[at];
        let may_ask = link.state == State::Down && link.pause.is_over();
        let has_datagrams = link.datagrams.is_waiting();
        if may_ask && (has_datagrams || link.qps.iter().any(|qp| core.has_requests(*qp))) {
            link.state = State::Asked;
            self.requests.push(link.peer);
        }
    }
}

impl Device {
    /// Makes `qp` stop executing requests, and tells its peer at once: the application may exit next.
    pub(super) fn end_responder(&mut self, qp: Qp, peer: ProcessId) {
        self.links.end_responder(&mut self.core, peer, qp);
        let Some(&at) = self.links.by_peer.get(&peer) else { return };
        if self.links.links[at].has_work() {
            self.transmit(at);
        }
    }

    /// `handle` was connected: streams may carry frames of its past, and its peer may take them for new ones.
    pub(super) fn begin_barrier(&mut self, handle: Qp) {
        let Some(qp) = self.core.qps.get_mut(handle.0) else { return };
        qp.awaits_barrier = qp.has_past;
        let Some(at) = qp.link.filter(|_| qp.has_past) else { return };
        self.links.links[at].ask_for_barrier(qp);
        if self.links.links[at].has_work() {
            self.transmit(at);
        }
    }

    pub(super) fn need_link(&mut self, at: usize) {
        let link = &self.links.links[at];
        if link.peer != self.core.process {
            self.links.ask_if_needed(&self.core, at);
        } else if link.state == State::Down && link.pause.is_over() {
            self.open_loopback(at);
        }
    }

    /// Queue pairs of one process reach each other through memory of their own.
    fn open_loopback(&mut self, at: usize) {
        match stream::loopback() {
            Ok(stream) => self.start_link(at, stream),
            // The process lacks something, for as long as it likes.
            Err(_) => {
                self.links.links[at].pause = Pause::Noted(AFTER_REFUSAL);
                // A sleeping thread has to learn of the pause.
                self.links.version += 1;
            }
        }
    }

    fn start_link(&mut self, at: usize, stream: Box<dyn Stream>) {
        self.links.adopt(&mut self.core, at);
        let Core { process, fabric, .. } = self.core;
        let incarnation = self.incarnation.wrapping_add(self.links.links[at].renewal);
        let own = Hello { process, fabric, epoch: self.epoch, incarnation };
        self.links.links[at].open(&self.core, stream, &own);
        self.links.live.push(at);
        self.links.version += 1;
        self.drive(at);
    }

    /// Sends, and drops the link if that fails. Returns whether anything has left.
    pub(super) fn transmit(&mut self, at: usize) -> bool {
        let before = self.links.links[at].interest();
        let mut budget = BUDGET;
        let sent = self.links.links[at].transmit(&mut self.core, &mut budget);
        self.send_handle_changes();
        if self.links.links[at].interest() != before {
            self.links.version += 1;
        }
        if let Err(loss) = sent {
            self.read_remaining_frames(at);
            self.lose(at, loss);
        }
        budget < BUDGET
    }

    /// Reads the rest of a closed link's stream: a peer that has ended takes nothing any more, but its last frames may be unread, such as
    /// acknowledgements, which are not repeated.
    fn read_remaining_frames(&mut self, at: usize) {
        /// More than sockets hold: a peer that only pretends to have ended must not hold us for ever.
        const MOST: u32 = 64;
        for _ in 0..MOST {
            let mut budget = BUDGET;
            if !matches!(self.links.links[at].receive(&mut self.core, &mut budget), Ok(true)) {
                break;
            }
        }
    }

    fn lose(&mut self, at: usize, reason: LinkLoss) {
        let _whole = Uncancelled::new();
        self.send_handle_changes();
        self.close_gate(at);
        // A peer that closed the stream before its HELLO may have had no descriptor for it.
        let is_silent = self.links.links[at].state == State::Greeting { heard: false };
        let is_refused = reason == LinkLoss::Goodbye || is_silent && matches!(reason, LinkLoss::Broken(_));
        self.links.close(&mut self.core, at);
        let link = &mut self.links.links[at];
        let pause = if is_refused { AFTER_REFUSAL } else { AFTER_LOSS };
        link.pause = Pause::Noted(pause);
        let peer = link.peer;
        self.core.events.push(Event::LinkLost { peer, reason });
    }

    /// Receives and sends what is possible on one link. Returns whether there was anything.
    fn drive(&mut self, at: usize) -> bool {
        let mut budget = BUDGET;
        let received = self.links.links[at].receive(&mut self.core, &mut budget);
        let worked = match received {
            Ok(worked) => worked,
            Err(loss) => {
                self.lose(at, loss);
                return true;
            }
        };
        if worked {
            self.registered.mark_active(self.links.links[at].peer);
            self.send_handle_changes();
        }
        let wants_to_send = self.links.is_due(at) || self.links.links[at].blocked;
        let sent = wants_to_send && self.transmit(at);
        worked || sent
    }

    /// True if a poll would find nothing on any link, nor anything that it should send.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        let is_quiet = |at: &usize| {
            let link = &self.links.links[*at];
            link.is_quiet() && !link.has_output() && link.sharing.asked.is_empty()
        };
        !self.links.lingers && !self.is_unsettled() && self.links.live.iter().all(is_quiet)
    }

    /// Drives the links for a poll of an empty completion queue when data has arrived.
    ///
    /// Acknowledgements wait while messages come in, to ride on the application's next message; a poll that
    /// finds the link quiet sends them.
    pub(super) fn poll_links(&mut self) {
        let mut turn = 0;
        while let Some(&at) = self.links.live.get(turn) {
            turn += 1;
            self.poll_link(at);
        }
        self.links.lingers = false;
        self.settle();
    }

    #[inline]
    pub(super) fn poll_link(&mut self, at: usize) {
        let link = &mut self.links.links[at];
        let mut budget = BUDGET;
        let received = if link.is_quiet() { Ok(false) } else { link.receive(&mut self.core, &mut budget) };
        let worked = match received {
            Ok(worked) => worked,
            Err(loss) => return self.lose(at, loss),
        };
        let sends = link.has_output() && (!worked || link.out.is_urgent() || link.blocked);
        if worked {
            self.registered.mark_active(link.peer);
            self.send_handle_changes();
        }
        if sends {
            self.transmit(at);
        }
        if self.is_asked_for_memory(at) {
            self.run_sharing();
        }
    }

    /// Copies the unsent bytes of failed queue pairs on all links, before the application can learn of it and take its
    /// memory back; forgets direct mappings that were found closed; and sends datagrams for which there is room again.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.is_unsettled() {
            self.settle_all();
        }
    }

    #[inline]
    fn is_unsettled(&self) -> bool {
        let Core { handle_changes, failed, stale, unblocked, .. } = &self.core;
        !(handle_changes.is_empty() && failed.is_empty() && stale.is_empty() && unblocked.is_empty())
    }

    #[cold]
    fn settle_all(&mut self) {
        self.send_handle_changes();
        while let Some(qp) = self.core.failed.pop() {
            self.links.copy_out(qp, u64::MAX);
            if let Some(at) = self.core.qps.get(qp.0).and_then(|qp| qp.link) {
                self.close_gate(at);
            }
        }
        while let Some(qp) = self.core.stale.pop() {
            self.close_stale_direct_mappings(qp);
        }
        while !self.suspended
            && let Some(qp) = self.core.unblocked.pop()
        {
            self.send_datagrams(qp);
        }
    }

    /// Peers that need a link now; each is named once until `link_up` or `link_refused`.
    pub fn take_link_requests(&mut self, into: &mut Vec<ProcessId>) {
        into.append(&mut self.links.requests);
    }

    /// A link is there. An older one to the same peer is dropped. `peer_epoch` comes from the peer's node; a
    /// peer with a lower epoch in its HELLO is refused.
    pub fn link_up(&mut self, peer: ProcessId, peer_epoch: Epoch, stream: Box<dyn Stream>) {
        if self.suspended {
            return;
        }
        let Some(at) = self.links.reach(self.core.process, peer, self.core.limits.max_peers) else { return };
        if self.links.links[at].stream.is_some() {
            self.lose(at, LinkLoss::Replaced);
        }
        let link = &mut self.links.links[at];
        link.pause = Pause::Over;
        link.epoch = link.epoch.max(peer_epoch);
        self.registered.note_epoch(peer, peer_epoch);
        self.start_link(at, stream);
        self.settle();
    }

    /// The link is gone for now.
    pub fn link_refused(&mut self, peer: ProcessId, reason: LinkRefusal, now: Duration) {
        let Some(&at) = self.links.by_peer.get(&peer) else { return };
        let link = &mut self.links.links[at];
        if link.stream.is_some() {
            return;
        }
        link.state = State::Down;
        link.pause = Pause::Noted(AFTER_REFUSAL);
        match reason {
            LinkRefusal::Unreachable => {
                link.unreachable_since.get_or_insert(now);
            }
            LinkRefusal::Moving | LinkRefusal::Gone => link.unreachable_since = None,
        }
        if reason == LinkRefusal::Gone {
            self.count_retries(at);
            let link = &mut self.links.links[at];
            link.datagrams.drop_outgoing(&mut self.core);
            link.forgive();
        }
        self.settle();
    }

    /// The peer is gone: each waiting queue pair uses up a retry.
    fn count_retries(&mut self, at: usize) {
        for turn in 0..self.links.links[at].qps.len() {
            let handle = self.links.links[at].qps[turn];
            let Some(qp) = self.core.qps.get(handle.0) else { continue };
            match qp.init.kind {
                QpKind::Uc | QpKind::Ud => self.core.give_up(handle),
                _ => self.core.on_not_ready(handle, qp.sends.head()),
            }
        }
    }

    /// Makes all progress that is possible without waiting: links, timers. `now`: `CLOCK_MONOTONIC`.
    pub fn progress(&mut self, now: Duration) -> Progress {
        let mut progress = Progress::default();
        if self.suspended {
            return progress;
        }
        progress.next_deadline = self.run_timers(now, &mut progress.did_work);
        let mut turn = 0;
        while let Some(&at) = self.links.live.get(turn) {
            turn += 1;
            let link = &self.links.links[at];
            if link.stream.as_ref().is_some_and(|stream| !stream.is_alive(link.interest())) {
                progress.did_work = true;
                self.lose(at, LinkLoss::Broken(std::io::ErrorKind::ConnectionReset));
                continue;
            }
            let worked = self.drive(at);
            progress.did_work |= worked;
            if self.is_asked_for_memory(at) {
                progress.more |= self.run_sharing();
            }
            let link = &self.links.links[at];
            progress.more |= link.stream.is_some() && (worked || self.links.is_due(at));
        }
        self.settle();
        progress
    }

    /// Ends pauses that are over. Returns when the next one ends.
    fn run_timers(&mut self, now: Duration, did_work: &mut bool) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        let mut note = |deadline: Duration| next = Some(next.map_or(deadline, |next| next.min(deadline)));
        let mut waiting = std::mem::take(&mut self.core.waiting);
        waiting.retain(|&handle| {
            let Some(qp) = self.core.qps.get_mut(handle.0) else { return false };
            if qp.requester.pause.is_over() {
                return false;
            }
            if let Some(deadline) = qp.requester.pause.tick(now) {
                note(deadline);
                return true;
            }
            *did_work = true;
            self.ring_doorbell(handle);
            false
        });
        if !self.core.waiting.is_empty() {
            // A queue pair that has begun to wait meanwhile has not set a deadline yet.
            note(now);
        }
        self.core.waiting.append(&mut waiting);
        if let Some(deadline) = self.core.groups.tick(now, &mut self.core.unblocked) {
            note(deadline);
        }
        for at in 0..self.links.links.len() {
            let link = &mut self.links.links[at];
            if link.stream.is_some() {
                if !link.datagrams.room.is_over()
                    && let Some(deadline) = link.datagrams.wait_longer(&mut self.core, now)
                {
                    note(deadline);
                }
                if link.datagrams.patience.is_over() {
                    continue;
                }
                match link.datagrams.patience.tick(now) {
                    Some(deadline) => note(deadline),
                    None => self.drop_after_timeout(at),
                }
                continue;
            }
            let rests = !link.pause.is_over();
            if let Some(deadline) = link.pause.tick(now) {
                note(deadline);
                continue;
            }
            self.need_link_or_give_up(at, now);
            // There may be no memory or descriptor for it yet.
            if let Some(deadline) = self.links.links[at].pause.tick(now) {
                note(deadline);
            }
            if rests {
                self.links.tidy(self.core.process, at);
            }
        }
        next
    }

    fn need_link_or_give_up(&mut self, at: usize, now: Duration) {
        let link = &mut self.links.links[at];
        let too_long = link.unreachable_since.is_some_and(|since| now.saturating_sub(since) >= OUTAGE_LIMIT);
        if too_long {
            link.unreachable_since = None;
            for turn in 0..self.links.links[at].qps.len() {
                self.core.give_up(self.links.links[at].qps[turn]);
            }
            self.links.links[at].datagrams.drop_outgoing(&mut self.core);
        }
        self.need_link(at);
    }

    /// Whether [`Self::progress`] leaves acknowledgements to the application's next request, which may carry them.
    pub fn hold_acks(&mut self, hold: bool) {
        self.links.holds_acks = hold;
    }

    /// Changes whenever acknowledgements leave, by whomever.
    #[must_use]
    pub fn acks_sent(&self) -> u64 {
        self.core.acks_sent
    }

    /// True if [`Self::progress`] would send something, such as delayed acknowledgements.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.links.live.iter().any(|&at| self.links.links[at].has_work())
    }

    /// How many links there are that work.
    #[must_use]
    pub fn live_links(&self) -> usize {
        self.links.live.len()
    }

    /// Changes whenever a thread that sleeps on [`Self::waitables`] has to fetch them again.
    #[must_use]
    pub fn waitables_version(&self) -> u64 {
        self.links.version
    }

    /// The descriptors to sleep on between calls of `progress`.
    pub fn waitables(&self, into: &mut Vec<Waitable>) {
        for &at in &self.links.live {
            let link = &self.links.links[at];
            if let Some(stream) = &link.stream {
                stream.waitables(link.interest(), &mut |waitable| into.push(waitable));
            }
        }
    }

    /// All descriptors of links that report their end, also those on which no thread sleeps.
    #[must_use]
    pub fn link_descriptors(&self) -> Vec<RawFd> {
        let mut descriptors = Vec::new();
        for &at in &self.links.live {
            if let Some(stream) = &self.links.links[at].stream {
                stream.descriptors(&mut |fd| descriptors.push(fd));
            }
        }
        descriptors
    }

    /// Announces that the caller is going to sleep on the waitables. False: call `progress` instead.
    pub fn prepare_to_sleep(&mut self) -> bool {
        let mut may_sleep = true;
        for &at in &self.links.live {
            may_sleep &= !self.links.is_due(at);
            let link = &mut self.links.links[at];
            let interest = link.interest();
            if let Some(stream) = link.stream.as_mut() {
                may_sleep &= stream.prepare_to_sleep(interest);
            }
        }
        if !may_sleep {
            self.awake();
        }
        may_sleep
    }

    /// Withdraws the announcement: after waking, or when an application polls by itself.
    pub fn awake(&mut self) {
        for &at in &self.links.live {
            if let Some(stream) = self.links.links[at].stream.as_mut() {
                stream.awake();
            }
        }
    }

    /// Takes in wake-ups without data: a peer that wakes without data would otherwise wake the caller for ever.
    pub fn drain_wakes(&mut self) {
        for &at in &self.links.live {
            if let Some(stream) = self.links.links[at].stream.as_mut() {
                stream.drain_wakes();
            }
        }
    }

    /// Says good-bye to peers, closes every link and stops all clocks. Work may be posted; it waits.
    pub fn suspend(&mut self, now: Duration) -> Suspended {
        self.suspended = true;
        while let Some(&at) = self.links.live.first() {
            self.close_gate(at);
            self.links.links[at].say_goodbye();
            self.links.close(&mut self.core, at);
        }
        for link in &mut self.links.links {
            link.state = State::Down;
            link.pause = Pause::Over;
            link.unreachable_since = None;
        }
        for at in 0..self.links.links.len() {
            self.links.tidy(self.core.process, at);
        }
        self.links.requests.clear();
        self.sharing.pause();
        self.core.groups.freeze(now);
        for &handle in &self.core.waiting {
            if let Some(qp) = self.core.qps.get_mut(handle.0) {
                qp.requester.pause.freeze(now);
            }
        }
        self.settle();
        Suspended { active_peers: self.registered.active().collect(), counts: self.counts() }
    }

    /// Executes requests that were posted meanwhile and need no peer.
    fn run_local_work(&mut self) {
        let all: Vec<u32> = self.core.qps.indices().collect();
        for index in all {
            self.core.run_local(Qp(index));
        }
    }

    /// The moves of the instance that it knows of.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Runs again, here or elsewhere: real handles are issued again, and active peers get links.
    pub fn resume(&mut self, epoch: Epoch) {
        self.suspended = false;
        self.epoch = epoch;
        self.sharing.verify();
        self.core.qp_names.reissue(&mut *self.core.source);
        self.core.srq_names.reissue(&mut *self.core.source);
        self.core.regions.reissue(&mut *self.core.source);
        self.run_local_work();
        let active: Vec<ProcessId> = self.registered.active().collect();
        for peer in active {
            let at = self.links.to(peer);
            if peer == self.core.process {
                self.open_loopback(at);
            } else {
                self.links.links[at].state = State::Asked;
                self.links.requests.push(peer);
            }
        }
        for at in 0..self.links.links.len() {
            self.need_link(at);
        }
        self.unblock_all();
        self.settle();
    }
}
