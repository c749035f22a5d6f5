//! The system calls of a tracer.

use std::io;
use std::mem;

use crate::linux::call::Call;

/// A ptrace request that the libc crate lacks.
pub const PEEKSIGINFO: u32 = 0x4209;
pub const GETSIGMASK: u32 = 0x420a;
pub const SETSIGMASK: u32 = 0x420b;
/// The register set with all registers beside the general ones.
const NT_X86_XSTATE: u64 = 0x202;
/// The size limit of that set; no processor has more.
const XSTATE_MAX: usize = 64 << 10;
/// `ERESTART_RESTARTBLOCK` of the kernel.
const RESTART_BLOCK: i64 = 516;
/// The offset of debug register 7, the one that arms breakpoints, in `struct user`.
const DEBUG_CONTROL: u64 = mem::offset_of!(libc::user, u_debugreg) as u64 + 7 * 8;

/// Makes a request, and returns its result.
///
/// # Safety
/// As `ptrace(2)` requires for the request: the memory that `data` and `addr` point to must be live.
pub unsafe fn request(request: u32, pid: i32, addr: u64, data: u64) -> io::Result<i64> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, u64::from(request), i64::from(pid), addr, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes a request without memory.
fn plain(what: u32, pid: i32, data: u64) -> io::Result<()> {
    // SAFETY: the callers' requests take numbers only.
    unsafe { request(what, pid, 0, data) }.map(|_| ())
}

/// Starts tracing a thread without stopping it.
pub fn seize(pid: i32, options: i32) -> io::Result<()> {
    plain(libc::PTRACE_SEIZE, pid, u64::from(options.unsigned_abs()))
}

/// Requests a stop, which comes before the thread runs any of its own code again.
pub fn interrupt(pid: i32) -> io::Result<()> {
    plain(libc::PTRACE_INTERRUPT, pid, 0)
}

/// Lets a stopped thread run, with a signal or without.
pub fn go_on(pid: i32, signal: i32) -> io::Result<()> {
    match plain(libc::PTRACE_CONT, pid, u64::from(signal.unsigned_abs())) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

/// Whether a thread is stopped at its end.
pub fn is_at_exit(pid: i32) -> io::Result<bool> {
    // SAFETY: all-zero is a valid siginfo.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes a siginfo.
    unsafe { request(libc::PTRACE_GETSIGINFO, pid, 0, &raw mut info as u64) }?;
    Ok(info.si_code == libc::SIGTRAP | libc::PTRACE_EVENT_EXIT << 8)
}

/// Lets a stopped thread run until the next beginning or end of a system call.
pub fn to_syscall(pid: i32) -> io::Result<()> {
    plain(libc::PTRACE_SYSCALL, pid, 0)
}

/// Stops tracing a thread.
pub fn detach(pid: i32) -> io::Result<()> {
    plain(libc::PTRACE_DETACH, pid, 0)
}

/// Waits for the next change of a tracee, or of any tracee for -1.
pub fn wait(pid: i32) -> io::Result<(i32, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is live and writable.
        let found = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        if found != -1 {
            return Ok((found, status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The reason why a thread is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal is about to be delivered.
    Signal(i32),
    /// A system call begins or ends.
    Syscall,
    /// A `PTRACE_EVENT_…`.
    Event(i32),
}

impl Stop {
    /// The reason in a wait status; `None` if the thread has ended.
    pub fn of(status: i32) -> Option<Self> {
        if !libc::WIFSTOPPED(status) {
            return None;
        }
        Some(match (status >> 16, libc::WSTOPSIG(status)) {
            (0, signal) if signal == libc::SIGTRAP | 0x80 => Self::Syscall,
            (0, signal) => Self::Signal(signal),
            (event, _) => Self::Event(event),
        })
    }
}

/// A stopped thread's general registers.
pub fn registers(pid: i32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero is a valid register set.
    let mut registers: libc::user_regs_struct = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes a register set.
    unsafe { request(libc::PTRACE_GETREGS, pid, 0, &raw mut registers as u64) }?;
    Ok(registers)
}

/// Sets the general registers of a stopped thread.
pub fn set_registers(pid: i32, registers: &libc::user_regs_struct) -> io::Result<()> {
    // SAFETY: the kernel reads a register set.
    unsafe { request(libc::PTRACE_SETREGS, pid, 0, &raw const *registers as u64) }.map(|_| ())
}

/// The word at an address.
pub fn peek(pid: i32, address: u64) -> io::Result<u64> {
    let mut word = 0_u64;
    // SAFETY: the kernel writes one word.
    unsafe { request(libc::PTRACE_PEEKDATA, pid, address, &raw mut word as u64) }?;
    Ok(word)
}

/// Writes the word at an address, even if the process itself may not write there.
pub fn poke(pid: i32, address: u64, word: u64) -> io::Result<()> {
    // SAFETY: a number is passed.
    unsafe { request(libc::PTRACE_POKEDATA, pid, address, word) }.map(|_| ())
}

/// Blocks all signals but these, one bit each.
pub fn set_signal_mask(pid: i32, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads a mask of the size said.
    unsafe { request(SETSIGMASK, pid, size_of::<u64>() as u64, &raw const mask as u64) }.map(|_| ())
}

/// The state with which a stopped thread continues.
pub struct Context {
    registers: libc::user_regs_struct,
    extended: Vec<u8>,
    /// The signals that it blocks.
    pub mask: u64,
}

impl Context {
    /// The thread's current state.
    pub fn of(pid: i32) -> io::Result<Self> {
        let mut extended = vec![0; XSTATE_MAX];
        let length = transfer(libc::PTRACE_GETREGSET, pid, &mut extended)?;
        extended.truncate(length);
        let mut mask = 0_u64;
        // SAFETY: the kernel writes a mask of the size said.
        unsafe { request(GETSIGMASK, pid, size_of::<u64>() as u64, &raw mut mask as u64) }?;
        Ok(Self { registers: registers(pid)?, extended, mask })
    }

    /// Restores it. An interrupted system call restarts.
    pub fn restore(&self, pid: i32) -> io::Result<()> {
        let mut extended = self.extended.clone();
        transfer(libc::PTRACE_SETREGSET, pid, &mut extended)?;
        set_signal_mask(pid, self.mask)?;
        // SAFETY: a number is passed.
        unsafe { request(libc::PTRACE_POKEUSER, pid, DEBUG_CONTROL, 0) }?;
        self.restore_registers(pid)
    }

    /// Restores the general registers only.
    pub fn restore_registers(&self, pid: i32) -> io::Result<()> {
        set_registers(pid, &self.registers)
    }

    /// Whether the thread waits in a system call that the kernel restarts with the rest of its time.
    pub fn waits_by_restart(&self) -> bool {
        self.registers.orig_rax.cast_signed() >= 0 && self.registers.rax.cast_signed() == -RESTART_BLOCK
    }

    /// The registers with which an interrupted system call of thread `pid` restarts instead of ending with `EINTR`; `None` if it
    /// does not end so, or cannot restart.
    pub fn begun_again(&self, pid: i32) -> Option<libc::user_regs_struct> {
        let all = &self.registers;
        let result = if self.waits_by_restart() { -i64::from(libc::EINTR) } else { all.rax.cast_signed() };
        let (number, instruction) = (all.orig_rax.cast_signed(), all.rip);
        let arguments = [all.rdi, all.rsi, all.rdx, all.r10, all.r8];
        let call = Call { number, result, instruction, arguments }
            .begun_again(|address, bytes| read(pid, address, bytes))?;
        let [rdi, rsi, rdx, r10, r8] = call.arguments;
        let (rax, rip) = (call.result.cast_unsigned(), call.instruction);
        Some(libc::user_regs_struct { rax, rip, rdi, rsi, rdx, r10, r8, ..*all })
    }

    /// The thread's next instruction.
    pub fn instruction(&self) -> u64 {
        self.registers.rip
    }
}

fn transfer(what: u32, pid: i32, bytes: &mut [u8]) -> io::Result<usize> {
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the vector and the bytes that it names are live.
    unsafe { request(what, pid, NT_X86_XSTATE, &raw mut vector as u64) }?;
    Ok(vector.iov_len)
}

/// Reads another process's memory.
pub fn read(pid: i32, address: u64, bytes: &mut [u8]) -> io::Result<()> {
    let near = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let far = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    // SAFETY: `near` names live memory, and the kernel checks `far`.
    let read = unsafe { libc::process_vm_readv(pid, &raw const near, 1, &raw const far, 1, 0) };
    whole(read, bytes.len())
}

/// Writes another process's memory.
pub fn write(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let near = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let far = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    // SAFETY: `near` names live memory, and the kernel checks `far`.
    let written = unsafe { libc::process_vm_writev(pid, &raw const near, 1, &raw const far, 1, 0) };
    whole(written, bytes.len())
}

fn whole(moved: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(moved) {
        Ok(moved) if moved == wanted => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
