//! Pseudo-terminals of sessions. Init holds the master, so that both ends travel with the instance.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::thread;
use std::time::Duration;

use fabric::session::WindowSize;

/// Makes a pseudo-terminal that belongs to `user`: its non-blocking master, and its slave.
pub fn open(size: WindowSize, user: u32) -> io::Result<(File, OwnedFd)> {
    let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
    let master = File::options().read(true).write(true).custom_flags(flags).open("/dev/ptmx")?;
    let unlocked: libc::c_int = 0;
    // SAFETY: the kernel reads a number from `unlocked`.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) })?;
    let slave = other_end(&master)?;
    fchown(&slave, Some(user), None)?;
    resize(&master, size)?;
    Ok((master, slave))
}

/// Sets the size of its window. The foreground process group gets SIGWINCH if the size changes.
pub fn resize(master: &File, size: WindowSize) -> io::Result<()> {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is live, and what the kernel reads for this request.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Stops the terminal's output: writers wait. When it returns, all earlier output can be read from `master`.
pub fn stop(master: &File) -> io::Result<()> {
    let slave = other_end(master)?;
    await_pause(master, &slave);
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(slave.as_raw_fd(), libc::TCXONC, libc::TCOOFF) })?;
    await_writers(&slave)
}

/// Waits until writers pause or the terminal is full; this process does not read meanwhile. The kernel loses the end of a line that
/// is written just when a terminal is stopped.
fn await_pause(master: &File, slave: &OwnedFd) {
    /// Less than the kernel buffers: below this, the count includes all written bytes.
    const COUNTED: libc::c_int = 4000;
    /// How many consecutive checks must find the terminal full.
    const FULL: u32 = 10;
    let (mut before, mut full) = (-1, 0);
    for _ in 0..50 {
        let waiting = waiting(master);
        full = if is_writable(slave) { 0 } else { full + 1 };
        if full == FULL || full == 0 && waiting == before && waiting < COUNTED {
            return;
        }
        before = waiting;
        thread::sleep(Duration::from_millis(1));
    }
}

/// The number of bytes that can be read.
fn waiting(master: &File) -> libc::c_int {
    let mut bytes = 0;
    // SAFETY: the kernel writes a number into `bytes`.
    unsafe { libc::ioctl(master.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    bytes
}

/// Whether the terminal has room, and no process is writing.
fn is_writable(slave: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: slave.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live pollfd is passed.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Waits for a process that began to write before the terminal was stopped. The kernel changes terminal settings only while no
/// process writes; this sets an unchanged one, which has no effect on a pseudo-terminal.
fn await_writers(slave: &OwnedFd) -> io::Result<()> {
    let mut local: libc::c_int = 0;
    // SAFETY: the kernel writes a number into `local`.
    check(unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCGSOFTCAR, &raw mut local) })?;
    // SAFETY: the kernel reads a number from `local`.
    check(unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSSOFTCAR, &raw const local) }).map(drop)
}

/// Starts the output of a stopped terminal.
pub fn go_on(master: &File) -> io::Result<()> {
    let slave = other_end(master)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(slave.as_raw_fd(), libc::TCXONC, libc::TCOON) }).map(drop)
}

fn other_end(master: &File) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: no memory is passed.
    let slave = check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(slave) })
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
