//! A TAP: a network device with a program that reads and writes its frames.
//!
//! Each frame has a `virtio_net_hdr`, so the kernel need not split a program's data into frames of the
//! device's MTU, nor compute checksums: segments of up to 64 KiB cross in one call, in both directions.

use std::ffi::CString;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

/// The most bytes of a frame that is read: a datagram's limit with an Ethernet header, two tags, and the header before it.
pub const MOST: usize = 65_535 + 14 + 2 * 4 + 10;

/// So many segments may be refused: a single malformed one does not mean that the kernel is at fault.
const PATIENCE: u8 = 16;

/// How long a device may seem taken that was given back: a process that this one has just forked has it until it runs its program.
const GIVEN_BACK: Duration = Duration::from_millis(100);

/// The offloads that the kernel may leave to the reader, and the reader to the kernel (`linux/if_tun.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums of TCP and UDP.
    pub checksum: bool,
    /// TCP segments longer than a frame. They have no checksum.
    pub tcp: bool,
    /// So for UDP, since Linux 6.2.
    pub udp: bool,
}

impl Offloads {
    /// None.
    pub const NONE: Self = Self { checksum: false, tcp: false, udp: false };
    /// All.
    pub const ALL: Self = Self { checksum: true, tcp: true, udp: true };

    fn flags(self) -> libc::c_uint {
        let on = |is_on: bool, flags| if is_on { flags } else { 0 };
        let tcp = libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
        let checksum = self.checksum || self.tcp || self.udp;
        on(checksum, libc::TUN_F_CSUM) | on(self.tcp, tcp) | on(self.udp, udp)
    }
}

/// An error when a TAP is opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The name is invalid.
    #[error(
        "`{0}` is not a valid name for a network device: use 1 to 15 ASCII characters without spaces and `/:%`, and not `.`, `..`, `all` or `default`"
    )]
    Name(String),
    /// The kernel has no TUN/TAP.
    #[error("cannot open /dev/net/tun: load the kernel module `tun`, and run this as root")]
    NoDriver(#[source] io::Error),
    /// No persistent TAP has that name.
    #[error("there is no persistent TAP `{0}`")]
    Absent(String),
    /// Another program has the TAP.
    #[error("the TAP `{0}` is in use by another program")]
    InUse(String),
    /// Another program has such a device, or the caller may not make it.
    #[error("cannot create the network device `{name}`")]
    Refused {
        /// The requested name.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A TAP that this process reads and writes.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
    /// It was there before, and stays when this is dropped. One that this process has made is gone then, unless it is to stay.
    is_adopted: bool,
    offloads: Offloads,
    /// None of these is used, though they were requested,
    is_put_aside: AtomicBool,
    /// and for good.
    is_to_blame: AtomicBool,
    /// Segments that the kernel has refused since it took one.
    refused_tcp: AtomicU8,
    refused_udp: AtomicU8,
}

impl Tap {
    /// Makes the device `name` in the network namespace of the calling thread. It is not up, and has no offloads.
    ///
    /// # Errors
    /// If the name cannot be, or the kernel refuses.
    pub fn new(name: &str) -> Result<Self, OpenError> {
        let (file, plugged) = open(name, libc::IFF_TUN_EXCL)?;
        plugged.map_err(|source| OpenError::Refused { name: name.to_owned(), source })?;
        Ok(Self::new_of(file))
    }

    /// Takes the device `name` in the network namespace of the calling thread, which was made to stay without a program
    /// (`ip tuntap add NAME mode tap`). It has no offloads.
    ///
    /// # Errors
    /// If there is none, or another program has it.
    pub fn adopt(name: &str) -> Result<Self, OpenError> {
        let (file, plugged) = open(name, 0)?;
        plugged.map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => OpenError::InUse(name.to_owned()),
            // The device is no TAP, or has several queues.
            Some(libc::EINVAL) => OpenError::Absent(name.to_owned()),
            _ => OpenError::Refused { name: name.to_owned(), source },
        })?;
        let refused = |source| OpenError::Refused { name: name.to_owned(), source };
        let mut tap = Self::new_of(file);
        // One that the call has made goes again.
        if !tap.is_persistent().map_err(refused)? {
            return Err(OpenError::Absent(name.to_owned()));
        }
        tap.is_adopted = true;
        tap.forget_former_program().map_err(refused)?;
        Ok(tap)
    }

    /// Whether the device stays when this is dropped, for a caller that adopts it.
    ///
    /// # Errors
    /// If it is gone.
    pub fn set_persistent(&self, persistent: bool) -> io::Result<()> {
        let stays = libc::c_ulong::from(persistent);
        // SAFETY: the call takes a number.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETPERSIST, stays) })
    }

    fn new_of(file: OwnedFd) -> Self {
        let (refused_tcp, refused_udp) = (AtomicU8::new(0), AtomicU8::new(0));
        let (is_put_aside, is_to_blame) = (AtomicBool::new(false), AtomicBool::new(false));
        let (is_adopted, offloads) = (false, Offloads::NONE);
        Self { file, is_adopted, offloads, is_put_aside, is_to_blame, refused_tcp, refused_udp }
    }

    /// Says which offloads are used from now on.
    ///
    /// # Errors
    /// `EINVAL` if the kernel does not know one of them.
    pub fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        self.tell_offloads(offloads)?;
        self.offloads = offloads;
        Ok(())
    }

    fn tell_offloads(&self, offloads: Offloads) -> io::Result<()> {
        let flags = libc::c_ulong::from(offloads.flags());
        // SAFETY: the call takes a number.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETOFFLOAD, flags) })
    }

    /// The offloads that it should have.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Disables all offloads for now, or restores the intended ones.
    ///
    /// # Errors
    /// If it is gone.
    pub fn put_offloads_aside(&self, is_aside: bool) -> io::Result<()> {
        self.tell_offloads(if is_aside { Offloads::NONE } else { self.offloads })?;
        self.is_put_aside.store(is_aside, Ordering::Relaxed);
        Ok(())
    }

    /// Notes that the offloads that were put aside misbehave.
    pub fn blame_offloads(&self) {
        self.is_to_blame.store(true, Ordering::Relaxed);
    }

    /// Whether they do.
    #[must_use]
    pub fn are_offloads_to_blame(&self) -> bool {
        self.is_to_blame.load(Ordering::Relaxed)
    }

    /// Its present name.
    ///
    /// # Errors
    /// If it is gone.
    pub fn name(&self) -> io::Result<String> {
        let answer = self.about()?;
        let bytes = answer.ifr_name.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0);
        Ok(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned())
    }

    fn about(&self) -> io::Result<libc::ifreq> {
        // SAFETY: zeroes are a value of the structure.
        let mut answer: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: the answer is live, and as long as the call writes.
        check(unsafe {
            libc::ioctl(self.file.as_raw_fd(), libc::TUNGETIFF as libc::Ioctl, &raw mut answer)
        })?;
        Ok(answer)
    }

    /// Whether it stays without a program.
    fn is_persistent(&self) -> io::Result<bool> {
        let answer = self.about()?;
        // SAFETY: the call has written this one.
        let flags = unsafe { answer.ifr_ifru.ifru_flags };
        Ok(libc::c_int::from(flags) & libc::IFF_PERSIST != 0)
    }

    /// Resets the settings that the kernel keeps from the device's former program: the header length and the
    /// offloads.
    fn forget_former_program(&mut self) -> io::Result<()> {
        /// Bytes of a `virtio_net_hdr`, as in a new TAP. Virtual machines take longer ones.
        const HEADER: libc::c_int = 10;
        let header = HEADER;
        // SAFETY: the number is live, and as long as the call reads.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const header) })?;
        self.set_offloads(Offloads::NONE)
    }

    /// Whether it takes segments longer than a frame, of UDP or of TCP.
    #[must_use]
    pub fn takes_segments(&self, udp: bool) -> bool {
        let is_on = if udp { self.offloads.udp } else { self.offloads.tcp };
        is_on && !self.is_put_aside.load(Ordering::Relaxed) && !self.refuses_segments(udp)
    }

    /// Whether the kernel has refused so many segments that it gets none any more.
    #[must_use]
    pub fn refuses_segments(&self, udp: bool) -> bool {
        self.refused(udp).load(Ordering::Relaxed) >= PATIENCE
    }

    /// Records whether the kernel accepted such a segment. After [`PATIENCE`] refusals in a row it gets none any more.
    pub fn note_segment(&self, udp: bool, is_taken: bool) {
        let refused = self.refused(udp);
        let before = refused.load(Ordering::Relaxed);
        if !is_taken {
            refused.store(before.saturating_add(1), Ordering::Relaxed);
        } else if (1..PATIENCE).contains(&before) {
            refused.store(0, Ordering::Relaxed);
        }
    }

    fn refused(&self, udp: bool) -> &AtomicU8 {
        if udp { &self.refused_udp } else { &self.refused_tcp }
    }

    /// Whether there is a frame to read.
    #[must_use]
    pub fn has_frames(&self) -> bool {
        let mut looks = [PollFd::new(&self.file, PollFlags::IN)];
        poll(&mut looks, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Reads the header of a frame, and the frame, into `into`, which has room for [`MOST`] bytes. Returns how many.
    ///
    /// # Errors
    /// `EAGAIN` if there is none; others if the device is gone or down.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.file, into)?)
    }

    /// Writes a frame. Its header is at the front of the first part.
    ///
    /// # Errors
    /// `EINVAL` if the kernel finds header and frame to contradict each other; others if the device is gone or down.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.file, parts)?;
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if self.is_adopted {
            // The next user may not accept segments. A device that is gone needs nothing.
            let _ = self.set_offloads(Offloads::NONE);
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Asks for a TAP `name`, with further flags; returns its file, and whether the kernel has made it.
fn open(name: &str, flags: libc::c_int) -> Result<(OwnedFd, io::Result<()>), OpenError> {
    let mut wanted = named(name).ok_or_else(|| OpenError::Name(name.to_owned()))?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flags;
    wanted.ifr_ifru.ifru_flags = flags as libc::c_short;
    let how = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open("/dev/net/tun", how, Mode::empty());
    let file = file.map_err(|error| OpenError::NoDriver(error.into()))?;
    let end = Instant::now() + GIVEN_BACK;
    loop {
        // SAFETY: the request is live, and as long as the call reads.
        let plugged = check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw const wanted) });
        match plugged {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                thread::sleep(Duration::from_millis(1));
            }
            plugged => return Ok((file, plugged)),
        }
    }
}

/// True if Linux accepts this as a name of a device. The settings of each device are in a folder of its name, beside `all` and `default`.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_graphic() && !b"/:%".contains(&byte);
    !name.is_empty() && name.bytes().all(is_letter) && ![".", "..", "all", "default"].contains(&name)
}

/// A request about the device `name`; `None` if none can be called that.
pub(crate) fn named(name: &str) -> Option<libc::ifreq> {
    let text = CString::new(name).ok().filter(|_| is_name(name))?;
    let bytes = text.as_bytes_with_nul();
    // SAFETY: zeroes are a value of the structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let place = request.ifr_name.get_mut(..bytes.len())?;
    for (to, from) in place.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    Some(request)
}

pub(crate) fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
