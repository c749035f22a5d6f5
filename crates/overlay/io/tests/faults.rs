//! Offloads that misbehave while traffic flows: the plane notices, and does their work itself. The kernel causes each of
//! these faults itself, except wrongly merged datagrams (`src/faults.rs`).

#[allow(dead_code, reason = "other tests need more of it")]
mod world;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use overlay::segment::vnet::{VnetHeader, gso};
use overlay::switch::PortId;
use overlay_io::counters::Counter;
use overlay_io::faults::{Fault, Place, SwitchedOff};
use overlay_io::offloads::Offload;
use overlay_io::plane::Plane;
use world::{LIMIT, Station, World, assert_no_mistakes, exchange};

const MTU: usize = 1400;

/// The time limit for the detection: lost data may have to be repeated, each time later.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `plane` uses something no more, and calls `meanwhile` again and again.
fn await_switched_off(plane: &Plane, expected: SwitchedOff, mut meanwhile: impl FnMut()) {
    let begun = Instant::now();
    while plane.switched_off() != [expected] {
        assert!(begun.elapsed() < PATIENCE, "{:?}", plane.switched_off());
        meanwhile();
    }
}

/// Calls `work` until `is_over`.
fn until(is_over: &AtomicBool, mut work: impl FnMut()) {
    while !is_over.load(Ordering::Relaxed) {
        work();
    }
}

/// Says that it is over when it is dropped, also by a check that fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Disables the kernel's segmentation of datagrams from `socket`: without checksums it refuses to split.
fn refuse_to_cut(socket: &OwnedFd) {
    let (yes, length) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    let place: *const libc::c_int = &raw const yes;
    // SAFETY: the value is live, and of the length that is given.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, place.cast(), length)
    };
    assert_eq!(result, 0);
}

#[test]
fn a_kernel_that_refuses_to_cut_costs_no_frame() {
    static TOLD: Mutex<Vec<SwitchedOff>> = Mutex::new(Vec::new());
    let world = World::new(2, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let [here, there] = &world.hosts[..] else { panic!("two hosts are there") };
    here.plane.tell_of_offloads(|off| TOLD.lock().unwrap().push(off));
    let ends = a.connect(&b, 5000);
    exchange(&ends, 1_000_000);
    assert_eq!(here.plane.switched_off(), []);
    refuse_to_cut(&here.socket);
    let (offload, place) = (Offload::UdpSegment, Place::Way(there.node));
    let expected = SwitchedOff { offload, place, fault: Fault::Refuses };
    await_switched_off(&here.plane, expected, || exchange(&ends, 100_000));
    exchange(&ends, 1_000_000);
    assert_eq!(here.plane.counter(Counter::NotSent), 0);
    // On a way that is the same it is the same when keys are new.
    world.agree_anew(1);
    assert_eq!(here.plane.switched_off(), [expected]);
    exchange(&ends, 1_000_000);
    let begun = Instant::now();
    while *TOLD.lock().unwrap() != [expected] {
        assert!(begun.elapsed() < LIMIT, "{:?}", TOLD.lock().unwrap());
        thread::sleep(Duration::from_millis(10));
    }
    assert_no_mistakes(&world);
}

#[test]
fn gso_is_disabled_when_batches_are_lost() {
    let world = World::new(2, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let [here, there] = &world.hosts[..] else { panic!("two hosts are there") };
    let ends = a.connect(&b, 5000);
    exchange(&ends, 1_000_000);
    // A device that drops frames it should segment.
    let nft = |line: &str| there.network.run("nft", line);
    nft("add table inet lie");
    nft("add chain inet lie input { type filter hook input priority 0 ; }");
    nft("add rule inet lie input udp length > 2000 drop");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| until(&is_over, || exchange(&ends, 100_000)));
        let (offload, place) = (Offload::UdpSegment, Place::Way(there.node));
        let expected = SwitchedOff { offload, place, fault: Fault::Loses };
        await_switched_off(&here.plane, expected, || thread::sleep(Duration::from_millis(10)));
        drop(over);
    });
    exchange(&ends, 1_000_000);
    assert_eq!(there.plane.switched_off(), [], "its datagrams arrive");
    assert_no_mistakes(&world);
}

/// A program that hands over frames to `station`'s device with headers that are not checked.
fn raw(station: &Station) -> OwnedFd {
    const PACKET_VNET_HDR: libc::c_int = 15;
    station.network.enter(|| {
        // SAFETY: no memory is passed.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(socket >= 0);
        // SAFETY: the descriptor is open, and this is its only owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let (yes, length) = (1, size_of::<libc::c_int>() as libc::socklen_t);
        let place: *const libc::c_int = &raw const yes;
        // SAFETY: the value is live, and of the length that is given.
        let result = unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, place.cast(), length)
        };
        assert_eq!(result, 0);
        // SAFETY: zeroes are a value of the structure.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
        // SAFETY: the name ends with a zero.
        address.sll_ifindex = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) }.cast_signed();
        let place: *const libc::sockaddr_ll = &raw const address;
        // SAFETY: the address is live, and of the length that is given.
        let result = unsafe {
            libc::bind(socket.as_raw_fd(), place.cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
        };
        assert_eq!(result, 0);
        socket
    })
}

/// A segment of TCP from `a` to `b`, that says to be a fragment if so.
fn segment(a: &Station, b: &Station, is_fragment: bool) -> Vec<u8> {
    const PAYLOAD: usize = 2000;
    let address = |station: &Station| station.address.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let [high, low] = ((40 + PAYLOAD) as u16).to_be_bytes();
    let fragment = if is_fragment { 0x20 } else { 0 };
    let vnet =
        VnetHeader { gso_type: gso::TCPV4, hdr_len: 54, gso_size: 1000, ..VnetHeader::partial(34, 16) };
    let ethernet = [&b.mac.0[..], &a.mac.0, &[8, 0]].concat();
    let ip = [&[0x45, 0, high, low, 0, 1, fragment, 0, 64, 6, 0, 0][..], &address(a), &address(b)].concat();
    let tcp = [0x1f, 0x90, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 2, 0, 0, 0, 0, 0];
    [&vnet.encode()[..], &ethernet, &ip, &tcp, &[7; PAYLOAD]].concat()
}

#[test]
fn a_device_with_wrong_claims_loses_its_offloads() {
    let world = World::new(2, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let ends = a.connect(&b, 5000);
    exchange(&ends, 1_000_000);
    let (raw, plane) = (raw(&a), &world.hosts[0].plane);
    let lie = segment(&a, &b, true);
    let off = |offload| {
        let place = Place::Port(PortId(a.mac.0[5].into()));
        SwitchedOff { offload, place, fault: Fault::Spoils }
    };
    let begun = Instant::now();
    // Without offloads the kernel cuts it, and the result is not predictable.
    while plane.switched_off() != [Offload::TcpSegments, Offload::UdpSegments].map(off) {
        assert!(begun.elapsed() < LIMIT, "{:?}", plane.switched_off());
        rustix::io::write(&raw, &lie).unwrap();
    }
    assert!(plane.counter(Counter::Unsplittable) > 0);
    exchange(&ends, 1_000_000);
}

#[test]
fn a_device_keeps_its_offloads_when_a_program_damages_frames() {
    let world = World::new(2, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let (raw, before, begun) = (raw(&a), b.received_frames(), Instant::now());
    // Its partial checksum is wrong, and so is the completed one.
    let spoilt = segment(&a, &b, false);
    while b.received_frames() < before + 500 {
        assert!(begun.elapsed() < LIMIT, "{}", b.received_frames());
        rustix::io::write(&raw, &spoilt).unwrap();
        assert_eq!(world.hosts[0].plane.switched_off(), []);
    }
    assert_no_mistakes(&world);
}
