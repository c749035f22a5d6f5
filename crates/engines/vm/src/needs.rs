//! The needs of a machine at its destination, which only this engine reads.

use std::fs;
use std::path::PathBuf;

use engine_api::{Error, Needs, Result};
use instance::{Accelerator, Blocker, VmSpec};
use serde::{Deserialize, Serialize};

use crate::disks::{self, DiskNeed, LocalDisk};
use crate::emulator::Emulator;
use crate::kvm::Probe;
use crate::processor;
use crate::record::Hardware;

/// The memory that an emulator uses beside its guest's, in bytes: half of it for translated instructions.
const OVERHEAD: u64 = 256 << 20;

/// The needs besides memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Details {
    /// The hardware.
    pub hardware: Hardware,
    /// Files that must be the same, with their sizes.
    pub files: Vec<(PathBuf, u64)>,
    /// Shared disks.
    disks: Vec<DiskNeed>,
    /// Disks that come along.
    pub local: Vec<LocalDisk>,
    /// The identity of the host's processor, if the machine has all its features.
    processor: Option<Vec<String>>,
}

impl Details {
    /// The needs of a machine of this host.
    pub fn of(vm: &VmSpec, hardware: &Hardware, local: Vec<LocalDisk>) -> Self {
        let size = |path: PathBuf| fs::metadata(&path).map_or(0, |found| found.len());
        let files = files(vm).map(|path| (path.clone(), size(path)));
        let is_hosts_own =
            hardware.accelerator == Accelerator::Kvm && processor::is_hosts_own(&hardware.cpu_model);
        let processor = is_hosts_own.then(|| processor::identity().unwrap_or_default());
        let (hardware, files) = (hardware.clone(), files.collect());
        Self { hardware, files, disks: disks::needs(vm), local, processor }
    }

    /// The same for a machine in a checkpoint: its shared disks come along too.
    pub fn of_saved(vm: &VmSpec, hardware: &Hardware, all: Vec<LocalDisk>) -> Self {
        Self { disks: Vec::new(), ..Self::of(vm, hardware, all) }
    }

    /// As the node carries them.
    pub fn encode(&self, vm: &VmSpec) -> Needs {
        let details = serde_json::to_vec(self).unwrap_or_default();
        Needs { memory: memory(vm), details }
    }

    /// Decodes them.
    ///
    /// # Errors
    /// If another release wrote them.
    pub fn decode(needs: &Needs) -> Result<Self> {
        let wrong = |_| Error::unusable("the source runs another release", "use one release on all hosts");
        serde_json::from_slice(&needs.details).map_err(wrong)
    }

    /// The needs that a host with this emulator does not meet.
    pub fn blockers(&self, emulator: &Emulator, kvm: &Probe) -> Vec<Blocker> {
        let mut blockers = emulator.lacks(&self.hardware, kvm);
        blockers.extend(self.differs());
        for (path, size) in &self.files {
            let place = path.display();
            match fs::metadata(path) {
                Err(error) => {
                    let remedy = "copy it there, to the same path";
                    blockers.push(Blocker::new(format!("{place} cannot be read ({error})"), remedy));
                }
                Ok(found) if found.len() != *size => {
                    let what = format!("{place} has {} bytes, and {size} on the machine's host", found.len());
                    blockers.push(Blocker::new(what, "copy the file from there"));
                }
                Ok(_) => {}
            }
        }
        blockers.extend(disks::blockers(&self.disks));
        blockers.extend(self.local.iter().filter_map(LocalDisk::blocker));
        blockers
    }
}

impl Details {
    /// The blocker, if the machine has all features of its host's processor, and this host has another one.
    fn differs(&self) -> Option<Blocker> {
        let theirs = self.processor.as_ref()?;
        let own = processor::identity().unwrap_or_default();
        (*theirs != own).then(|| {
            let model = &self.hardware.cpu_model;
            let what = format!("the processor there differs, and the machine runs with `--cpu-model {model}`");
            let remedy = "choose a host with the same processor, or run the machine with a named model, such as Nehalem";
            Blocker::new(what, remedy)
        })
    }
}

/// The memory of a machine with its emulator, in bytes.
pub fn memory(vm: &VmSpec) -> u64 {
    vm.memory + OVERHEAD
}

/// Refuses a machine whose files are missing.
///
/// # Errors
/// If one cannot be read.
pub fn must_exist(vm: &VmSpec) -> Result<()> {
    for path in files(vm) {
        disks::open_at_once(fs::File::options().read(true), &path).map_err(|error| {
            let what = format!("{} cannot be read ({error})", path.display());
            Error::unusable(what, "pass a file that exists on the host, or choose another host")
        })?;
    }
    Ok(())
}

/// The files that a machine loads when it boots.
fn files(vm: &VmSpec) -> impl Iterator<Item = PathBuf> {
    let boot = vm.boot.iter();
    boot.flat_map(|boot| [Some(boot.kernel.clone()), boot.initrd.clone()].into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use instance::Boot;

    use super::*;

    #[test]
    fn a_missing_kernel_is_named() {
        let boot = Boot { kernel: "/nowhere/vmlinuz".into(), initrd: None, append: String::new() };
        let (machine, cpu_model, disks) = (None, None, Vec::new());
        let vm = VmSpec {
            cpus: 1,
            memory: 1 << 28,
            machine,
            cpu_model,
            accelerator: None,
            boot: Some(boot),
            disks,
            vnc: false,
            seed: None,
        };
        let refusal = must_exist(&vm).unwrap_err().to_string();
        assert!(refusal.starts_with("/nowhere/vmlinuz cannot be read (No such file"), "{refusal}");
    }

    #[test]
    fn a_machine_with_its_hosts_processor_moves_to_the_same_one_only() {
        let vm = VmSpec {
            cpus: 1,
            memory: 1 << 28,
            machine: None,
            cpu_model: None,
            accelerator: None,
            boot: None,
            disks: Vec::new(),
            vnc: false,
            seed: None,
        };
        let (machine, cpu_model, accelerator) = ("pc-q35-7.2".into(), "host".into(), Accelerator::Kvm);
        let hardware = Hardware { machine, cpu_model, accelerator, disks: Vec::new(), seed: None };
        let mut details = Details::of(&vm, &hardware, Vec::new());
        assert_eq!(details.differs(), None);
        details.processor.as_mut().unwrap().push("another".into());
        assert!(details.differs().unwrap().what.contains("--cpu-model host"));
        let named = Hardware { cpu_model: "Nehalem".into(), ..hardware };
        assert_eq!(Details::of(&vm, &named, Vec::new()).processor, None);
    }

    #[test]
    fn needs_survive_the_way_to_the_other_host() {
        let hardware = Hardware {
            machine: "pc-q35-7.2".into(),
            cpu_model: "qemu64".into(),
            accelerator: Accelerator::Tcg,
            disks: Vec::new(),
            seed: None,
        };
        let details = Details {
            hardware,
            files: vec![("/boot/vmlinuz".into(), 7)],
            disks: Vec::new(),
            local: Vec::new(),
            processor: None,
        };
        let needs = Needs { memory: 1, details: serde_json::to_vec(&details).unwrap() };
        assert_eq!(Details::decode(&needs).unwrap(), details);
        assert!(Details::decode(&Needs::default()).is_err());
    }
}
