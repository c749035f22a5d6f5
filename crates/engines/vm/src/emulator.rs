//! The installed QEMU: its version, and the machine types and CPU models that it has.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use engine_api::{Error, Result};
use instance::{Accelerator, Blocker, VmSpec};

use crate::disks;
use crate::kvm::Probe;
use crate::record::Hardware;

/// The machine type of a machine whose specification names none. QEMU resolves it to its newest version.
const MACHINE: &str = "q35";

/// The CPU model of an emulated machine whose specification names none. Every QEMU has its features.
const CPU_MODEL: &str = "qemu64";

/// The CPU model of a machine under KVM whose specification names none: the level x86-64-v2, which server processors have had since
/// 2008 (Intel) and 2011 (AMD).
const KVM_CPU_MODEL: &str = "Nehalem";

/// A QEMU that works.
#[derive(Debug)]
pub struct Emulator {
    /// The program.
    pub program: PathBuf,
    /// Its version, as it names itself.
    pub version: String,
    /// The first two numbers of the version.
    release: (u64, u64),
    /// Machine types with versions.
    machines: BTreeSet<String>,
    /// Names that stand for one of those.
    aliases: BTreeMap<String, String>,
    cpu_models: BTreeSet<String>,
}

impl Emulator {
    /// Asks the program, which is found by `PATH` unless it is a path.
    ///
    /// # Errors
    /// If it is not installed, or does not answer.
    pub fn inspect(program: &Path) -> Result<Self> {
        let program = find(program).ok_or_else(|| {
            let what = format!("{} is not installed", program.display());
            Error::unusable(what, "install the package qemu-system-x86, or choose another host")
        })?;
        let version = ask(&program, &["--version"])?.lines().next().unwrap_or_default().to_owned();
        let (machines, aliases) = parse_machines(&ask(&program, &["-machine", "help"])?);
        let cpu_models = parse_cpu_models(&ask(&program, &["-cpu", "help"])?);
        let release = parse_release(&version);
        Ok(Self { program, version, release, machines, aliases, cpu_models })
    }

    /// The option, and its value, with which it becomes `user` when it has opened its devices.
    pub fn runs_as(&self, user: &str) -> [String; 2] {
        /// The first that has the new option. The old one is gone since 10.0.
        const RUN_WITH: (u64, u64) = (9, 1);
        if self.release < RUN_WITH {
            ["-runas".into(), user.into()]
        } else {
            ["-run-with".into(), format!("user={user}")]
        }
    }

    /// Its name and version in two words, such as `QEMU 7.2.22`.
    pub fn name(&self) -> String {
        let number = self.version.split_once("version ").map_or(self.version.as_str(), |(_, rest)| rest);
        format!("QEMU {}", number.split(' ').next().unwrap_or_default())
    }

    /// The hardware of a new machine, with the version of its type.
    ///
    /// # Errors
    /// If this QEMU does not have it.
    pub fn hardware(&self, vm: &VmSpec, kvm: &Probe) -> Result<Hardware> {
        let machine = vm.machine.as_deref().unwrap_or(MACHINE);
        let machine = self.aliases.get(machine).map_or(machine, String::as_str).to_owned();
        let accelerator = match vm.accelerator {
            Some(wanted) => wanted,
            None if kvm.verdict().is_ok() => Accelerator::Kvm,
            None => Accelerator::Tcg,
        };
        let usual = if accelerator == Accelerator::Kvm { KVM_CPU_MODEL } else { CPU_MODEL };
        let cpu_model = vm.cpu_model.as_deref().unwrap_or(usual).to_owned();
        let hardware = Hardware { machine, cpu_model, accelerator, disks: disks::formats(vm)?, seed: None };
        match self.lacks(&hardware, kvm).into_iter().next() {
            Some(Blocker { what, remedy }) => Err(Error::unusable(what, remedy)),
            None => Ok(hardware),
        }
    }

    /// The parts of `hardware` that this QEMU does not have.
    pub fn lacks(&self, hardware: &Hardware, kvm: &Probe) -> Vec<Blocker> {
        let Hardware { machine, cpu_model, .. } = hardware;
        let missing = |kind: &str, name: &str, list: &str| {
            let what = format!("{} has no {kind} `{name}`", self.version);
            Blocker::new(
                what,
                format!("choose one that `qemu-system-x86_64 {list} help` lists, or another host"),
            )
        };
        // A model may be followed by features.
        let (model, _features) = cpu_model.split_once(',').unwrap_or((cpu_model, ""));
        let machine =
            (!self.machines.contains(machine)).then(|| missing("machine type", machine, "-machine"));
        let model = (!self.cpu_models.contains(model)).then(|| missing("CPU model", model, "-cpu"));
        machine.into_iter().chain(model).chain(lacks_accelerator(hardware, kvm)).collect()
    }
}

/// The blocker, if this host cannot execute the machine's processors in the machine's way.
fn lacks_accelerator(hardware: &Hardware, kvm: &Probe) -> Option<Blocker> {
    match hardware.accelerator {
        Accelerator::Kvm => kvm.verdict().as_ref().err().map(|reason| {
            let what = format!("the machine needs KVM ({reason})");
            Blocker::new(
                what,
                "choose a host with KVM (`transhume hosts`), or run the machine with `--accel tcg`",
            )
        }),
        Accelerator::Tcg if hardware.cpu_model.split(',').next() == Some("host") => Some(Blocker::new(
            "the CPU model `host` needs KVM, and the machine runs without",
            "omit `--cpu-model`, or choose a host with KVM (`transhume hosts`)",
        )),
        Accelerator::Tcg => None,
    }
}

/// The program, by `PATH` unless it is a path.
pub fn find(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn ask(program: &Path, arguments: &[&str]) -> Result<String> {
    let answer = Command::new(program).args(arguments).output();
    let wrong = |why: String| {
        let what = format!("{} {} fails: {why}", program.display(), arguments.join(" "));
        Error::unusable(what, "install the package qemu-system-x86 again")
    };
    match answer {
        Ok(answer) if answer.status.success() => Ok(String::from_utf8_lossy(&answer.stdout).into_owned()),
        Ok(answer) => Err(wrong(String::from_utf8_lossy(&answer.stderr).trim().to_owned())),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// A line such as `QEMU emulator version 7.2.22 (Debian …)`; zeros if it is another.
fn parse_release(version: &str) -> (u64, u64) {
    let numbers = version.split_once("version ").map_or("", |(_, numbers)| numbers);
    let mut numbers =
        numbers.split(|sign: char| !sign.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Lines such as `q35  Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-7.2)`.
fn parse_machines(help: &str) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let (mut machines, mut aliases) = (BTreeSet::new(), BTreeMap::new());
    for line in help.lines().skip(1) {
        let Some(name) = line.split_whitespace().next() else { continue };
        match line.rsplit_once("(alias of ").and_then(|(_, rest)| rest.split_once(')')) {
            Some((versioned, _)) => drop(aliases.insert(name.to_owned(), versioned.to_owned())),
            None => drop(machines.insert(name.to_owned())),
        }
    }
    (machines, aliases)
}

/// Lines such as `x86 Nehalem  (alias configured by machine type)`, until the list of flags. QEMU 10 omits the first word.
fn parse_cpu_models(help: &str) -> BTreeSet<String> {
    let models = help.lines().skip(1).take_while(|line| !line.trim().is_empty());
    let name = |line: &str| {
        let line = line.strip_prefix("x86 ").unwrap_or(line);
        line.split_whitespace().next().map(str::to_owned)
    };
    models.filter_map(name).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// QEMU 7.2 with a few machines and models.
    pub fn emulator() -> Emulator {
        let machines = "Supported machines are:\n\
                        q35                  Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-7.2)\n\
                        pc-q35-7.2           Standard PC (Q35 + ICH9, 2009)\n\
                        pc-q35-7.1           Standard PC (Q35 + ICH9, 2009)\n";
        let models = "Available CPUs:\nx86 486                   (alias configured by machine type)\n\
                      x86 qemu64                (alias configured by machine type)\n\nRecognized CPUID flags:\n  sse sse2\n";
        let (machines, aliases) = parse_machines(machines);
        let (program, version) = ("/usr/bin/qemu".into(), "QEMU 7.2".into());
        let cpu_models = parse_cpu_models(models);
        Emulator { program, version, release: (7, 2), machines, aliases, cpu_models }
    }

    fn tcg() -> Probe {
        Probe::known(Err("there is no /dev/kvm".into()))
    }

    #[test]
    fn kvm_is_the_default_where_it_works_and_a_machine_under_kvm_moves_to_such_hosts_only() {
        let (emulator, kvm) = (emulator(), Probe::known(Ok(())));
        let emulated = emulator.hardware(&vm(None, None), &tcg()).unwrap();
        assert_eq!((emulated.accelerator, emulated.cpu_model.as_str()), (Accelerator::Tcg, "qemu64"));
        assert_eq!(emulator.lacks(&emulated, &kvm), [], "an emulated machine stays emulated");
        let native = emulator.hardware(&vm(None, Some("qemu64")), &kvm).unwrap();
        assert_eq!(native.accelerator, Accelerator::Kvm);
        let blockers = emulator.lacks(&native, &tcg());
        assert_eq!(blockers[0].what, "the machine needs KVM (there is no /dev/kvm)");
        assert!(blockers[0].remedy.contains("--accel tcg") && blockers.len() == 1, "{blockers:?}");
        let wanted = VmSpec { accelerator: Some(Accelerator::Kvm), ..vm(None, Some("qemu64")) };
        assert!(emulator.hardware(&wanted, &tcg()).is_err());
        let refusal = emulator.hardware(&vm(None, Some("host")), &tcg()).unwrap_err().to_string();
        assert!(refusal.contains("CPU model `host`"), "{refusal}");
    }

    fn vm(machine: Option<&str>, cpu_model: Option<&str>) -> VmSpec {
        let (machine, cpu_model) = (machine.map(str::to_owned), cpu_model.map(str::to_owned));
        VmSpec {
            cpus: 1,
            memory: 1 << 28,
            machine,
            cpu_model,
            accelerator: None,
            boot: None,
            disks: Vec::new(),
            vnc: false,
            seed: None,
        }
    }

    #[test]
    fn a_machine_type_is_recorded_with_its_version() {
        let emulator = emulator();
        assert_eq!(emulator.hardware(&vm(None, None), &tcg()).unwrap().machine, "pc-q35-7.2");
        assert_eq!(emulator.hardware(&vm(Some("pc-q35-7.1"), None), &tcg()).unwrap().machine, "pc-q35-7.1");
        assert!(emulator.hardware(&vm(None, Some("qemu64,+aes")), &tcg()).is_ok());
    }

    #[test]
    fn each_release_drops_its_privileges_by_the_option_that_it_has() {
        let of = |version: &str| Emulator { release: parse_release(version), ..emulator() }.runs_as("nobody");
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)";
        assert_eq!(of(debian), ["-runas", "nobody"]);
        assert_eq!(of("QEMU emulator version 10.0.2"), ["-run-with", "user=nobody"]);
        assert_eq!(of("QEMU emulator version 9.1-rc2"), ["-run-with", "user=nobody"]);
    }

    #[test]
    fn missing_hardware_is_named() {
        let refusal = emulator().hardware(&vm(Some("pc-q35-9.9"), None), &tcg()).unwrap_err().to_string();
        assert!(refusal.starts_with("QEMU 7.2 has no machine type `pc-q35-9.9`: choose one"), "{refusal}");
        let refusal = emulator().hardware(&vm(None, Some("sse")), &tcg()).unwrap_err().to_string();
        assert!(refusal.starts_with("QEMU 7.2 has no CPU model `sse`"), "{refusal}");
    }

    #[test]
    fn a_missing_emulator_is_named_with_its_package() {
        let refusal = Emulator::inspect(Path::new("/nowhere/qemu")).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "/nowhere/qemu is not installed: install the package qemu-system-x86, or choose another host"
        );
    }
}
