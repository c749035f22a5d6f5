//! The longest datagram that can leave this host for another one.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Bytes of a UDP header.
const UDP: usize = 8;

/// The kernel's limit for the bytes of a datagram to `to` that the first device can send.
///
/// # Errors
/// If the kernel knows no way there.
pub fn path_limit(to: SocketAddr) -> io::Result<usize> {
    let (from, level, option, header): (SocketAddr, _, _, _) = match to {
        SocketAddr::V4(_) => ((Ipv4Addr::UNSPECIFIED, 0).into(), libc::IPPROTO_IP, libc::IP_MTU, 20),
        SocketAddr::V6(_) => ((Ipv6Addr::UNSPECIFIED, 0).into(), libc::IPPROTO_IPV6, libc::IPV6_MTU, 40),
    };
    let socket = UdpSocket::bind(from)?;
    socket.connect(to)?;
    let mut mtu: libc::c_int = 0;
    let mut length = mem::size_of_val(&mtu) as libc::socklen_t;
    // SAFETY: both arguments are live, and `length` is that of `mtu`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(mtu).unwrap_or_default().saturating_sub(header + UDP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_limit_is_the_device_mtu_without_headers() {
        let mtu: usize = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap().trim().parse().unwrap();
        // No packet is longer than its header can say.
        let longest = mtu.min(usize::from(u16::MAX));
        assert_eq!(path_limit("127.0.0.1:9".parse().unwrap()).unwrap(), longest - 28);
    }
}
