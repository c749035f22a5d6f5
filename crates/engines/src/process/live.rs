//! An instance in this process, and the steps of the engine's calls.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fabric::netns;

use super::archives::FileSystem;
use super::cgroup::Kills;
use super::container::Container;
use super::criu::{Criu, Launch};
use super::fork_advice::NotCopied;
use super::link::Link;
use super::page_server::{self, Failure};
use super::paging::{Pager, PagerId};
use super::record::{Record, Records};
use super::rpc::Request;
use super::task::{self, Stat, Task, TaskId};
use super::turn::Turn;
use super::{
    Config, Site, archives, check, images, interrupted, launch, mount_flags, orphans, own_files,
    process_timers, scheduling, socket_options, sockets, timers,
};
use crate::engine::{Phases, Running, State, Watch};
use crate::error::{Doing, Error, Result};
use crate::instance::{InstanceSpec, ResourceLimit};
use crate::memory::MemorySink;
use crate::report::Shortage;
use crate::stopwatch::Stopwatch;
use crate::{guard, init};

/// How long CRIU may take to start, which takes hundredths of a second.
const ARMED: Duration = Duration::from_secs(10);
/// How long killed processes may take to end.
const KILLED: Duration = Duration::from_secs(10);
/// How long a CRIU without its node may take to undo its work.
const ORPHANED: Duration = Duration::from_secs(5);
/// How long it takes at most until what was lost is sent again, once, on a network that is not slow.
const SENT_AGAIN: Duration = Duration::from_millis(500);
/// How long a stopped tree is kept waiting for the peers of connections that it has closed: they may acknowledge an end after
/// 0.2 s.
const ACKNOWLEDGED: Duration = Duration::from_millis(250);

/// How long a process may wait for a processor that is to stop: as long as many others are busy.
const COMES_TO_A_STOP: Duration = Duration::from_secs(2);

/// An instance and what of it this process holds.
pub struct Live {
    /// What is on disk too.
    pub record: Record,
    /// Its network namespace, until the instance is gone.
    pub namespace: OwnedFd,
    link: Link,
    /// Its file systems, if it is a container.
    container: Option<Container>,
    /// Its first process, if it has any.
    pub first: Option<Task>,
    /// The CRIU that is armed, or holds the restored tree.
    criu: Option<Criu>,
    /// The right to dump, until it is dumped.
    pub turn: Option<Turn>,
    /// Who gives it what memory it lacks, until nothing is missing.
    pub pager: Option<Pager>,
}

impl Live {
    /// Makes a namespace for an instance, with its link cut.
    pub fn prepare(spec: InstanceSpec, images: &Path, site: &Site) -> Result<Self> {
        let record = Record {
            version: Record::VERSION,
            spec,
            state: State::Prepared,
            releasing: false,
            first: None,
            criu: None,
            images: images.to_owned(),
            paused: Vec::new(),
            reuse: sockets::Reuse::new(),
            binds: None,
            lazily: false,
            pager: None,
        };
        let Place { namespace, link, container } = Place::make(&record.spec, site)?;
        Ok(Self { record, namespace, link, container, first: None, criu: None, turn: None, pager: None })
    }

    /// Has the container made, if it is one and has none.
    pub fn make_container(&mut self, site: &Site) -> Result<()> {
        let (spec, present) = (&self.record.spec, &mut self.container);
        if let Some(wanted) = spec.container().filter(|_| !present.as_ref().is_some_and(Container::is_made)) {
            let made = site.containers()?.create(&spec.name, wanted, self.namespace.as_fd())?;
            self.record.binds = Some(made.binds().to_vec());
            *present = Some(made);
        }
        Ok(())
    }

    /// Refuses a call that another state wants.
    pub fn must_be(&self, state: State) -> Result<()> {
        if self.record.state == state {
            return Ok(());
        }
        let (name, is) = (self.record.spec.name.clone(), word(self.record.state));
        Err(Error::State { name, is, must: word(state) })
    }

    /// The first process, if it has not ended.
    pub fn first(&self) -> Result<&Task> {
        let alive = self.first.as_ref().filter(|task| !task.ended_within(Duration::ZERO));
        let name = &self.record.spec.name;
        alive.ok_or_else(|| Error::State { name: name.clone(), is: "ended", must: "alive" })
    }

    /// Chooses another directory for the images if they do not fit where they were to be, with so many bytes of what the instance
    /// has: it was chosen before that had anything.
    pub fn place_images(&mut self, directories: &[PathBuf], bytes: u64) -> Result<()> {
        if self.is_armed() || images::fit(&self.record.images, bytes)? {
            return Ok(());
        }
        let place = images::make_room(directories, &self.record.spec.name, bytes)?;
        images::delete(&std::mem::replace(&mut self.record.images, place))
    }

    /// Starts CRIU for what comes next, up to the point where it would touch the instance or needs
    /// its images.
    pub fn arm(&mut self, config: &Config, site: &Site, records: &Records) -> Result<()> {
        let criu = match self.record.state {
            State::Running => self.arm_dump(config)?,
            State::Prepared => {
                self.make_container(site)?;
                let stage = images::stage(&self.record.images)?;
                self.start_pager(config, &stage)?;
                self.launch_restore(config, &stage)?
            }
            _ => return Ok(()),
        };
        self.record.criu = Some(criu.id());
        if let Err(error) = records.save(&self.record) {
            self.record.criu = None;
            return Err(error);
        }
        self.criu = Some(criu);
        Ok(())
    }

    fn arm_dump(&self, config: &Config) -> Result<Criu> {
        self.must_be_whole()?;
        let pid = self.first()?.id().pid;
        images::clear(&self.record.images)?;
        guard::clean(Path::new(init::DIRECTORY));
        let mut criu = self.launch(&config.criu, Request::Dump { pid }, &self.record.images)?;
        criu.run_to(Some("pre-dump"), &Watch::QUIET, Instant::now() + ARMED)?;
        criu.guard(&config.init)?;
        Ok(criu)
    }

    /// Ends the armed CRIU, if there is one, and gives the turn back.
    pub fn disarm(&mut self, records: &Records) -> Result<()> {
        self.turn = None;
        if self.criu.take().is_none() {
            return Ok(());
        }
        self.record.criu = None;
        records.save(&self.record)
    }

    /// Whether CRIU waits.
    pub fn is_armed(&self) -> bool {
        self.criu.is_some()
    }

    /// CRIU tries out the loopback, on which a try before this may have held everything back.
    fn launch_restore(&mut self, config: &Config, images: &Path) -> Result<Criu> {
        self.link.let_through().doing(|| "letting held packets through".into())?;
        if let Some(container) = &mut self.container {
            container.make_way();
        }
        self.launch(&config.criu, Request::Restore { lazily: self.record.lazily }, images)
    }

    /// Starts a pager for whom CRIU restores from `images`, if that is to be incomplete.
    fn start_pager(&mut self, config: &Config, images: &Path) -> Result<()> {
        self.end_pager();
        if self.record.lazily {
            let started = Pager::start(&config.init, images);
            let pager = started.doing(|| format!("starting the pager of `{}`", self.record.spec.name))?;
            self.record.pager = Some(pager.id());
            self.pager = Some(pager);
        }
        Ok(())
    }

    /// Tells the pager what is not among the images.
    fn brief_pager(&self) -> Result<()> {
        let told = self.pager.iter().try_for_each(|pager| pager.owe(&self.record.images));
        told.doing(|| {
            format!("sending the list of missing pages to the pager of `{}`", self.record.spec.name)
        })
    }

    fn unpaged(&self) -> Error {
        Error::unusable(format!("the pager of `{}` has ended", self.record.spec.name), "move it again")
    }

    fn end_pager(&mut self) {
        self.record.pager = None;
        if let Some(pager) = self.pager.take() {
            pager.end();
        }
    }

    /// Refuses what cannot be done without all memory.
    pub fn must_be_whole(&self) -> Result<()> {
        if self.pager.is_none() {
            return Ok(());
        }
        let what = format!("a part of the memory of `{}` is still on its old host", self.record.spec.name);
        Err(Error::unusable(what, "wait until it has been fetched"))
    }

    /// Nothing of its memory is missing any more.
    pub fn be_whole(&mut self, records: &Records) -> Result<()> {
        self.record.pager = None;
        records.save(&self.record)?;
        let dismissed = self.pager.take().map_or(Ok(()), Pager::dismiss);
        dismissed.doing(|| format!("dismissing the pager of `{}`", self.record.spec.name))
    }

    fn launch(&self, program: &Path, request: Request, images: &Path) -> Result<Criu> {
        Criu::start(&Launch {
            program,
            namespace: self.namespace.as_fd(),
            images,
            name: &self.record.spec.name,
            container: self.container.as_ref(),
            request,
        })
    }

    /// Has the armed CRIU stop and dump the tree, with its link cut, and its pages told to `memory`. What fails is undone.
    pub fn freeze(
        &mut self,
        memory: &dyn MemorySink,
        records: &Records,
        watch: &Watch<'_>,
        clock: &mut Stopwatch<'_>,
    ) -> Result<()> {
        let tree = self.tree()?;
        self.record.reuse = sockets::remember(&tree).doing(|| "inspecting the sockets".into())?;
        self.record.paused = tree.into_iter().filter(|pid| is_stopped(*pid)).collect();
        clock.lap("look");
        let dumped = self.dump(memory, records, watch, clock);
        self.criu = None;
        clock.lap("end of CRIU");
        match (&dumped, self.first()) {
            (Err(_), Ok(_)) => self.run_on(records)?,
            // It ended by itself, or with the guard of its CRIU.
            (Err(_), Err(_)) => self.record.state = State::Ended,
            (Ok(()), _) => {}
        }
        dumped
    }

    /// Waits until what the last attempt has lost of the connections that the running tree has closed is sent again: it
    /// would pin at the next attempt too.
    pub fn settle(&self) -> Result<()> {
        let first = self.first()?.id().pid;
        let sent = orphans::have_sent_all(first, SENT_AGAIN, || false);
        sent.doing(|| format!("inspecting the connections of `{}`", self.record.spec.name)).map(drop)
    }

    fn dump(
        &mut self,
        memory: &dyn MemorySink,
        records: &Records,
        watch: &Watch<'_>,
        clock: &mut Stopwatch<'_>,
    ) -> Result<()> {
        let begin = Instant::now();
        let end = begin + watch.timeout;
        let first = self.first()?.id().pid;
        let name = &self.record.spec.name;
        let criu = self.criu.as_mut().ok_or_else(|| Error::Unknown(name.clone()))?;
        criu.answer(true)?;
        criu.run_to(Some(Criu::ALL_STOPPED), watch, end)?;
        clock.lap("stop");
        cut(&self.link, &self.record.spec, self.container.as_ref(), first)?;
        clock.lap("cut");
        let container = self.container.as_ref();
        let layer = container.map(|container| container.begin_to_carry(&self.record.images)).transpose()?;
        let not_copied = if memory.leaves_pages() {
            let found = task::tree(first).and_then(|tree| NotCopied::of(&tree));
            found.doing(|| format!("inspecting the memory of `{name}`"))?
        } else {
            NotCopied::default()
        };
        pass_pages(criu, &self.record.images, (memory, &not_copied), watch, end).map_err(
            |error| match error {
                Error::NotTaken(_) if images::is_full(&self.record.images) => {
                    images::no_room(name, &self.record.images)
                }
                error => error,
            },
        )?;
        clock.lap("dump");
        let tree = task::tree(first).doing(|| format!("listing the processes below {first}"))?;
        let images = &self.record.images;
        match layer {
            Some(layer) => layer.succeed(watch)?,
            None => own_files::carry(images, &tree).doing(|| format!("dumping `{name}`"))?,
        }
        timers::carry(images, &tree).doing(|| format!("dumping `{name}`"))?;
        if self.container.is_some() {
            mount_flags::carry(images, first).doing(|| format!("noting the mounts of `{name}`"))?;
        }
        let late = process_timers::carry(images, &tree).doing(|| format!("dumping `{name}`"))?;
        socket_options::carry(images, &tree).doing(|| format!("noting the sockets of `{name}`"))?;
        scheduling::carry(images, &tree).doing(|| format!("noting the scheduling of `{name}`"))?;
        // On disk before CRIU lets go: a node that starts again must not take the tree for one that
        // runs. Should CRIU not hear the answer, the tree runs on, and that is seen.
        self.record.state = State::Stopped;
        records.save(&self.record)?;
        criu.answer(true)?;
        criu.run_to(None, watch, end)?;
        clock.lap("leave");
        if let Some(pid) = late.carry().doing(|| format!("dumping `{name}`"))? {
            return Err(Error::Pinned { name: name.clone(), blocker: process_timers::blocker(pid) });
        }
        interrupted::carry(images, &tree, begin.elapsed()).doing(|| format!("dumping `{name}`"))
    }

    /// Lets a stopped tree run again here, except for what was paused before, with its link.
    pub fn run_on(&mut self, records: &Records) -> Result<()> {
        self.link.mend().doing(|| "mending the link".into())?;
        if self.first().is_ok() {
            let tree = self.tree()?;
            let reuse = &self.record.reuse;
            sockets::leave_repair(&tree, reuse).doing(|| "reviving TCP connections".into())?;
            wake(&tree, &self.record.paused);
        }
        self.record.state = State::Running;
        // That there is no room for a record holds nothing up: whoever finds an older one sees that the tree runs.
        let _older = records.save(&self.record);
        Ok(())
    }

    /// Starts the command, and returns the first process' number. A short command may have ended by now.
    pub fn start(&mut self, init: &[OsString], descriptors: ResourceLimit) -> Result<i32> {
        let spec = &self.record.spec;
        let pid = match (&mut self.container, spec.program()) {
            (Some(container), _) => container.start()?,
            (None, Some(program)) => {
                let limits = [&[descriptors], &program.limits[..]].concat();
                launch::start(program, init, self.namespace.as_fd(), limits)
                    .doing(|| format!("starting `{}` in {}", spec.name, program.directory.display()))?
            }
            (None, None) => return Err(Error::Unknown(spec.name.clone())),
        };
        self.first = TaskId::of(pid).ok().and_then(Task::open);
        self.record.first = self.first.as_ref().map(Task::id);
        Ok(pid)
    }

    /// What a look for what pins it goes by.
    pub fn subject(&self) -> Result<check::Subject<'_>> {
        let first = self.first()?.id().pid;
        Ok(check::Subject { first, network: &self.record.spec.network, container: self.container.as_ref() })
    }

    /// Its first process, and what is in memory beside that of processes, if `memory` takes it.
    pub fn to_look_at(&self, memory: &dyn MemorySink) -> Result<(i32, Vec<FileSystem>)> {
        let first = self.first()?.id().pid;
        let container = self.container.as_ref().filter(|_| memory.takes_archives());
        let file_systems = container.map(|container| archives::worth_a_look(container, first)).transpose();
        Ok((
            first,
            file_systems.doing(|| format!("reading the mounts of process {first}"))?.unwrap_or_default(),
        ))
    }

    /// Its file systems, if it is a container.
    pub fn container(&self) -> Option<&Container> {
        self.container.as_ref()
    }

    /// Brings up the link of an instance that was just started. A short command may have ended by now.
    pub fn begin(&mut self, records: &Records) -> Result<()> {
        self.link.mend().doing(|| "mending the link".into())?;
        self.record.state = State::Running;
        records.save(&self.record)
    }

    /// Has CRIU restore the tree and hold it before its last step. What fails is undone.
    pub fn restore(
        &mut self,
        config: &Config,
        site: &Site,
        records: &Records,
        watch: &Watch<'_>,
    ) -> Result<Phases> {
        let mut clock = Stopwatch::start(watch);
        self.make_container(site)?;
        let mut criu = self.begin_restore(config, watch)?;
        self.record.criu = Some(criu.id());
        let before = self.container.as_ref().map(Container::shortage);
        let pager = self.pager.as_ref().map(Pager::task).transpose();
        let pager = pager.doing(|| format!("watching the pager of `{}`", self.record.spec.name))?;
        let is_paged = || pager.as_ref().is_none_or(|pager| !pager.ended_within(Duration::ZERO));
        // CRIU waits for whoever was killed.
        let kills = self.container.as_ref().and_then(|container| Kills::of(&container.cgroup()));
        let is_short = || kills.as_ref().is_some_and(Kills::any);
        let is_over = || (watch.cancelled)() || !is_paged() || is_short();
        let watched = Watch { cancelled: &is_over, ..*watch };
        let restored = self.restore_with(&mut criu, records, &watched, &mut clock);
        let restored = if is_paged() { restored } else { Err(self.unpaged()) };
        let restored = restored.map_err(|error| self.or_shortage(error, before));
        if restored.is_ok() {
            self.criu = Some(criu);
        } else {
            drop(criu);
            self.drop_held();
            images::unstage(&self.record.images)?;
        }
        records.save(&self.record)?;
        clock.lap("record");
        restored.map(|()| clock.stop())
    }

    /// CRIU knows only that somebody was killed, or not even that.
    fn or_shortage(&self, error: Error, before: Option<Shortage>) -> Error {
        let may_be = matches!(error, Error::Criu { .. } | Error::Cancelled | Error::TimedOut { .. });
        let container = self.container.as_ref().filter(|_| may_be);
        let shortage = container.zip(before).and_then(|(container, before)| container.too_large(before));
        shortage.unwrap_or(error)
    }

    /// The armed CRIU, if there is one, with the images.
    fn begin_restore(&mut self, config: &Config, watch: &Watch<'_>) -> Result<Criu> {
        let images = self.record.images.clone();
        if let Some(container) = &mut self.container {
            container.bring_back(&images, watch)?;
        }
        let images = images.as_path();
        let Some(mut armed) = self.criu.take() else {
            self.start_pager(config, images)?;
            self.brief_pager()?;
            return self.launch_restore(config, images);
        };
        self.brief_pager()?;
        let stage = images::show(images)?;
        armed.feed(&images.join(images::INVENTORY), &stage.join(images::INVENTORY), watch)?;
        Ok(armed)
    }

    fn restore_with(
        &mut self,
        criu: &mut Criu,
        records: &Records,
        watch: &Watch<'_>,
        clock: &mut Stopwatch<'_>,
    ) -> Result<()> {
        let end = Instant::now() + watch.timeout;
        criu.run_to(Some("pre-restore"), watch, end)?;
        clock.lap("start of CRIU");
        self.link.hold_back().doing(|| "holding packets back".into())?;
        criu.answer(true)?;
        criu.run_to(Some("setup-namespaces"), watch, end)?;
        // On disk before it is more than an empty process: whoever comes after a crash ends it.
        self.first = criu.root().and_then(|pid| TaskId::of(pid).ok()).and_then(Task::open);
        self.record.first = self.first.as_ref().map(Task::id);
        records.save(&self.record)?;
        if let Some((pager, first)) = self.pager.as_ref().zip(self.first.as_ref()) {
            let named = pager.name_root(first);
            named.doing(|| format!("naming the instance to the pager of `{}`", self.record.spec.name))?;
        }
        if let Some((container, first)) = self.container.as_mut().zip(self.record.first) {
            container.take_in(first.pid)?;
        }
        criu.answer(true)?;
        criu.run_to(Some("post-restore"), watch, end)?;
        let name = &self.record.spec.name;
        let (images, tree) = (&self.record.images, self.tree()?);
        socket_options::bring_back(images, &tree).doing(|| format!("restoring the sockets of `{name}`"))?;
        scheduling::bring_back(images, &tree).doing(|| format!("restoring the scheduling of `{name}`"))?;
        if self.container.is_some() {
            let first = self.first()?.id().pid;
            mount_flags::bring_back(images, first).doing(|| format!("restoring the mounts of `{name}`"))?;
        }
        self.record.state = State::Held;
        clock.lap("restore");
        Ok(())
    }

    /// Lets the held tree go, with its link, and returns its first process. If that cannot be noted before, the tree
    /// stays held.
    ///
    /// Up to CRIU's hook `pre-resume` the link is cut and nobody listens for the tree, so one that does
    /// not get there is killed, and its images are kept for another try: in another namespace, since what
    /// its connections had to say when they were closed still waits in this one. At that hook each thread has
    /// what it goes on with, and would go on if CRIU died. From there on nothing is tried again: the tree
    /// runs, or it is lost.
    pub fn release(&mut self, site: &Site, records: &Records, watch: &Watch<'_>) -> Result<Running> {
        let mut clock = Stopwatch::start(watch);
        let running = Record { state: State::Running, ..self.record.clone() };
        // Once the tree is complete there may be no more room.
        let running = records.stage(&running)?;
        records.save(&Record { releasing: true, ..self.record.clone() })?;
        let complete = self.complete().and_then(|()| self.link.mend().doing(|| "mending the link".into()));
        if let Err(error) = complete {
            self.drop_held();
            Place { namespace: self.namespace, link: self.link, container: self.container } =
                Place::make(&self.record.spec, site)?;
            // Whoever finds the older record sees that its first process is gone.
            let _older = records.save(&self.record);
            return Err(error);
        }
        clock.lap("complete");
        self.record.state = State::Running;
        // The older record says that it may run.
        let _older = running.commit();
        let let_go = self.let_go();
        clock.lap("resume");
        let first = self.first().map(|first| first.id().pid);
        match first {
            Ok(pid) => Ok(Running { pid: Some(pid), phases: clock.stop() }),
            Err(_) => Err(self.lost(let_go)),
        }
    }

    /// Has CRIU make the held tree complete, up to its last hook.
    fn complete(&mut self) -> Result<()> {
        let name = &self.record.spec.name;
        let criu = self.criu.as_mut().ok_or_else(|| Error::Unknown(name.clone()))?;
        criu.answer(true)?;
        criu.run_to(Some("pre-resume"), &Watch::QUIET, Instant::now() + Watch::QUIET.timeout)?;
        self.container.as_mut().map_or(Ok(()), Container::limit_processes)?;
        self.first().map(drop)
    }

    fn let_go(&mut self) -> Result<()> {
        // They left repair mode while the link was cut.
        let probed = self.tree().map(|tree| sockets::probe(&tree));
        let Some(mut criu) = self.criu.take() else { return Ok(()) };
        criu.answer(true)?;
        criu.run_to(None, &Watch::QUIET, Instant::now() + Watch::QUIET.timeout)?;
        probed?.doing(|| "probing the peers of TCP connections".into())
    }

    fn lost(&mut self, let_go: Result<()>) -> Error {
        self.record.state = State::Ended;
        let reason = let_go.err().map_or_else(|| "its processes are gone".to_owned(), |why| why.to_string());
        Error::Lost { name: self.record.spec.name.clone(), reason }
    }

    /// Deletes the images of an instance that runs, soon.
    pub fn drop_images(&self) -> Result<()> {
        images::put_aside(&self.record.images)?;
        images::unstage(&self.record.images)
    }

    /// Kills what is held, and keeps the images for another try.
    pub fn drop_held(&mut self) {
        self.criu = None;
        self.kill();
        self.end_pager();
        self.record.first = None;
        self.record.criu = None;
        self.record.state = State::Prepared;
    }

    /// Kills the instance: with its first process the kernel kills all others.
    fn kill(&mut self) {
        if let Some(first) = self.first.take() {
            let _gone = first.signal(libc::SIGKILL);
            first.ended_within(KILLED);
        }
    }

    /// Kills and deletes everything but the record.
    pub fn remove(&mut self) -> Result<()> {
        self.criu = None;
        self.kill();
        self.end_pager();
        self.link.delete().doing(|| "deleting the link".into())?;
        if let Some(container) = &mut self.container {
            container.remove()?;
        }
        images::unstage(&self.record.images)?;
        images::delete(&self.record.images)
    }

    fn tree(&self) -> Result<Vec<i32>> {
        let pid = self.first()?.id().pid;
        task::tree(pid).doing(|| format!("listing the processes below {pid}"))
    }

    /// Takes an instance up again from its record, once its CRIU is gone.
    pub fn recover(mut record: Record, records: &Records, site: &Site) -> Result<Self> {
        outlive(record.criu.take());
        let first = record.first.take().and_then(Task::open);
        let (first, pager) = with_pager(first, record.pager.take());
        let state = match (record.state, &first) {
            (State::Running, Some(_)) => State::Running,
            (State::Stopped, Some(task)) if comes_to_a_stop(task.id().pid) => State::Stopped,
            (State::Stopped, Some(_)) => State::Running,
            (State::Held, Some(_)) if record.releasing => State::Running,
            (State::Held | State::Prepared, _) => State::Prepared,
            (State::Running | State::Stopped | State::Ended, _) => State::Ended,
        };
        let Place { namespace, link, container } = match (&first, state) {
            (Some(task), State::Running | State::Stopped) => Place::find(task, &record, site)?,
            _ => Place::make(&record.spec, site)?,
        };
        record.first = first.as_ref().map(Task::id);
        record.pager = pager.as_ref().map(Pager::id);
        (record.state, record.releasing) = (state, false);
        let mut live = Self { record, namespace, link, container, first, criu: None, turn: None, pager };
        match state {
            State::Prepared => live.drop_held(),
            // Nobody decided to stop it: a crash in the middle of a dump did.
            State::Running => live.run_on(records)?,
            State::Ended => live.end_pager(),
            _ => {}
        }
        // Of the older record the same would become again.
        let _older = records.save(&live.record);
        Ok(live)
    }
}

/// Cuts the link of the stopped tree below `first`, which nothing pins then: at once, before anybody connects to it. What it
/// has closed and not sent yet goes through an open link.
fn cut(link: &Link, spec: &InstanceSpec, container: Option<&Container>, first: i32) -> Result<()> {
    let InstanceSpec { name, network, .. } = spec;
    let stopped = check::Subject { first, network, container };
    let must_be_free = || match check::inspect_stopped(&stopped)?.into_iter().next() {
        Some(blocker) => Err(Error::Pinned { name: name.clone(), blocker }),
        None => Ok(()),
    };
    let have_sent_all = |patience| {
        let sent = orphans::have_sent_all(first, patience, || must_be_free().is_err());
        sent.doing(|| format!("inspecting the connections of `{name}`"))
    };
    link.cut().doing(|| "cutting the link".into())?;
    must_be_free()?;
    if have_sent_all(Duration::ZERO)? {
        return Ok(());
    }
    link.mend().doing(|| "mending the link".into())?;
    let sent = have_sent_all(ACKNOWLEDGED)?;
    link.cut().doing(|| "cutting the link".into())?;
    must_be_free()?;
    if sent { Ok(()) } else { Err(Error::Pinned { name: name.clone(), blocker: orphans::blocker() }) }
}

/// Lets CRIU go on until the tree is dumped, and tells `memory` the pages meanwhile, and then the archives in `images`, if it takes them.
fn pass_pages(
    criu: &mut Criu,
    images: &Path,
    (memory, not_copied): (&dyn MemorySink, &NotCopied),
    watch: &Watch<'_>,
    end: Instant,
) -> Result<()> {
    memory.begin().map_err(Error::NotTaken)?;
    let pages = criu.take_pages().ok_or(io::ErrorKind::NotConnected);
    let pages = pages.map_err(io::Error::from).doing(|| "reading the pages of the dump".into())?;
    let near = pages.try_clone().doing(|| "reading the pages of the dump".into())?;
    let (dumped, served) = thread::scope(|scope| {
        let serving = scope.spawn(|| page_server::serve(pages, memory, not_copied));
        let dumped = criu.answer(true).and_then(|()| criu.run_to(Some("post-dump"), watch, end));
        if dumped.is_err() {
            // Whoever has CRIU's end open still.
            let _closed = near.shutdown(Shutdown::Both);
        }
        (dumped, serving.join().unwrap_or_else(|_| Err(Failure::Criu(io::ErrorKind::Other.into()))))
    });
    match (dumped, served) {
        (Err(Error::Cancelled), _) => Err(Error::Cancelled),
        (_, Err(Failure::Sink(error))) => Err(Error::NotTaken(error)),
        (Err(error), _) => Err(error),
        (_, Err(Failure::Criu(error))) => Err(error).doing(|| "reading the pages of the dump".into()),
        (Ok(()), Ok(())) => {
            if memory.takes_archives() {
                archives::tell(images, memory).map_err(Error::NotTaken)?;
            }
            memory.end().map_err(Error::NotTaken)
        }
    }
}

/// Waits for a CRIU whose node died to undo its work, or kills it.
fn outlive(criu: Option<TaskId>) {
    if let Some(orphan) = criu.and_then(Task::open)
        && !orphan.ended_within(ORPHANED)
    {
        let _gone = orphan.signal(libc::SIGKILL);
        orphan.ended_within(KILLED);
    }
}

/// The first process of an instance that may have a pager, and that. If the pager has ended, what is missing will never come, and
/// the instance has been ended with it, or is now.
fn with_pager(first: Option<Task>, pager: Option<PagerId>) -> (Option<Task>, Option<Pager>) {
    let Some(id) = pager else { return (first, None) };
    match (first, Pager::adopt(id)) {
        (Some(first), None) => {
            let _gone = first.signal(libc::SIGKILL);
            first.ended_within(KILLED);
            (None, None)
        }
        found => found,
    }
}

/// What an instance has before it has processes.
struct Place {
    namespace: OwnedFd,
    link: Link,
    container: Option<Container>,
}

impl Place {
    fn make(spec: &InstanceSpec, site: &Site) -> Result<Self> {
        let container = Self::container(spec, site)?;
        let namespace = netns::create().doing(|| "making a network namespace".into())?;
        let kind = spec.network_kind;
        let link = Link::create(namespace.as_fd(), spec, site.wiring(kind)?)
            .doing(|| format!("making the link of `{}` to the {kind}", spec.name))?;
        Ok(Self { namespace, link, container })
    }

    /// What is yet to be made is made by [`Live::make_container`].
    fn container(spec: &InstanceSpec, site: &Site) -> Result<Option<Container>> {
        spec.container().map(|wanted| site.containers()?.find(&spec.name, wanted)).transpose()
    }

    /// That of an instance which has them.
    fn find(task: &Task, record: &Record, site: &Site) -> Result<Self> {
        let spec = &record.spec;
        let path = format!("/proc/{}/ns/net", task.id().pid);
        let namespace: OwnedFd = File::open(&path).doing(|| format!("opening {path}"))?.into();
        let link = Link::find(namespace.as_fd(), spec, site.wiring(spec.network_kind)?);
        let link = link.doing(|| format!("finding the link of `{}`", spec.name))?;
        let mut container = Self::container(spec, site)?;
        if let Some((container, binds)) = container.as_mut().zip(record.binds.as_ref()) {
            container.was_made_with(binds.clone());
        }
        Ok(Self { namespace, link, container })
    }
}

/// Children before their parents: a shell that waits for stopped children shall see none. Also those
/// that do not look stopped: a CRIU that was killed may have told them to stop a moment ago.
fn wake(tree: &[i32], paused: &[i32]) {
    for &pid in tree.iter().rev().filter(|pid| !paused.contains(pid)) {
        if let Some(task) = TaskId::of(pid).ok().and_then(Task::open) {
            let _gone: io::Result<()> = task.signal(libc::SIGCONT);
        }
    }
}

fn is_stopped(pid: i32) -> bool {
    Stat::read(pid).is_ok_and(|stat| stat.state == 'T')
}

/// Whether a process that CRIU may have left stopped is. One that is to stop executes nothing more, but is seen to stand still only when
/// it has had a processor once more.
fn comes_to_a_stop(pid: i32) -> bool {
    let end = Instant::now() + COMES_TO_A_STOP;
    loop {
        match is_stopped(pid) {
            false if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
            is_stopped => return is_stopped,
        }
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Prepared => "prepared",
        State::Running => "running",
        State::Stopped => "stopped",
        State::Held => "held",
        State::Ended => "ended",
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_is_about_to_stop_counts_as_stopped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let runs_on = comes_to_a_stop(pid);
        let stopped = thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(50));
                // SAFETY: no memory is passed; the process is our own.
                unsafe { libc::kill(pid, libc::SIGSTOP) }
            });
            comes_to_a_stop(pid)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((runs_on, stopped), (false, true));
    }
}
