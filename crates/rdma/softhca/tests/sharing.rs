//! Neighbours that write and read each other's memory by themselves.
//!
//! Without the privilege for userfaultfd nothing is shared, and these tests show only that all works then too.

mod support;

use softhca::*;
use support::*;
use verbs::Policy;

fn neighbours(policy: Policy) -> Net {
    let mut net = Net::new(3, policy, Medium::Shm, 3);
    for at in 0..3 {
        net.device(at).allow_sharing(true);
    }
    net
}

fn plan() -> Plan {
    let mut plan = Plan { memory: 3 << 20, whole_pages: true, ..Plan::default() };
    plan.attr.timeout = 1;
    plan
}

fn privileged() -> bool {
    // SAFETY: no memory is passed, and the descriptor is closed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    // SAFETY: as above.
    unsafe { libc::close(fd as i32) };
    fd >= 0
}

/// Writes `text` to the peer and says whether it was there at once.
fn write_at_once(net: &mut Net, from: &End, to: &End, text: &[u8]) -> bool {
    from.memory.store(100, text);
    let op = SendOp::Write { va: to.va(200), rkey: to.key };
    from.post(net, 77, op, &[from.sge(100, text.len())]);
    let at_once = to.memory.load(200, text.len()) == text;
    net.settle();
    assert_eq!(statuses(&from.poll_sends(net)), [WcStatus::Success]);
    assert_eq!(to.memory.load(200, text.len()), text);
    at_once
}

/// A pair that has got to know each other's memory.
fn acquainted(net: &mut Net) -> (End, End) {
    acquaint(net, 0, 1)
}

fn acquaint(net: &mut Net, a: usize, b: usize) -> (End, End) {
    let (a, b) = pair(net, a, b, &plan());
    // The first brings the link up, the second asks for a window.
    assert!(!write_at_once(net, &a, &b, b"by the ring"));
    assert!(!write_at_once(net, &a, &b, b"by it again"));
    assert_eq!(write_at_once(net, &a, &b, b"directly!!!"), privileged());
    (a, b)
}

/// The WRITE of `from` to `to` fails with `status`, and changes nothing there.
fn assert_refused(net: &mut Net, from: &End, to: &End, status: WcStatus) {
    to.memory.store(200, b"mine again");
    from.post(net, 1, SendOp::Write { va: to.va(200), rkey: to.key }, &[from.sge(0, 10)]);
    net.settle();
    assert_eq!(statuses(&from.poll_sends(net)), [status]);
    assert_eq!(to.memory.load(200, 10), b"mine again");
}

#[test]
fn writes_and_reads_do_not_involve_the_target() {
    for policy in Policy::ALL {
        let net = &mut neighbours(policy);
        let (a, b) = acquainted(net);
        b.memory.store(1 << 20, &pattern(4, 1 << 20));
        let op = SendOp::Read { va: b.va(1 << 20), rkey: b.key };
        a.post(net, 1, op, &[a.sge(0, 1000), a.sge(2000, (1 << 20) - 1000)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
        assert!(a.memory.load(2000, (1 << 20) - 1000) == pattern(4, 1 << 20)[1000..]);
    }
}

#[test]
fn direct_requests_keep_the_order_of_the_send_queue() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    // The SEND waits for a receive; the WRITE behind it must not overtake it.
    a.post(net, 1, SendOp::Send, &[a.sge(0, 10)]);
    a.memory.store(100, b"second");
    a.post(net, 2, SendOp::Write { va: b.va(200), rkey: b.key }, &[a.sge(100, 6)]);
    assert_ne!(b.memory.load(200, 6), b"second");
    b.receive(net, 1, &[b.sge(5000, 10)]);
    net.settle();
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
    assert_eq!(b.memory.load(200, 6), b"second");
}

#[test]
fn a_long_request_waits_for_queued_ones_and_is_then_direct() {
    for policy in Policy::ALL {
        let net = &mut neighbours(policy);
        let (a, b) = acquainted(net);
        let length = 1 << 20;
        a.memory.store(1 << 20, &pattern(5, length));
        a.post(net, 1, SendOp::Send, &[a.sge(0, 10)]);
        let op = SendOp::Write { va: b.va(1 << 20), rkey: b.key };
        a.post(net, 2, op, &[a.sge(1 << 20, 1000), a.sge((1 << 20) + 1000, length - 1000)]);
        a.post(net, 3, SendOp::Read { va: b.va(1 << 20), rkey: b.key }, &[a.sge(2 << 20, length)]);
        a.post(net, 4, SendOp::Send, &[a.sge(0, 20)]);
        b.receive(net, 1, &[b.sge(5000, 10)]);
        b.receive(net, 2, &[b.sge(5000, 20)]);
        let everything_is_there = |net: &mut Net| {
            // Not a step of the target: the acknowledgement is all that was waited for.
            net.nodes[0].device.progress(net.now);
            b.memory.load(1 << 20, length) == pattern(5, length)
        };
        net.run(|net| !b.poll_receives(net).is_empty(), 1000);
        assert_eq!((0..10).any(|_| everything_is_there(net)), privileged());
        net.settle();
        let done: Vec<_> = a.poll_sends(net).iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
        let success = |(id, length)| (id, WcStatus::Success, length as u32);
        assert_eq!(done, [(1, 10), (2, length), (3, length), (4, 20)].map(success));
        assert!(a.memory.load(2 << 20, length) == pattern(5, length));
        assert_eq!(b.poll_receives(net).len(), 1);
    }
}

#[test]
fn a_deregistered_region_is_closed() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    net.device(1).dereg_mr(b.mr).unwrap();
    assert_refused(net, &a, &b, WcStatus::RemoteAccess);
}

/// As by programs that keep registrations for later, and deregister memory that is long gone.
#[test]
fn memory_mapped_over_shared_pages_is_left_alone() {
    const LENGTH: usize = 1 << 20;
    let net = &mut neighbours(Policy::Stable);
    let (_a, b) = acquainted(net);
    let place = |at: usize| std::ptr::with_exposed_provenance_mut::<libc::c_void>(b.va(at) as usize);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the name is a string; the second mapping and the unmapping are of the test's own memory.
    let elsewhere = unsafe {
        let file = libc::memfd_create(c"other".as_ptr(), 0);
        assert_eq!(libc::ftruncate(file, LENGTH as i64), 0);
        let elsewhere = libc::mmap(std::ptr::null_mut(), LENGTH, rights, libc::MAP_SHARED, file, 0);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        assert_eq!(libc::mmap(place(LENGTH), LENGTH, rights, flags, file, 0), place(LENGTH));
        assert_eq!(libc::munmap(place(2 * LENGTH), LENGTH), 0);
        libc::close(file);
        elsewhere.cast::<u8>()
    };
    b.memory.store(0, b"still here");
    net.device(1).dereg_mr(b.mr).unwrap();
    assert_eq!(b.memory.load(0, 10), b"still here");
    b.memory.store(LENGTH, b"both");
    // SAFETY: the second mapping of the same file, which no other code uses.
    assert_eq!(unsafe { std::slice::from_raw_parts(elsewhere, 4) }, b"both");
    // SAFETY: no memory is touched.
    let unmapped = unsafe { libc::msync(place(2 * LENGTH), LENGTH, libc::MS_ASYNC) } == -1;
    assert!(unmapped);
}

/// As by programs that keep registrations for later, and register new mappings in the same place.
#[test]
fn neighbours_see_memory_registered_over_shared_pages() {
    const LENGTH: usize = 1 << 20;
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    let place = std::ptr::with_exposed_provenance_mut::<libc::c_void>(b.va(LENGTH) as usize);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the test's own memory; no other code uses this part.
    assert_eq!(unsafe { libc::mmap(place, LENGTH, rights, flags, -1, 0) }, place);
    let (start, length) = (b.va(LENGTH), LENGTH as u64);
    // SAFETY: test memory is never unmapped.
    let (mr, keys) = unsafe { net.device(1).reg_mr(b.pd, start, length, start, EVERYTHING) }.unwrap();
    for round in 0..4u8 {
        let at = LENGTH + usize::from(round);
        a.memory.store(at, &[round + 1]);
        a.post(net, 1, SendOp::Write { va: b.va(at), rkey: keys.rkey }, &[a.sge(at, 1)]);
        net.settle();
        assert_eq!(b.memory.load(at, 1), [round + 1]);
        b.memory.store(at, &[100 + round]);
        a.post(net, 2, SendOp::Read { va: b.va(at), rkey: keys.rkey }, &[a.sge(0, 1)]);
        net.settle();
        assert_eq!(a.memory.load(0, 1), [100 + round]);
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
    }
    net.device(1).dereg_mr(b.mr).unwrap();
    assert_eq!(b.memory.load(LENGTH, 4), [100, 101, 102, 103], "the former region's end leaves it alone");
    net.device(1).dereg_mr(mr).unwrap();
    assert_eq!(b.memory.load(LENGTH, 4), [100, 101, 102, 103]);
}

/// As by `realloc` of a large block, before it is deregistered.
#[test]
fn memory_that_mremap_moved_and_grew_becomes_private_in_place() {
    const LENGTH: usize = 1 << 20;
    let net = &mut neighbours(Policy::Stable);
    let (_a, b) = acquainted(net);
    b.memory.store(LENGTH, b"head");
    let old = std::ptr::with_exposed_provenance_mut::<libc::c_void>(b.va(LENGTH) as usize);
    // SAFETY: the test's own memory; no other code uses this part by its old address.
    let moved = unsafe { libc::mremap(old, LENGTH, 2 * LENGTH, libc::MREMAP_MAYMOVE) };
    assert_ne!(moved, libc::MAP_FAILED);
    net.device(1).dereg_mr(b.mr).unwrap();
    let moved = moved.cast::<u8>();
    // SAFETY: as long as the mapping.
    let bytes = unsafe { std::slice::from_raw_parts_mut(moved, 2 * LENGTH) };
    assert_eq!(&bytes[..4], b"head");
    assert!(bytes[LENGTH..].iter().all(|byte| *byte == 0));
    bytes[LENGTH..].fill(7);
    let start = moved.addr() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = |address: u64| {
        let holds = |range: &str| {
            let (from, to) = range.split_once('-').unwrap();
            (u64::from_str_radix(from, 16).unwrap()..u64::from_str_radix(to, 16).unwrap()).contains(&address)
        };
        maps.lines().find(|line| holds(line.split(' ').next().unwrap())).unwrap()
    };
    for address in [start, start + LENGTH as u64] {
        assert!(line(address).contains(" rw-p "), "{}", line(address));
    }
}

/// As by UCX, which registers a buffer twice, once for its atomics.
#[test]
fn memory_registered_twice_is_converted_once() {
    for start in [0, 1 << 20] {
        let net = &mut neighbours(Policy::Stable);
        let (a, b) = pair(net, 0, 1, &plan());
        let length = b.memory.len() as u64 - start;
        // SAFETY: test memory is never unmapped.
        let (_, second) = unsafe {
            net.device(1).reg_mr(b.pd, b.va(start as usize), length, b.va(start as usize), EVERYTHING)
        }
        .unwrap();
        let keys = [b.key, second.rkey];
        for round in 0..4u8 {
            for (turn, rkey) in (0..).zip(keys) {
                let at = (2 << 20) + 100 * usize::from(turn);
                let text = [round, turn + 1, 7];
                a.memory.store(at, &text);
                a.post(net, 1, SendOp::Write { va: b.va(at), rkey }, &[a.sge(at, text.len())]);
            }
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
            for turn in 0..2u8 {
                let at = (2 << 20) + 100 * usize::from(turn);
                assert_eq!(b.memory.load(at, 3), [round, turn + 1, 7], "region {turn}, from {start} on");
            }
        }
    }
}

#[test]
fn a_failed_queue_pair_is_closed() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    b.fail(net);
    assert_refused(net, &a, &b, WcStatus::RetryExceeded);
}

#[test]
fn a_peer_that_stays_inside_blocks_no_other() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    let (c, d) = acquaint(net, 2, 1);
    net.stay_inside(0, 1);
    b.fail(net);
    for text in [b"one", b"two", b"six"] {
        // Nothing is lost, and nothing shared any more.
        assert!(!write_at_once(net, &c, &d, text));
    }
    assert_refused(net, &a, &b, WcStatus::RetryExceeded);
}

#[test]
fn direct_mappings_enforce_rights() {
    let net = &mut neighbours(Policy::Stable);
    let plan = Plan { mr_access: EVERYTHING - Access::REMOTE_WRITE, ..plan() };
    let (a, b) = pair(net, 0, 1, &plan);
    let (va, rkey) = (b.va(200), b.key);
    for at in 0..3 {
        a.post(net, at, SendOp::Read { va, rkey }, &[a.sge(0, 10)]);
        net.settle();
    }
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 3]);
    assert_eq!(rights_of_neighbours(&b), if privileged() { vec!["r--s"] } else { Vec::new() });
    a.post(net, 1, SendOp::Write { va, rkey }, &[a.sge(0, 10)]);
    net.settle();
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RemoteAccess]);
}

/// How neighbours have mapped the shared pages of `owner`, which are mapped in their own place, too.
fn rights_of_neighbours(owner: &End) -> Vec<String> {
    let own = owner.memory.address()..owner.memory.address() + owner.memory.len() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("transhume-pages")).filter_map(|line| {
        let [range, rights, _, _, inode, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        let start = u64::from_str_radix(range.split_once('-')?.0, 16).ok()?;
        Some((own.contains(&start), inode.to_owned(), rights.to_owned()))
    });
    let (owners, others): (Vec<_>, Vec<_>) = shared.partition(|(is_own, ..)| *is_own);
    let is_of_owner = |inode: &String| owners.iter().any(|(_, own, _)| own == inode);
    others.into_iter().filter(|(_, inode, _)| is_of_owner(inode)).map(|(.., rights)| rights).collect()
}

#[test]
fn write_access_to_a_part_exports_only_that_part() {
    let net = &mut neighbours(Policy::Stable);
    let plan = Plan { mr_access: EVERYTHING - Access::REMOTE_WRITE, ..plan() };
    let (a, b) = pair(net, 0, 1, &plan);
    for at in 0..3 {
        a.post(net, at, SendOp::Read { va: b.va(200), rkey: b.key }, &[a.sge(0, 10)]);
        net.settle();
    }
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 3]);
    let (at, length) = (b.memory.address(), b.memory.len() as u64 / 2);
    // SAFETY: test memory is never unmapped.
    let (_, keys) = unsafe { net.device(1).reg_mr(b.pd, at, length, at, EVERYTHING) }.unwrap();
    let part = End { key: keys.rkey, ..b };
    for text in [b"by the ring", b"by it again", b"and so on.."] {
        assert!(!write_at_once(net, &a, &part, text));
    }
    assert!(rights_of_neighbours(&part).iter().all(|rights| rights == "r--s"));
}

/// A process with the descriptor could write, regardless of the queue pair's rights.
#[test]
fn a_queue_pair_with_fewer_rights_than_the_region_stays_on_the_ring() {
    let net = &mut neighbours(Policy::Stable);
    let mut plan = plan();
    plan.attr.access = EVERYTHING - Access::REMOTE_WRITE;
    let (a, b) = pair(net, 0, 1, &plan);
    for at in 0..3 {
        a.post(net, at, SendOp::Read { va: b.va(200), rkey: b.key }, &[a.sge(0, 10)]);
        net.settle();
    }
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 3]);
    assert_eq!(rights_of_neighbours(&b), Vec::<String>::new());
}

/// A process with the descriptor of shared pages has all of them.
#[test]
fn a_peer_with_a_part_of_memory_does_not_get_all_of_it() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    let before = rights_of_neighbours(&b);
    let (at, length) = (b.memory.address(), b.memory.len() as u64 / 2);
    // SAFETY: test memory is never unmapped.
    let (_, keys) = unsafe { net.device(1).reg_mr(b.pd, at, length, at, EVERYTHING) }.unwrap();
    let part = End { key: keys.rkey, ..b };
    for text in [b"by the ring", b"by it again", b"and so on.."] {
        assert!(!write_at_once(net, &a, &part, text));
    }
    assert_eq!(rights_of_neighbours(&part), before);
}

#[test]
fn memory_of_overlapping_regions_is_revoked_with_the_first() {
    let net = &mut neighbours(Policy::Stable);
    let (a, mut b) = acquainted(net);
    let (at, length) = (b.memory.address(), b.memory.len() as u64);
    // SAFETY: test memory is never unmapped.
    let (second, keys) = unsafe { net.device(1).reg_mr(b.pd, at, length, at, EVERYTHING) }.unwrap();
    let first = std::mem::replace(&mut b.key, keys.rkey);
    assert!(!write_at_once(net, &a, &b, b"by the ring"));
    assert_eq!(write_at_once(net, &a, &b, b"directly!!!"), privileged());
    b.key = first;
    net.device(1).dereg_mr(second).unwrap();
    let own = format!("{at:x}-");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_shared = maps.lines().any(|line| line.starts_with(&own) && line.contains("transhume-pages"));
    assert!(!is_shared, "a neighbour may have kept the descriptor");
    assert!(!write_at_once(net, &a, &b, b"by the ring"));
    write_at_once(net, &a, &b, b"it asks");
    assert_eq!(write_at_once(net, &a, &b, b"directly!!!"), privileged());
}

#[test]
fn a_range_that_leaves_the_region_is_refused() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    let op = SendOp::Write { va: b.va((3 << 20) - 5), rkey: b.key };
    a.post(net, 1, op, &[a.sge(0, 10)]);
    net.settle();
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RemoteAccess]);
}

#[test]
fn either_end_may_move() {
    for policy in Policy::ALL {
        for moved in 0..2 {
            let net = &mut neighbours(policy);
            let (a, b) = acquainted(net);
            net.suspend(moved);
            a.memory.store(100, b"meanwhile");
            let op = SendOp::Write { va: b.va(200), rkey: b.key };
            a.post(net, 1, op, &[a.sge(100, 9)]);
            assert_ne!(b.memory.load(200, 9), b"meanwhile", "a suspended neighbour is not touched");
            net.resume(moved);
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
            assert_eq!(b.memory.load(200, 9), b"meanwhile");
            let _ = write_at_once(net, &a, &b, b"hello again");
            assert_eq!(write_at_once(net, &a, &b, b"and again"), privileged());
        }
    }
}

#[test]
fn pages_become_private_before_a_fork_and_the_ring_takes_over() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    net.device(1).before_fork();
    assert_eq!(b.memory.load(200, 8), b"directly");
    assert!(!write_at_once(net, &a, &b, b"ring"));
    assert!(!write_at_once(net, &a, &b, b"ring still"));
}

#[test]
fn regions_without_a_whole_page_stay_on_the_ring() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = pair(net, 0, 1, &Plan { memory: 3000, ..plan() });
    for text in [b"one", b"two", b"six"] {
        assert!(!write_at_once(net, &a, &b, text));
    }
}

/// Its memory is that of a connection which the other end has left.
#[test]
fn a_new_incarnation_accesses_no_memory_until_its_peer_has_one_too() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    let write = SendOp::Write { va: b.va(200), rkey: b.key };
    b.memory.store(200, b"untouched");
    a.memory.store(100, b"something");
    for round in 0..4 {
        start_new_incarnation(net, &a, &b, &plan(), 1000 * (round + 1));
        for wr_id in 0..3 {
            a.post(net, wr_id, write, &[a.sge(100, 9)]);
        }
        // It answers all that it is asked at once.
        for _ in 0..4 {
            net.nodes[1].device.progress(net.now);
        }
        if round == 3 {
            break;
        }
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net))[0], WcStatus::RetryExceeded);
        assert_eq!(b.memory.load(200, 9), b"untouched");
    }
    for _ in 0..50 {
        net.step();
    }
    assert_eq!(b.memory.load(200, 9), b"untouched");
    start_new_incarnation(net, &b, &a, &plan(), 4000);
    net.settle();
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 3]);
    assert_eq!(b.memory.load(200, 9), b"something");
    assert!(!write_at_once(net, &a, &b, b"asks again"));
    assert_eq!(write_at_once(net, &a, &b, b"directly again"), privileged());
}

/// The bytes that the first end writes after one of the two has a new incarnation. It has asked for a direct mapping
/// before; the second has had `turns` turns to answer.
fn written_after_a_new_incarnation(begins: fn(&mut Net, &End, &End), turns: usize) {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = pair(net, 0, 1, &plan());
    assert!(!write_at_once(net, &a, &b, b"by the ring"));
    let write = SendOp::Write { va: b.va(200), rkey: b.key };
    a.post(net, 1, write, &[a.sge(100, 9)]);
    net.nodes[0].device.progress(net.now);
    for _ in 0..turns {
        net.nodes[1].device.progress(net.now);
    }
    begins(net, &a, &b);
    b.memory.store(200, b"untouched");
    a.memory.store(100, b"something");
    a.post(net, 2, write, &[a.sge(100, 9)]);
    net.settle();
    a.post(net, 3, write, &[a.sge(100, 9)]);
    net.settle();
    let ends = statuses(&a.poll_sends(net));
    assert_eq!(ends[ends.len() - 2..], [WcStatus::RetryExceeded, WcStatus::Flushed]);
    assert_eq!(b.memory.load(200, 9), b"untouched");
}

#[test]
fn a_requested_direct_mapping_is_not_used_by_another_incarnation() {
    for turns in [1, 2, 3, 10] {
        written_after_a_new_incarnation(|net, a, b| start_new_incarnation(net, a, b, &plan(), 5000), turns);
        written_after_a_new_incarnation(|net, a, b| start_new_incarnation(net, b, a, &plan(), 5000), turns);
    }
}

#[test]
fn a_reconnected_queue_pair_that_writes_at_once_gets_a_direct_mapping() {
    let net = &mut neighbours(Policy::Stable);
    let (a, b) = acquainted(net);
    start_new_incarnation(net, &b, &a, &plan(), 5000);
    start_new_incarnation(net, &a, &b, &plan(), 5000);
    assert!(!write_at_once(net, &a, &b, b"by the ring"));
    assert!(!write_at_once(net, &a, &b, b"by it again"));
    assert_eq!(write_at_once(net, &a, &b, b"directly!!!"), privileged());
}
