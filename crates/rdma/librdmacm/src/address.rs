//! Socket addresses as C has them, and the instance's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_int, c_long, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::errno::{Errno, INVALID, Result, last};
use crate::verbs::zeroed;

/// The address at `address`.
///
/// # Errors
/// `EINVAL` for NULL, `EAFNOSUPPORT` for another family than IP.
///
/// # Safety
/// `address` is NULL, or readable as long as its family asks for.
pub(crate) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr> {
    if address.is_null() {
        return Err(INVALID);
    }
    // SAFETY: every address begins with its family; the others are as the caller promises.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let address = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
                Ok(SocketAddr::from((ip, u16::from_be(address.sin_port))))
            }
            libc::AF_INET6 => {
                let address = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                let port = u16::from_be(address.sin6_port);
                Ok(SocketAddrV6::new(ip, port, address.sin6_flowinfo, address.sin6_scope_id).into())
            }
            _ => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }
}

/// True if a socket bound to `ip` is bound to no address of its own. As in the kernel, that holds for a loopback address
/// too: no device has it, and libfabric listens at `localhost` when it means any address.
pub(crate) fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.to_canonical().is_loopback()
}

/// The same address, as one of IPv4 if IPv6 only wraps that.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => SocketAddr::new(ip.to_canonical(), address.port()),
        _ => address,
    }
}

/// `address` as C has it, and its length.
pub(crate) fn store(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all-zero bytes are values of these structures.
    let (mut storage, mut v4, mut v6): (sockaddr_storage, sockaddr_in, sockaddr_in6) =
        unsafe { (zeroed(), zeroed(), zeroed()) };
    let length = match address {
        SocketAddr::V4(address) => {
            v4.sin_family = libc::AF_INET as libc::sa_family_t;
            v4.sin_port = address.port().to_be();
            v4.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            // SAFETY: the storage is larger than any address, and aligned for all.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(v4) };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            v6.sin6_port = address.port().to_be();
            v6.sin6_addr.s6_addr = address.ip().octets();
            v6.sin6_scope_id = address.scope_id();
            v6.sin6_flowinfo = address.flowinfo();
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(v6) };
            size_of::<sockaddr_in6>()
        }
    };
    (storage, length as socklen_t)
}

/// The address from which this instance would send to `destination`. Multicast needs no route.
///
/// # Errors
/// `ENETUNREACH` and the like: there is no route.
pub(crate) fn source_for(destination: SocketAddr) -> Result<IpAddr> {
    let socket = KernelSocket::new(&destination)?;
    // Nothing is sent; the port only has to be one.
    let mut to = destination;
    to.set_port(destination.port().max(1));
    match socket.connect(to) {
        Err(_) if destination.ip().is_multicast() => {
            let fits = |ip: &IpAddr| !ip.is_loopback() && ip.is_ipv4() == destination.is_ipv4();
            own()?.into_iter().find(fits).ok_or(Errno(libc::ENETUNREACH))
        }
        connected => connected.and_then(|()| socket.local()).map(|local| local.ip()),
    }
}

/// A UDP socket of the kernel, made by system call: `librspreload.so` replaces the C library's functions,
/// and its sockets of this library know no routes.
struct KernelSocket(OwnedFd);

impl KernelSocket {
    fn new(of_family: &SocketAddr) -> Result<Self> {
        let family = if of_family.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_socket, family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        let fd = RawFd::try_from(succeeded(fd)?).map_err(|_| INVALID)?;
        // SAFETY: the call has just returned the descriptor, so this is its only owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn connect(&self, to: SocketAddr) -> Result<()> {
        let (address, length) = store(to);
        // SAFETY: the address is as long as stated.
        let code =
            unsafe { libc::syscall(libc::SYS_connect, self.0.as_raw_fd(), &raw const address, length) };
        succeeded(code).map(drop)
    }

    fn local(&self) -> Result<SocketAddr> {
        let mut length = size_of::<sockaddr_storage>() as socklen_t;
        // SAFETY: all-zero bytes are a value of the structure.
        let mut address: sockaddr_storage = unsafe { zeroed() };
        let (at, fd) = (&raw mut address, self.0.as_raw_fd());
        // SAFETY: the address can be written as long as stated.
        succeeded(unsafe { libc::syscall(libc::SYS_getsockname, fd, at, &raw mut length) })?;
        // SAFETY: the kernel has written a whole address.
        unsafe { read(at.cast()) }
    }
}

/// The result of a system call.
fn succeeded(code: c_long) -> Result<c_long> {
    if code == -1 { Err(last()) } else { Ok(code) }
}

/// All addresses of this instance.
///
/// # Errors
/// The errors of `getifaddrs`.
pub(crate) fn own() -> Result<Vec<IpAddr>> {
    let mut list = ptr::null_mut();
    // SAFETY: the list can be written, and is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } == -1 {
        return Err(last());
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: the list is linked, ends with NULL, and its addresses are NULL or whole.
    while let Some(interface) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        found.extend(unsafe { read(interface.ifa_addr) }.map(|address| address.ip()));
        next = interface.ifa_next;
    }
    // SAFETY: the list is not used again.
    unsafe { libc::freeifaddrs(list) };
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_c_form() {
        for text in ["10.1.2.3:80", "[fe80::1%3]:7", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, _) = store(address);
            // SAFETY: the storage holds a whole address.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(address));
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read(ptr::null()) }, Err(INVALID));
    }

    #[test]
    fn loopback_is_any_address() {
        for (text, any) in
            [("::", true), ("127.0.0.1", true), ("::ffff:127.0.0.9", true), ("10.0.0.1", false)]
        {
            assert_eq!(is_any(text.parse().unwrap()), any, "{text}");
        }
    }

    #[test]
    fn an_ipv4_mapped_address_is_unwrapped() {
        for (wrapped, bare) in [("[::ffff:10.1.2.3]:4", "10.1.2.3:4"), ("[fe80::1]:4", "[fe80::1]:4")] {
            assert_eq!(canonical(wrapped.parse().unwrap()), bare.parse().unwrap());
        }
    }

    #[test]
    fn loopback_is_an_own_address_and_its_own_source() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(source_for((loopback, 9).into()), Ok(loopback));
        assert!(own().unwrap().contains(&loopback));
    }
}
