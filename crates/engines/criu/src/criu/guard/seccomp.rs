//! The filter that hands CRIU's tracing calls over. It is installed in a CRIU that waits at a hook. Earlier would be too early: the
//! children with which CRIU probes the kernel trace too, and would inherit it.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::ptrace;

const OPTIONS: i32 = libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACESYSGOOD;
/// `AUDIT_ARCH_X86_64`.
const ARCHITECTURE: u32 = 0xc000_003e;
/// The offset of the lower half of the third argument in `struct seccomp_data`.
const OPTIONS_OF_WAIT4: u32 = 16 + 2 * 8;
/// The bytes of a `syscall` instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The distance below the stack pointer that leaf functions do not use.
const SCRATCH: u64 = 4096;
/// How often to check whether CRIU waits, a millisecond apart.
const GLANCES: u32 = 2000;

/// Traces CRIU, and lets it install the filter.
pub fn install(criu: i32) -> io::Result<()> {
    ptrace::seize(criu, OPTIONS)?;
    for _ in 0..GLANCES {
        stop(criu)?;
        if waits(criu)? {
            return inject(criu);
        }
        ptrace::go_on(criu, 0)?;
        sleep(Duration::from_millis(1));
    }
    Err(io::Error::from(io::ErrorKind::TimedOut))
}

fn stop(criu: i32) -> io::Result<()> {
    ptrace::interrupt(criu)?;
    let (_, status) = ptrace::wait(criu)?;
    match ptrace::Stop::of(status) {
        Some(ptrace::Stop::Event(libc::PTRACE_EVENT_STOP)) => Ok(()),
        _ => Err(io::Error::other("CRIU is not waiting at its hook")),
    }
}

/// Whether it was stopped in the system call in which it waits at a hook.
fn waits(criu: i32) -> io::Result<bool> {
    let registers = ptrace::registers(criu)?;
    let mut instruction = [0; 2];
    ptrace::read(criu, registers.rip - 2, &mut instruction)?;
    Ok(registers.orig_rax.cast_signed() >= 0 && instruction == SYSCALL)
}

/// Lets CRIU make the system call `seccomp` in place of the call in which it waits, and then repeat that.
fn inject(criu: i32) -> io::Result<()> {
    let before = ptrace::registers(criu)?;
    let filter = (before.rsp - SCRATCH) & !15;
    ptrace::write(criu, filter, &program(filter))?;
    let mut call = before;
    (call.rip, call.orig_rax) = (before.rip - 2, u64::MAX);
    call.rax = libc::SYS_seccomp.cast_unsigned();
    (call.rdi, call.rsi, call.rdx) = (u64::from(libc::SECCOMP_SET_MODE_FILTER), 0, filter);
    ptrace::set_registers(criu, &call)?;
    for _entry_and_exit in 0..2 {
        ptrace::to_syscall(criu)?;
        ptrace::wait(criu)?;
    }
    let result = ptrace::registers(criu)?.rax.cast_signed();
    // Only after a stop of this kind, the kernel restarts the interrupted system call.
    ptrace::interrupt(criu)?;
    ptrace::go_on(criu, 0)?;
    ptrace::wait(criu)?;
    ptrace::set_registers(criu, &before)?;
    ptrace::go_on(criu, 0)?;
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-(result as i32))) }
}

/// A `sock_fprog` at `address`, followed by its instructions.
fn program(address: u64) -> Vec<u8> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const HAS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let instructions = [
        (LOAD, 0, 0, 4),
        (EQUAL, 0, 5, ARCHITECTURE),
        (LOAD, 0, 0, 0),
        (EQUAL, 4, 0, libc::SYS_ptrace as u32),
        (EQUAL, 0, 2, libc::SYS_wait4 as u32),
        (LOAD, 0, 0, OPTIONS_OF_WAIT4),
        // Calls without this flag are no tracing: CRIU waits for its children, and these, such as `tar`, for theirs.
        (HAS, 1, 0, libc::__WALL as u32),
        (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        (RETURN, 0, 0, libc::SECCOMP_RET_TRACE),
    ];
    let mut bytes = (instructions.len() as u64).to_ne_bytes().to_vec();
    bytes.extend((address + 16).to_ne_bytes());
    for (code, then, otherwise, value) in instructions {
        let code: u16 = code;
        bytes.extend(code.to_ne_bytes());
        bytes.extend([then, otherwise]);
        bytes.extend(value.to_ne_bytes());
    }
    bytes
}
