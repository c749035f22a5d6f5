//! Instances that run before all their memory is there.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::thread;

use engine_criu::pager::wire::{Fetched, Message};
use engine_criu::{MemoryImages, MemorySink, Owner, PAGE, State, Watch};
use fabric::seqpacket;
use instance::InstanceSpec;

use crate::lab::{Host, Lab, Node, Output, PATIENCE, signal, workload};

/// Memory of a dump, of which only every second run is taken of what can come later.
struct Halves(Mutex<Taken>);

struct Taken {
    images: MemoryImages,
    left: BTreeMap<Owner, Vec<u64>>,
    leaves_all: bool,
    is_odd: bool,
}

impl Halves {
    fn new(host: &Host, spec: &InstanceSpec, leaves_all: bool) -> Self {
        let directory = host.call(|engine| engine.image_directory(&spec.name)).unwrap();
        let images = MemoryImages::new(&directory);
        Self(Mutex::new(Taken { images, left: BTreeMap::new(), leaves_all, is_odd: false }))
    }

    /// The images are complete; how many pages are not among them.
    fn finish(self) -> usize {
        let Taken { mut images, left, .. } = self.0.into_inner().unwrap();
        let pages = left.values().map(Vec::len).sum();
        for (owner, addresses) in left {
            addresses.into_iter().for_each(|address| images.leave(owner, address, 1).unwrap());
        }
        images.finish().unwrap();
        pages
    }
}

impl MemorySink for Halves {
    fn begin(&self) -> io::Result<()> {
        let mut taken = self.0.lock().unwrap();
        taken.left.clear();
        taken.images.begin();
        Ok(())
    }

    fn open(&self, owner: Owner) -> io::Result<()> {
        self.0.lock().unwrap().images.open(owner);
        Ok(())
    }

    fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        let images = &mut self.0.lock().unwrap().images;
        images.keep(owner, address, (pages.len() / PAGE) as u64)?;
        images.write(owner, address, pages)
    }

    fn leaves_pages(&self) -> bool {
        true
    }

    fn take_later(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        let taken = &mut *self.0.lock().unwrap();
        taken.images.keep(owner, address, (pages.len() / PAGE) as u64)?;
        for (number, page) in pages.chunks(PAGE).enumerate() {
            let address = address + (number * PAGE) as u64;
            taken.is_odd = !taken.is_odd;
            if taken.leaves_all || taken.is_odd {
                taken.left.entry(owner).or_default().push(address);
            } else {
                taken.images.write(owner, address, page)?;
            }
        }
        Ok(())
    }

    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}

/// An instance that runs, and of which memory is at `from`. Its first process will connect there.
struct Moved<'a> {
    spec: &'a InstanceSpec,
    from: &'a Host,
    left: usize,
    listener: OwnedFd,
}

/// So many answers are enough for what CRIU itself touches, and by far not for all.
const FEW: usize = 100;

/// Moves a running instance, and gives CRIU what it needs of its memory for that.
fn leave<'a>(
    mut node: Node,
    spec: &'a InstanceSpec,
    (from, to): (&'a Host, &Host),
    output: &mut Output,
    leaves_all: bool,
) -> Moved<'a> {
    let name = &spec.name;
    let report = from.call(|engine| engine.check(name, false)).unwrap();
    assert_eq!(report.blockers, []);
    to.call(|engine| {
        engine.prepare(spec, report.needs.memory).unwrap();
        engine.expect_postcopy(name).unwrap();
        engine.arm(name).unwrap();
    });
    node.read(output, |output| output.lines() > 2);
    node.suspend(output);
    let memory = Halves::new(to, spec, leaves_all);
    let dump = from.call(|engine| engine.suspend(name, Some(&memory), &Watch::QUIET)).unwrap();
    let left = memory.finish();
    let source = from.call(|engine| engine.image_directory(name)).unwrap();
    let target = to.call(|engine| engine.image_directory(name)).unwrap();
    for image in dump.images {
        fs::copy(source.join(&image.name), target.join(&image.name)).unwrap();
    }
    let moved = Moved { spec, from, left, listener: to.listen(name) };
    let (stop, stopped) = seqpacket::pair().unwrap();
    thread::scope(|scope| {
        // While it restores, the engine answers nothing else of the instance.
        let pager = pager_of(to, spec);
        scope.spawn(|| moved.serve(pager, Some((stopped, FEW))));
        to.call(|engine| engine.restore(name, &Watch::QUIET)).unwrap();
        let released = to.call(|engine| engine.release(name, &Watch::QUIET));
        drop(stop);
        released.unwrap();
    });
    // It cannot leave.
    assert!(to.call(|engine| engine.check(name, false)).is_err());
    moved
}

fn pager_of(host: &Host, spec: &InstanceSpec) -> OwnedFd {
    host.call(|engine| engine.pager(&spec.name)).unwrap().expect("a pager")
}

impl Moved<'_> {
    /// Gives what is asked for until nothing is missing; or, so many times, until the other end of a connection is closed.
    fn serve(&self, pager: OwnedFd, limit: Option<(OwnedFd, usize)>) -> Option<Fetched> {
        let (stopped, mut left) = limit.map_or((None, usize::MAX), |(stopped, most)| (Some(stopped), most));
        let memory = self.from.call(|engine| engine.left_behind(&self.spec.name)).unwrap();
        seqpacket::send(pager.as_fd(), &Message::Serve.encode(), &[]).unwrap();
        loop {
            if !wait(&pager, stopped.as_ref()) {
                return None;
            }
            let packet = seqpacket::receive(pager.as_fd()).unwrap();
            match Message::decode(&packet.bytes).unwrap().0 {
                Message::Want { pid, address, pages, .. } if left > 0 => {
                    left -= 1;
                    let mut data = vec![0; pages as usize * PAGE];
                    memory.read(pid, address, &mut data).unwrap();
                    let header = Message::Pages { pid, address, pages }.encode();
                    seqpacket::send(pager.as_fd(), &[&header[..], &data].concat(), &[]).unwrap();
                }
                Message::Whole(fetched) => return Some(fetched),
                _ => {}
            }
        }
    }

    /// Serves until nothing is missing, and ends what is left at the source.
    fn complete(self, to: &Host) -> Fetched {
        let fetched = self.serve(pager_of(to, self.spec), None).expect("it ends when all is there");
        to.call(|engine| engine.finish_postcopy(&self.spec.name)).unwrap();
        assert!(to.call(|engine| engine.pager(&self.spec.name)).unwrap().is_none());
        self.from.call(|engine| engine.destroy(&self.spec.name)).unwrap();
        println!("{} pages were left behind: {fetched:?}", self.left);
        fetched
    }
}

/// Waits for a packet; `false` if `stopped` came first.
fn wait(socket: &OwnedFd, stopped: Option<&OwnedFd>) -> bool {
    use std::os::fd::AsRawFd;
    let interest =
        |socket: &OwnedFd| libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = [Some(socket), stopped].into_iter().flatten().map(interest).collect();
    // SAFETY: `polls` is live and as long as said.
    let ready = unsafe {
        libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, PATIENCE.as_millis() as libc::c_int)
    };
    assert!(ready > 0, "nothing came within {PATIENCE:?}");
    polls[1..].iter().all(|poll| poll.revents == 0)
}

/// Reads until so many more lines have come. Each is written after many looks at the memory.
fn read_more(node: &mut Node, output: &mut Output, more: usize) {
    let before = output.lines();
    node.read(output, |output| output.lines() > before + more);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

fn started(host: &Host, name: &str, number: u8) -> (InstanceSpec, Node, Output) {
    let spec = workload(name, number, &["change", "32"]);
    let node = host.start(&spec);
    (spec, node, Output::default())
}

#[test]
fn constantly_changing_memory_is_correct_after_a_post_copy() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let (spec, mut node, mut output) = started(&a, "changing", 1);
    for (from, to) in [(&a, &b), (&b, &a), (&a, &b)] {
        let leaves_all = std::ptr::eq(from, &a);
        let moved = leave(node, &spec, (from, to), &mut output, leaves_all);
        assert!(moved.left > 15 * FEW, "{}", moved.left);
        let listener = moved.listener.try_clone().unwrap();
        let (accepted, fetched) = thread::scope(|scope| {
            let completing = scope.spawn(|| moved.complete(to));
            let mut node = Node::accept(&listener);
            read_more(&mut node, &mut output, 20);
            (node, completing.join().unwrap())
        });
        node = accepted;
        assert!(fetched.demanded > 0 && fetched.left == 0, "{fetched:?}");
        read_more(&mut node, &mut output, 20);
    }
}

#[test]
fn page_faults_wait_for_a_restarted_node() {
    let lab = Lab::new();
    let (a, mut b) = (lab.host("a"), lab.host("b"));
    let (spec, node, mut output) = started(&a, "waiting", 2);
    let Moved { from, left, listener, .. } = leave(node, &spec, (&a, &b), &mut output, true);
    b.restart();
    let found = b.call(|engine| engine.recover()).unwrap();
    assert!(matches!(&found[..], [one] if one.state == State::Running && one.spec.name == spec.name));
    let mut node = thread::scope(|scope| {
        let accepting = scope.spawn(|| Node::accept(&listener));
        let listener = listener.try_clone().unwrap();
        let fetched = Moved { spec: &spec, from, left, listener }.complete(&b);
        assert!(fetched.pushed > 0, "{fetched:?}");
        accepting.join().unwrap()
    });
    read_more(&mut node, &mut output, 20);
}

/// Which processes page an instance: the pager, and its keeper.
fn pagers(host: &Host, spec: &InstanceSpec) -> [i32; 2] {
    let record = fs::read_to_string(host.config.state.join(format!("{}.json", spec.name))).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let pager = record["pager"]["task"]["pid"].as_i64().unwrap() as i32;
    let children = fs::read_to_string(format!("/proc/{pager}/task/{pager}/children")).unwrap();
    [pager, children.trim().parse().unwrap()]
}

#[test]
fn an_instance_ends_with_its_pager_or_keeper() {
    for victim in 0..2 {
        let lab = Lab::new();
        let (a, b) = (lab.host("a"), lab.host("b"));
        let (spec, node, mut output) = started(&a, "bereft", 3);
        let _moved = leave(node, &spec, (&a, &b), &mut output, true);
        signal(pagers(&b, &spec)[victim], libc::SIGKILL);
        assert!(b.call(|engine| engine.wait(&spec.name, PATIENCE)).unwrap(), "victim {victim}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn an_aborted_post_copy_leaves_nothing_behind() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let (spec, node, mut output) = started(&a, "stays", 4);
    let moved = leave(node, &spec, (&a, &b), &mut output, true);
    let pagers = pagers(&b, &spec);
    b.call(|engine| engine.destroy(&spec.name)).unwrap();
    assert!(b.is_empty());
    drop(moved);
    for pager in pagers {
        let stat = fs::read_to_string(format!("/proc/{pager}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
}
