//! A program that knows its sockets' options.

use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread;

use crate::PAUSE;

/// Level, name and value of an option.
pub type SocketOption = (libc::c_int, libc::c_int, libc::c_int);

/// Looks again and again whether its sockets have the options that it has set.
pub fn keep_options() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _accepted = listener.accept().unwrap();
    let datagrams = UdpSocket::bind("[::]:0").unwrap();
    let of_listener =
        [(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 7), (libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 5)];
    let of_stream = [
        (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 300_000),
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 4096),
        (libc::IPPROTO_IP, libc::IP_TTL, 44),
        (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1),
    ];
    let (local, _peer) = UnixStream::pair().unwrap();
    let of_local = [(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)];
    let of_datagrams = [
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x20),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 43),
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, 7),
        (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1),
    ];
    let sockets: [(RawFd, &[SocketOption]); 4] = [
        (listener.as_raw_fd(), &of_listener),
        (stream.as_raw_fd(), &of_stream),
        (datagrams.as_raw_fd(), &of_datagrams),
        (local.as_raw_fd(), &of_local),
    ];
    sockets
        .iter()
        .for_each(|(socket, options)| options.iter().for_each(|option| set_option(*socket, *option)));
    set_congestion(&stream, b"reno");
    for number in 0_u64.. {
        for (socket, options) in sockets {
            options.iter().for_each(|option| assert_eq!(get_option(socket, *option), option.2, "{option:?}"));
        }
        assert!(congestion(&stream).starts_with(b"reno\0"));
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

pub fn set_option(socket: RawFd, (level, name, value): SocketOption) {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is live and as long as said.
    let result = unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), length) };
    assert_eq!(result, 0, "{level} {name}: {}", io::Error::last_os_error());
}

fn get_option(socket: RawFd, (level, name, _): SocketOption) -> libc::c_int {
    let mut value: libc::c_int = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`.
    let result = unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &raw mut length) };
    assert_eq!(result, 0, "{level} {name}: {}", io::Error::last_os_error());
    value
}

fn set_congestion(stream: &TcpStream, name: &[u8]) {
    let (socket, length) = (stream.as_raw_fd(), name.len() as libc::socklen_t);
    // SAFETY: the name is live and as long as said.
    let result = unsafe {
        libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_ptr().cast(), length)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

fn congestion(stream: &TcpStream) -> [u8; 16] {
    let mut name = [0; 16];
    let (socket, mut length) = (stream.as_raw_fd(), 16);
    // SAFETY: the kernel writes at most `length` bytes into `name`.
    let result = unsafe {
        libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    name
}
