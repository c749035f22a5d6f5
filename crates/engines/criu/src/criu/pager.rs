//! Post-copy at the destination: fetches the missing pages of a running instance.
//!
//! CRIU restores such an instance with a userfaultfd for each of its processes, and passes these to the pager (`criu/uffd.c` of
//! CRIU). A process that touches a missing page waits for it. The page comes from the source through the node. Prefetched pages,
//! for which no process waits, arrive in between:
//!
//! ```text
//! instance ──faults, forks, mremap, munmap, …──▶ pager ──Want──▶ node ──TLS──▶ the source's node
//!          ◀──────────── pages ─────────────────       ◀─Pages──      ◀─────── /proc/PID/mem of its stopped processes
//! ```
//!
//! * **It is a process of its own**, beside the node. A restarted node takes its end of the connection from the pager
//!   (`pidfd_getfd`), and continues; processes that wait for a page wait until then.
//! * **If the userfaultfds were closed, missing pages would read as zeros.** Therefore two processes hold them in a shared table of
//!   descriptors ([`keeper`]). If one of them ends, the other ends the instance before it closes them.
//! * **The pager follows changes of the address space** ([`owed`]): `mremap`, `munmap`, `madvise` and `fork`. Such a call waits until the
//!   pager has read its event. While one is in progress the kernel refuses to fill pages, so no page is filled by outdated knowledge.
//! * **It ends with the instance**, or when the node has recorded that no page is missing.
//!
//! [`wire`] is the protocol between node and pager, [`faults`] has the system calls, [`server`] the requests to the source.

mod faults;
mod keeper;
mod owed;
mod server;
pub mod wire;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use self::faults::{Copied, Faults, Happened, RESTORED};
use self::keeper::Kept;
use self::owed::{Owed, Run, Source};
use self::server::Server;
use self::wire::{MAX_PAGES, Message};
use crate::instance::Blocker;
use crate::memory::PAGE;

/// The first argument of this mode, in place of the arguments of an instance's first process. The descriptors follow.
pub(crate) const WORD: &str = "pager";

/// The number of prefetch requests in flight.
const AHEAD: usize = 16;

/// How often to try filling a page where nothing is mapped: the event with the reason arrives a moment later.
const TRIES: u32 = 4;

/// The blocker for post-copy on this host, if there is one.
#[must_use]
pub fn unavailable() -> Option<Blocker> {
    let what =
        |error| format!("this host does not support post-copy, because userfaultfd is unavailable ({error})");
    faults::are_available().err().map(|error| Blocker::new(what(error), "move it without --post-copy"))
}

/// Runs the pager of an instance. `arguments` are descriptors: both ends of the connection to the node, and the socket to which CRIU connects.
pub(crate) fn run(arguments: &[OsString]) -> io::Result<()> {
    let numbers: Vec<RawFd> = arguments.iter().filter_map(|number| number.to_str()?.parse().ok()).collect();
    let [ours, theirs, criu] = numbers[..] else {
        return Err(io::Error::other("the pager needs three descriptors"));
    };
    // The OOM killer must not choose the pager, whose end also ends the instance. Without the right to set this, it may.
    let _may_not = fs::write("/proc/self/oom_score_adj", "-1000");
    // SAFETY: the starter has passed these three descriptors for this process alone.
    let (ours, theirs, criu) = unsafe {
        (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs), UnixListener::from_raw_fd(criu))
    };
    let mut pager = Pager {
        kept: keeper::start()?,
        criu: Criu::Awaited(criu),
        server: Server::new(ours, theirs),
        unclaimed: BTreeMap::new(),
        spaces: Vec::new(),
        is_whole: false,
    };
    let ended = pager.serve();
    if ended.is_err() {
        pager.kept.end_instance();
    }
    pager.kept.dismiss();
    ended
}

struct Pager {
    kept: Kept,
    criu: Criu,
    server: Server,
    /// The missing pages of processes that are not restored yet, by their PIDs in the instance.
    unclaimed: BTreeMap<u32, Owed>,
    spaces: Vec<Space>,
    /// Whether no page is missing any more.
    is_whole: bool,
}

/// The progress of CRIU's restore.
enum Criu {
    Awaited(UnixListener),
    Restores(UnixStream),
    /// All processes are restored; no more registrations arrive.
    Done,
}

/// The memory of a process, or of several processes that share it.
struct Space {
    faults: Faults,
    owed: Owed,
    is_gone: bool,
}

impl Pager {
    /// Serves until the instance has ended, or the node dismisses the pager.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            let is_ready = |fd: RawFd| ready.contains(&fd);
            if self.kept.has_ended(&is_ready)? {
                return Ok(());
            }
            self.hear_criu(&is_ready)?;
            while let Some((packet, beside)) = self.server.hear()? {
                let (message, data) = Message::decode(&packet)?;
                if !self.told(message, data, beside)? {
                    return Ok(());
                }
            }
            for index in 0..self.spaces.len() {
                self.follow(index)?;
            }
            self.ask()?;
        }
    }

    fn wait(&self) -> io::Result<Vec<RawFd>> {
        let mut fds = self.kept.descriptors();
        fds.extend(match &self.criu {
            Criu::Awaited(listener) => Some(listener.as_raw_fd()),
            Criu::Restores(stream) => Some(stream.as_raw_fd()),
            Criu::Done => None,
        });
        fds.push(self.server.as_raw_fd());
        fds.extend(self.spaces.iter().map(|space| space.faults.as_raw_fd()));
        faults::wait(&fds)
    }

    fn hear_criu(&mut self, is_ready: &dyn Fn(RawFd) -> bool) -> io::Result<()> {
        match &self.criu {
            Criu::Awaited(listener) if is_ready(listener.as_raw_fd()) => {
                self.criu = Criu::Restores(listener.accept()?.0);
            }
            Criu::Restores(stream) if is_ready(stream.as_raw_fd()) => match faults::from_criu(stream)? {
                (RESTORED, None) => self.criu = Criu::Done,
                (pid, Some(faults)) => {
                    let owed = u32::try_from(pid).ok().and_then(|pid| self.unclaimed.remove(&pid));
                    self.add(faults, owed.unwrap_or_default());
                }
                // The process has ended, and was not reaped yet.
                (_, None) => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, faults: OwnedFd, owed: Owed) {
        self.spaces.push(Space { faults: Faults::new(faults), owed, is_gone: false });
    }

    /// Handles a message of the node; `false` after the last one.
    fn told(&mut self, message: Message, data: &[u8], beside: Option<OwnedFd>) -> io::Result<bool> {
        match message {
            Message::Owe { pid, address, pages } => {
                let page = address / PAGE as u64;
                let run = Run { pages, source: Source { pid, page }, is_asked: false };
                self.unclaimed.entry(pid).or_default().insert(page, run);
            }
            Message::Root => {
                self.kept
                    .set_instance(beside.ok_or_else(|| io::Error::other("the message names no process"))?);
            }
            Message::Serve => {
                self.spaces.iter_mut().for_each(|space| space.owed.forget_asked());
                self.server.begin();
                self.tell_progress();
            }
            Message::Pages { pid, address, .. } => {
                let source = Source { pid, page: address / PAGE as u64 };
                self.server.is_answered(source);
                self.fill(source, data)?;
                self.tell_progress();
            }
            Message::Dismiss if self.is_whole => return Ok(false),
            _ => {}
        }
        Ok(true)
    }

    /// Fills the missing pages that have this source, wherever they are by now.
    fn fill(&mut self, source: Source, data: &[u8]) -> io::Result<()> {
        let pages = (data.len() / PAGE) as u64;
        let mut index = 0;
        // A process that forks meanwhile adds one more.
        while index < self.spaces.len() {
            let mut tries = 0;
            while let Some((page, run)) = self.spaces[index].owed.from(source, pages) {
                let offset = (run.source.page - source.page) as usize * PAGE;
                let data = &data[offset..offset + run.pages as usize * PAGE];
                if !self.put(index, page, data, &mut tries)? {
                    self.follow(index)?;
                }
            }
            index += 1;
        }
        self.spaces.retain(|space| !space.is_gone);
        Ok(())
    }

    /// Fills as many pages as possible. Returns `false` if the process has changed its mappings, and its events must be handled
    /// first.
    fn put(&mut self, index: usize, page: u64, data: &[u8], tries: &mut u32) -> io::Result<bool> {
        let space = &mut self.spaces[index];
        let copied = space.faults.copy(page, data)?;
        let filled = match copied {
            Copied::Pages(pages) => pages,
            // A page that exists already stays.
            Copied::IsThere => {
                space.faults.wake(page, 1);
                1
            }
            Copied::NotMapped if data.len() > PAGE => {
                // The pages are in more than one mapping.
                return self.put(index, page, &data[..PAGE], tries);
            }
            Copied::NotMapped if *tries < TRIES => {
                *tries += 1;
                faults::pause();
                return Ok(false);
            }
            Copied::NotMapped => 1,
            Copied::Changing => {
                faults::pause();
                return Ok(false);
            }
            Copied::Gone => {
                space.owed.clear();
                space.is_gone = true;
                return Ok(true);
            }
        };
        *tries = 0;
        let was_waited_for = space.faults.is_settled(page, filled);
        space.owed.remove(page, filled);
        self.server.count(filled, was_waited_for);
        Ok(true)
    }

    /// Handles the events of a process: page faults, and changes of its mappings.
    fn follow(&mut self, index: usize) -> io::Result<()> {
        loop {
            let happened = self.spaces[index].faults.next()?;
            let Some(happened) = happened else { return Ok(()) };
            let space = &mut self.spaces[index];
            match happened {
                Happened::Fault { page } => {
                    if space.owed.find(page).is_some() {
                        space.faults.waits_for(page);
                    } else {
                        space.faults.zero(page)?;
                    }
                }
                Happened::Fork { child } => {
                    let owed = space.owed.clone();
                    self.add(child, owed);
                }
                Happened::Moved { from, to, pages } => {
                    space.owed.relocate(from, to, pages);
                    space.faults.left(from, pages);
                }
                Happened::Dropped { page, pages } => {
                    space.owed.remove(page, pages);
                    space.faults.left(page, pages);
                }
            }
        }
    }

    /// Requests the pages that threads wait for, and prefetches others; or finds that no page is missing.
    fn ask(&mut self) -> io::Result<()> {
        let is_restored = matches!(self.criu, Criu::Done);
        // Until then, a part of the memory may not be registered.
        let chunk = if is_restored { MAX_PAGES } else { 1 };
        for Space { faults, owed, .. } in &mut self.spaces {
            for page in faults.waited_for() {
                match owed.find(page) {
                    Some(run) if !run.is_asked => self.server.want(owed, page, run.pages.min(chunk), false),
                    Some(_) => {}
                    // The page was moved away or freed.
                    None => faults.left(page, 1),
                }
            }
        }
        if is_restored {
            for Space { owed, .. } in &mut self.spaces {
                while self.server.may_ask(AHEAD)
                    && let Some((page, run)) = owed.first_unasked()
                {
                    self.server.want(owed, page, run.pages.min(MAX_PAGES), true);
                }
            }
            if !self.is_whole && self.spaces.iter().all(|space| space.owed.is_empty()) {
                self.finish_postcopy();
            }
        }
        Ok(())
    }

    /// Completes post-copy: the kernel too fills untouched pages with zeros.
    fn finish_postcopy(&mut self) {
        self.kept.dismiss();
        self.spaces.clear();
        self.is_whole = true;
        self.server.tell_whole();
    }

    fn tell_progress(&mut self) {
        if self.is_whole {
            self.server.tell_whole();
        } else {
            let Self { server, spaces, .. } = self;
            server.tell_progress(|| spaces.iter().map(|space| space.owed.pages()).sum());
        }
    }
}
