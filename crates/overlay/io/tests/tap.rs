//! A TAP in a network namespace of its own. Needs the right to make one.

use std::io::{self, IoSlice};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use overlay_io::tap::{MOST, Offloads, OpenError, Tap};

/// Calls `test` on a thread in a new network namespace.
fn isolated(test: impl FnOnce() + Send) {
    let namespace = fabric::netns::create().expect("a network namespace: these tests run as root");
    fabric::netns::enter(namespace.as_fd(), test).unwrap();
}

fn ip(line: &str) {
    let status = Command::new("ip").args(line.split(' ')).status().unwrap();
    assert!(status.success(), "ip {line}");
}

/// A device with an address, which knows one neighbour.
fn tap(offloads: Offloads) -> Tap {
    let mut tap = Tap::new("t0").unwrap();
    tap.set_offloads(offloads).unwrap();
    ip("addr add 10.9.0.1/24 dev t0");
    ip("link set t0 mtu 1400 up");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev t0");
    tap
}

/// The next UDP datagram to port `port` that the device sends: its header and frame.
fn next_to(tap: &Tap, port: u16) -> Vec<u8> {
    next_within(tap, port, Duration::from_secs(10)).expect("nothing came")
}

/// The same, if it comes within `limit`.
fn next_within(tap: &Tap, port: u16, limit: Duration) -> Option<Vec<u8>> {
    /// Behind a `virtio_net_hdr`, the headers of Ethernet and IPv4, and a source port.
    const PORT: usize = 10 + 14 + 20 + 2;
    let (mut buffer, begun) = (vec![0; MOST], Instant::now());
    while begun.elapsed() < limit {
        match tap.read(&mut buffer) {
            Ok(length) if buffer[PORT..PORT + 2] == port.to_be_bytes() => {
                return Some(buffer[..length].to_vec());
            }
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
        }
    }
    None
}

#[test]
fn frames_from_a_tap_carry_pending_offload_work() {
    isolated(|| {
        let mut tap = tap(Offloads::ALL);
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.send_to(b"hello", "10.9.0.2:7000").unwrap();
        let read = next_to(&tap, 7000);
        assert_eq!(read.len(), 10 + 14 + 20 + 8 + 5);
        assert_eq!(read[0] & 1, 1, "the checksum is not complete");
        tap.set_offloads(Offloads::NONE).unwrap();
        socket.send_to(b"hello", "10.9.0.2:7001").unwrap();
        assert_eq!(next_to(&tap, 7001)[0] & 1, 0, "it is");
    });
}

#[test]
fn frames_to_a_tap_carry_pending_offload_work() {
    isolated(|| {
        let tap = tap(Offloads::ALL);
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.send_to(b"hello", "10.9.0.2:7000").unwrap();
        let sent = next_to(&tap, 7000);
        // Back to its origin; no checksum changes with the order of its summands.
        let (header, frame) = sent.split_at(10);
        let swapped = [
            &frame[6..12],
            &frame[..6],
            &frame[12..26],
            &frame[30..34],
            &frame[26..30],
            &frame[36..38],
            &frame[34..36],
            &frame[38..],
        ];
        tap.write(&[IoSlice::new(header), IoSlice::new(&swapped.concat())]).unwrap();
        let mut buffer = [0; 16];
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"hello"[..], "10.9.0.2:7000".parse().unwrap()));
        let contradiction =
            tap.write(&[IoSlice::new(&[1, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]), IoSlice::new(frame)]);
        assert_eq!(contradiction.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    });
}

#[test]
fn device_names_are_exclusive_and_released() {
    isolated(|| {
        let first = Tap::new("t0").unwrap();
        assert!(matches!(Tap::new("t0"), Err(OpenError::Refused { name, .. }) if name == "t0"));
        drop(first);
        assert!(Tap::new("t0").is_ok());
    });
}

/// As a process has it that was forked meanwhile, until it runs its program.
#[test]
fn a_device_name_is_released_with_its_last_user() {
    isolated(|| {
        let first = Tap::new("t0").unwrap();
        let held = first.as_fd().try_clone_to_owned().unwrap();
        drop(first);
        let holder = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            drop(held);
        });
        assert!(Tap::new("t0").is_ok());
        holder.join().unwrap();
    });
}

#[test]
fn invalid_device_names_are_refused() {
    for name in
        ["", "a name", "a/b", "sixteen_letters_", "tap%d", "a:b", "nul\0", ".", "..", "all", "default"]
    {
        assert!(matches!(Tap::new(name), Err(OpenError::Name(given)) if given == name), "{name:?}");
    }
}

#[test]
fn a_kernel_that_refuses_segments_gets_none_any_more() {
    const PATIENCE: usize = 16;
    isolated(|| {
        let tap = tap(Offloads::ALL);
        let refuse = |times| (0..times).for_each(|_| tap.note_segment(true, false));
        refuse(PATIENCE - 1);
        tap.note_segment(true, true);
        refuse(PATIENCE - 1);
        assert!(tap.takes_segments(true), "it took one in between");
        refuse(1);
        tap.note_segment(true, true);
        assert!(!tap.takes_segments(true) && tap.takes_segments(false));
    });
}

/// The kernel's description of the device `t0`.
fn about() -> String {
    let said = Command::new("ip").args(["-details", "address", "show", "dev", "t0"]).output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

#[test]
fn an_existing_tap_is_used_unchanged_and_kept() {
    isolated(|| {
        ip("tuntap add dev t0 mode tap");
        ip("link set t0 address 52:54:00:00:00:01 mtu 1300 up");
        ip("addr add 10.9.0.1/24 dev t0");
        ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev t0");
        for _ in 0..2 {
            let mut tap = Tap::adopt("t0").unwrap();
            tap.set_offloads(Offloads::ALL).unwrap();
            let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
            // The kernel drops frames until it has seen that the device has a program now.
            let attempt = |_| {
                socket.send_to(b"hello", "10.9.0.2:7000").unwrap();
                next_within(&tap, 7000, Duration::from_millis(100))
            };
            let read = (0..100).find_map(attempt).expect("nothing came");
            assert_eq!(read.len(), 10 + 14 + 20 + 8 + 5);
            assert_eq!(&read[10 + 6..10 + 12], [0x52, 0x54, 0, 0, 0, 1]);
            assert!(matches!(Tap::adopt("t0"), Err(OpenError::InUse(_))));
            drop(tap);
            let about = about();
            let kept = ["52:54:00:00:00:01", "mtu 1300", "10.9.0.1/24"];
            assert!(kept.iter().all(|kept| about.contains(kept)), "{about}");
        }
    });
}

/// Whether the kernel sends segments of TCP to `t0` that are longer than a frame.
fn takes_segments() -> bool {
    /// `ETHTOOL_GTSO` (`linux/ethtool.h`).
    const QUESTION: u32 = 0x1e;
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let mut answer = [QUESTION, 0];
    // SAFETY: zeroes are a value of the structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b't', b'0'].map(u8::cast_signed));
    request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
    // SAFETY: the request and what it points to are live, and as long as the call reads and writes.
    let asked =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
    assert_eq!(asked, 0, "{}", io::Error::last_os_error());
    answer[1] != 0
}

#[test]
fn settings_of_a_virtual_machine_are_replaced_and_reset_afterwards() {
    /// Longer than a TAP's initial limit.
    const HEADER: libc::c_int = 12;
    isolated(|| {
        let header = HEADER;
        ip("tuntap add dev t0 mode tap vnet_hdr");
        let before = Tap::adopt("t0").unwrap();
        // SAFETY: the number is live, and as long as the call reads.
        let set =
            unsafe { libc::ioctl(before.as_fd().as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const header) };
        assert_eq!(set, 0);
        drop(before);
        let mut tap = Tap::adopt("t0").unwrap();
        let mut header = 0;
        // SAFETY: the number is live, and as long as the call writes.
        let read = unsafe { libc::ioctl(tap.as_fd().as_raw_fd(), libc::TUNGETVNETHDRSZ, &raw mut header) };
        assert_eq!((read, header), (0, 10));
        tap.set_offloads(Offloads::ALL).unwrap();
        assert!(takes_segments());
        drop(tap);
        assert!(!takes_segments());
    });
}

#[test]
fn a_device_that_is_not_a_persistent_tap_is_refused() {
    isolated(|| {
        assert!(matches!(Tap::adopt("t0"), Err(OpenError::Absent(_))));
        assert!(about().is_empty(), "none was made");
        for made in [
            "link add t0 type bridge",
            "tuntap add dev t0 mode tun",
            "tuntap add dev t0 mode tap multi_queue",
        ] {
            ip(made);
            assert!(matches!(Tap::adopt("t0"), Err(OpenError::Absent(_))), "{made}");
            ip("link del t0");
        }
        let _own = Tap::new("t0").unwrap();
        assert!(matches!(Tap::adopt("t0"), Err(OpenError::InUse(_))));
    });
}
