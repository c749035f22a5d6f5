//! Whether KVM works on this host.
//!
//! `/dev/kvm` may exist and not run guests: in a virtual machine without nested virtualization, or where something with KVM's interface
//! runs only kernels made for it. So a small guest is run under KVM, once and within seconds, in the background. It does what kernels rely
//! on, and reports each step: see `guest.s`.

mod firmware;

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use engine_criu::shared::without_real_time;
use rustix::fs::OFlags;

/// How long the emulator may take in all.
const LIMIT: Duration = Duration::from_secs(5);

/// How long a step of the test guest may take: it needs milliseconds. A guest that hangs occupies a processor.
const STEP_LIMIT: Duration = Duration::from_secs(1);

/// QEMU's exit code when the guest has written 42 to its exit port.
const SUCCESS: i32 = 42 << 1 | 1;

/// The result; the reason why KVM cannot be used.
pub type Verdict = Result<(), String>;

/// A test that runs in the background, or has ended.
#[derive(Clone, Debug, Default)]
pub struct Probe(Arc<OnceLock<Verdict>>);

impl Probe {
    /// Begins the test with this emulator. It makes a file in `folder` meanwhile.
    pub fn begin(emulator: PathBuf, folder: &Path) -> Self {
        let (probe, file) = (Self::default(), folder.join("kvm-test-firmware"));
        let verdict = probe.0.clone();
        thread::spawn(move || {
            let found = run_guest(&emulator, &file, "kvm", "host", Limits { all: LIMIT, step: STEP_LIMIT });
            let found = found.unwrap_or_else(|error| Err(format!("the test of KVM cannot be run ({error})")));
            let _deleted = fs::remove_file(&file);
            verdict.get_or_init(|| found);
        });
        probe
    }

    /// A test that has ended with this result.
    pub fn known(verdict: Verdict) -> Self {
        Self(Arc::new(OnceLock::from(verdict)))
    }

    /// The result. Waits for it, for seconds at most.
    pub fn verdict(&self) -> &Verdict {
        self.0.wait()
    }
}

/// How long a test guest may take.
#[derive(Clone, Copy)]
struct Limits {
    all: Duration,
    step: Duration,
}

/// Runs the test guest under an accelerator.
fn run_guest(
    emulator: &Path,
    file: &Path,
    accelerator: &str,
    model: &str,
    limits: Limits,
) -> io::Result<Verdict> {
    if accelerator == "kvm" && !Path::new("/dev/kvm").exists() {
        return Ok(Err("there is no /dev/kvm".into()));
    }
    fs::write(file, firmware::image())?;
    let mut command = Command::new(emulator);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-m", "16M"]);
    command.args(["-accel", accelerator, "-cpu", model, "-bios"]).arg(file);
    command.args([
        "-chardev",
        "stdio,id=steps,signal=off",
        "-device",
        "isa-debugcon,iobase=0xe9,chardev=steps",
    ]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: the function only makes system calls.
    unsafe { command.pre_exec(be_humble) };
    let mut child = command.spawn()?;
    let mut steps = Steps::of(&mut child)?;
    let ended = end_within(&mut child, &mut steps, limits)?;
    Ok(match ended {
        Some(status) if status.code() == Some(SUCCESS) => Ok(()),
        Some(_) => Err(format!("QEMU says: {}", said(&mut child))),
        None => Err(hangs(&steps.taken)),
    })
}

/// A guest that hangs must not keep others from their processors, least of all with the real-time policy of the node, and must not outlive
/// the node.
fn be_humble() -> io::Result<()> {
    const LEAST: libc::c_int = 19;
    without_real_time(0)?;
    // SAFETY: no memory is passed.
    let results = unsafe {
        [libc::setpriority(libc::PRIO_PROCESS, 0, LEAST), libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)]
    };
    if results == [0, 0] { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits for the emulator. One that does not end in time is killed; the result is `None` then.
fn end_within(child: &mut Child, steps: &mut Steps, limits: Limits) -> io::Result<Option<ExitStatus>> {
    /// A process may be stuck in the kernel. It is a zombie of this process when it ends.
    const KILLED: Duration = Duration::from_secs(1);
    const LOOK: Duration = Duration::from_millis(5);
    let begun = Instant::now();
    let (mut last_step, mut killed) = (None, None::<Instant>);
    loop {
        if steps.look()? {
            last_step = Some(Instant::now());
        }
        let is_late = begun.elapsed() > limits.all
            || last_step.is_some_and(|step: Instant| step.elapsed() > limits.step);
        match child.try_wait()? {
            Some(status) => return Ok(Some(status).filter(|_| killed.is_none())),
            None if killed.is_some_and(|killed| killed.elapsed() > KILLED) => return Ok(None),
            None if is_late && killed.is_none() => {
                child.kill()?;
                killed = Some(Instant::now());
            }
            None => thread::sleep(LOOK),
        }
    }
}

/// The letters that the guest writes, one for each step.
struct Steps {
    output: ChildStdout,
    taken: String,
}

impl Steps {
    fn of(child: &mut Child) -> io::Result<Self> {
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // An emulator that is stuck has not closed it.
        rustix::fs::fcntl_setfl(&output, OFlags::NONBLOCK)?;
        Ok(Self { output, taken: String::new() })
    }

    /// Whether the guest has taken another step.
    fn look(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 16];
        match self.output.read(&mut bytes) {
            Ok(length) => {
                self.taken.push_str(&String::from_utf8_lossy(&bytes[..length]));
                Ok(length > 0)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The emulator's own message.
fn said(child: &mut Child) -> String {
    let mut text = String::new();
    let _cut = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut text));
    crate::machine::last_line(&text).to_owned()
}

/// Where a guest hangs that has taken these steps.
fn hangs(steps: &str) -> String {
    let place = match steps.chars().last() {
        None => "at its first instruction",
        Some('r') => "on the way to protected mode",
        Some('p') => "on the way to 64-bit mode",
        Some('l') => "at a page fault",
        Some('f') => "as it waits for timer interrupts",
        Some(_) => "at its end",
    };
    format!("a test guest under KVM hangs {place}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::find;

    /// Emulation takes long on a busy machine.
    const PATIENT: Limits = Limits { all: Duration::from_secs(60), step: Duration::from_secs(30) };

    #[test]
    fn the_test_guest_takes_all_steps_on_a_processor_that_works() {
        let emulator = find(Path::new("qemu-system-x86_64")).expect("QEMU is installed");
        let folder = tempfile::tempdir().unwrap();
        let verdict = run_guest(&emulator, &folder.path().join("firmware"), "tcg", "qemu64", PATIENT);
        assert_eq!(verdict.unwrap(), Ok(()));
    }

    #[test]
    fn the_place_where_a_guest_hangs_is_named() {
        assert_eq!(hangs("rp"), "a test guest under KVM hangs on the way to 64-bit mode");
        assert_eq!(hangs(""), "a test guest under KVM hangs at its first instruction");
    }

    #[test]
    fn an_emulator_that_refuses_is_quoted() {
        let emulator = find(Path::new("qemu-system-x86_64")).expect("QEMU is installed");
        let folder = tempfile::tempdir().unwrap();
        let verdict = run_guest(&emulator, &folder.path().join("firmware"), "tcg", "abacus", PATIENT);
        let refusal = verdict.unwrap().unwrap_err();
        assert!(refusal.starts_with("QEMU says:") && refusal.contains("abacus"), "{refusal}");
    }
}
