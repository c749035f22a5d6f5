//! Executes CRIU's tracing calls on its behalf.

use std::collections::BTreeSet;
use std::io;

use super::ptrace::{self, GETSIGMASK, PEEKSIGINFO, SETSIGMASK, Stop};
use super::rescue::process_of;
use super::{Guard, Infection, Tracee};
use crate::linux::pending::waits_for_handler;
use crate::linux::task::numbers_in;

const SECCOMP_GET_FILTER: u32 = 0x420c;
const SECCOMP_GET_METADATA: u32 = 0x420d;
const GET_SYSCALL_INFO: u32 = 0x420e;
const GET_RSEQ_CONFIGURATION: u32 = 0x420f;
const GET_THREAD_AREA: u32 = 25;
const ARCH_PRCTL: u32 = 30;
const ARCH_SHSTK_STATUS: u64 = 0x5005;
const SIGINFO: usize = 128;
/// The size limit of a request's memory; no request reads or writes more.
const MOST: usize = 128 << 10;

/// A pending `wait4` of CRIU.
pub struct Wait {
    /// The thread, or -1.
    pid: i32,
    /// The address at which CRIU expects the status.
    status: u64,
}

/// A `ptrace` call of CRIU.
struct Call {
    request: u32,
    pid: i32,
    addr: u64,
    data: u64,
}

/// The meaning of a request's `data`.
enum Data {
    /// A number.
    Number,
    /// Memory that is read, and memory that is written: their lengths in bytes.
    Memory(usize, usize),
    /// A vector that names memory, which is read or written.
    Vector,
}

impl Call {
    /// The kind of its data, with the length of memory.
    fn data(&self, criu: i32) -> io::Result<Data> {
        let addressed = usize::try_from(self.addr).unwrap_or(MOST).min(MOST);
        Ok(match self.request {
            libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_PEEKUSER => Data::Memory(0, 8),
            libc::PTRACE_GETREGS => Data::Memory(0, size_of::<libc::user_regs_struct>()),
            libc::PTRACE_SETREGS => Data::Memory(size_of::<libc::user_regs_struct>(), 0),
            libc::PTRACE_GETFPREGS => Data::Memory(0, size_of::<libc::user_fpregs_struct>()),
            libc::PTRACE_SETFPREGS => Data::Memory(size_of::<libc::user_fpregs_struct>(), 0),
            libc::PTRACE_GETEVENTMSG => Data::Memory(0, 8),
            libc::PTRACE_GETSIGINFO => Data::Memory(0, SIGINFO),
            libc::PTRACE_SETSIGINFO => Data::Memory(SIGINFO, 0),
            libc::PTRACE_GETREGSET | libc::PTRACE_SETREGSET => Data::Vector,
            GET_THREAD_AREA => Data::Memory(16, 16),
            GETSIGMASK | GET_SYSCALL_INFO | GET_RSEQ_CONFIGURATION => Data::Memory(0, addressed),
            SETSIGMASK => Data::Memory(addressed, 0),
            SECCOMP_GET_METADATA => Data::Memory(addressed, addressed),
            SECCOMP_GET_FILTER if self.data != 0 => Data::Memory(0, MOST),
            PEEKSIGINFO => {
                let mut count = [0; 4];
                ptrace::read(criu, self.addr + 12, &mut count)?;
                let count = u32::from_ne_bytes(count) as usize;
                Data::Memory(0, (count * SIGINFO).min(MOST))
            }
            _ => Data::Number,
        })
    }

    /// How many bytes of the memory for the answer it has filled.
    fn filled(&self, room: usize, result: i64) -> usize {
        let result = usize::try_from(result).unwrap_or(0);
        match self.request {
            SECCOMP_GET_FILTER => result * 8,
            PEEKSIGINFO => result * SIGINFO,
            _ => room,
        }
        .min(room)
    }

    fn make(&self, criu: i32) -> io::Result<i64> {
        match self.data(criu)? {
            Data::Number => self.with_address(criu, self.data),
            Data::Memory(taken, given) => {
                let mut memory = vec![0; taken.max(given)];
                ptrace::read(criu, self.data, &mut memory[..taken])?;
                let result = self.with_address(criu, memory.as_mut_ptr() as u64)?;
                ptrace::write(criu, self.data, &memory[..self.filled(given, result)])?;
                Ok(result)
            }
            Data::Vector => self.with_vector(criu),
        }
    }

    fn with_vector(&self, criu: i32) -> io::Result<i64> {
        let mut theirs = [[0; 8]; 2];
        ptrace::read(criu, self.data, theirs.as_flattened_mut())?;
        let [base, length] = theirs.map(u64::from_ne_bytes);
        let mut memory = vec![0; usize::try_from(length).unwrap_or(MOST).min(MOST)];
        if self.request == libc::PTRACE_SETREGSET {
            ptrace::read(criu, base, &mut memory)?;
        }
        let mut vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        let result = self.with_address(criu, &raw mut vector as u64)?;
        if self.request == libc::PTRACE_GETREGSET {
            ptrace::write(criu, base, &memory[..vector.iov_len])?;
            ptrace::write(criu, self.data + 8, &vector.iov_len.to_ne_bytes())?;
        }
        Ok(result)
    }

    /// Two requests also have memory at their address.
    fn with_address(&self, criu: i32, data: u64) -> io::Result<i64> {
        let mut memory = [0; 16];
        let address = memory.as_mut_ptr() as u64;
        let status = self.request == ARCH_PRCTL && self.data == ARCH_SHSTK_STATUS;
        if self.request == PEEKSIGINFO {
            ptrace::read(criu, self.addr, &mut memory)?;
        }
        let own = status || self.request == PEEKSIGINFO;
        // SAFETY: the request reads and writes memory of this process only, which is as long as `Call::data` says.
        let result =
            unsafe { ptrace::request(self.request, self.pid, if own { address } else { self.addr }, data) }?;
        if status {
            ptrace::write(criu, self.addr, &memory[..8])?;
        }
        Ok(result)
    }
}

impl Guard {
    /// Executes a system call that CRIU hands over.
    pub(super) fn serve(&mut self) -> io::Result<()> {
        let registers = ptrace::registers(self.criu)?;
        let pid = registers.rsi as i32;
        if registers.orig_rax == libc::SYS_wait4.cast_unsigned() {
            return self.serve_wait(&registers);
        }
        let call = Call { request: registers.rdi as u32, pid, addr: registers.rdx, data: registers.r10 };
        if call.request != libc::PTRACE_SEIZE && !self.tracees.contains_key(&pid) {
            return self.let_criu_go();
        }
        self.before(&call);
        let result = call.make(self.criu);
        match &result {
            Ok(_) => self.after(&call),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => self.forget_ending(&call),
            Err(_) => {}
        }
        self.answer(result)
    }

    /// Forgets a thread that is ending. CRIU takes a thread that it cannot interrupt for an ended one. It would then take the
    /// thread's end, which it learns when it waits for any thread, for the end of a process. Other requests also fail for a thread
    /// that lives and is not stopped.
    fn forget_ending(&mut self, call: &Call) {
        if call.request == libc::PTRACE_INTERRUPT {
            self.tracees.remove(&call.pid);
        }
    }

    /// Saves the state that the call is about to change.
    fn before(&mut self, call: &Call) {
        if call.request == libc::PTRACE_DETACH
            && let Some(tracee) = self.tracees.get(&call.pid)
        {
            let _ended = tracee.let_wait_on(call.pid);
        }
        if !matches!(call.request, libc::PTRACE_POKEDATA | libc::PTRACE_POKETEXT) {
            return;
        }
        let infection = self.infections.entry(call.pid).or_insert_with(|| Infection::of(call.pid));
        if let Ok(word) = ptrace::peek(call.pid, call.addr) {
            infection.words.entry(call.addr).or_insert(word);
        }
    }

    fn after(&mut self, call: &Call) {
        match call.request {
            libc::PTRACE_SEIZE => {
                self.tracees.insert(call.pid, Tracee::default());
            }
            libc::PTRACE_DETACH => {
                self.tracees.remove(&call.pid);
            }
            libc::PTRACE_CONT | libc::PTRACE_SYSCALL => {
                if let Some(tracee) = self.tracees.get_mut(&call.pid) {
                    tracee.stop = None;
                }
            }
            _ => {}
        }
    }

    fn serve_wait(&mut self, registers: &libc::user_regs_struct) -> io::Result<()> {
        let (pid, options) = (registers.rdi as i32, registers.rdx as i32);
        // When CRIU waits for a child of its own, which dumps namespaces, it does not set this flag.
        let any = pid == -1 && options & libc::__WALL != 0 && !self.tracees.is_empty();
        if options & libc::WNOHANG != 0 || !(any || self.tracees.contains_key(&pid)) {
            return self.let_criu_go();
        }
        self.wait = Some(Wait { pid, status: registers.rsi });
        self.answer_wait()
    }

    /// Lets CRIU continue if the event that it waits for has come.
    pub(super) fn answer_wait(&mut self) -> io::Result<()> {
        let Some(wait) = &self.wait else { return Ok(()) };
        let mut told = self.tracees.iter_mut().filter(|(pid, _)| wait.pid == -1 || wait.pid == **pid);
        let Some((pid, status)) = told.find_map(|(pid, one)| Some((*pid, one.untold.pop_front()?))) else {
            return Ok(());
        };
        let written = match wait.status {
            0 => Ok(()),
            address => ptrace::write(self.criu, address, &status.to_ne_bytes()),
        };
        if !libc::WIFSTOPPED(status) {
            self.tracees.remove(&pid);
        }
        self.wait = None;
        self.answer(written.map(|()| i64::from(pid)))
    }

    /// Lets CRIU continue after its system call, with this result.
    fn answer(&mut self, result: io::Result<i64>) -> io::Result<()> {
        let result = result.unwrap_or_else(|error| -i64::from(error.raw_os_error().unwrap_or(libc::EIO)));
        let answered = ptrace::registers(self.criu).and_then(|mut registers| {
            (registers.orig_rax, registers.rax) = (u64::MAX, result.cast_unsigned());
            ptrace::set_registers(self.criu, &registers)
        });
        // A CRIU that was killed meanwhile needs no answer; the report of its end comes next.
        match answered {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other.and_then(|()| self.let_criu_go()),
        }
    }
}

impl Tracee {
    /// Lets a call wait on that CRIU would end with `EINTR` because it cannot continue on another host (`nanosleep`, `poll`, and so
    /// on). The instance stays on this host, where the kernel can continue the call.
    fn let_wait_on(&self, pid: i32) -> io::Result<()> {
        let (Some(context), Some(stop)) = (&self.context, self.stop) else { return Ok(()) };
        // Not at the end of a system call, nor in the first thread, which ran CRIU's code.
        if context.waits_by_restart() && stop != Stop::Syscall && process_of(pid) != Some(pid) {
            return context.restore_registers(pid);
        }
        match context.begun_again(pid) {
            Some(registers) if !waits_for_handler(pid, context.mask)? => {
                ptrace::set_registers(pid, &registers)
            }
            _ => Ok(()),
        }
    }
}

impl Infection {
    /// The state of a process before CRIU changes it. All its threads are stopped.
    fn of(pid: i32) -> Self {
        let open = numbers_in(&format!("/proc/{pid}/fd")).unwrap_or_default();
        Self { descriptors: open.into_iter().collect::<BTreeSet<_>>(), ..Self::default() }
    }
}
