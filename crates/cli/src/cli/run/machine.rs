//! The options of `transhume run` for a virtual machine.

use std::path::PathBuf;
use std::str::FromStr;

use api::{Accelerator, Boot, Disk, DiskFormat, Vm};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::container::absolute;
use super::seed::SeedOptions;
use crate::WRONG_USAGE;
use crate::failure::{Failure, Result};

/// The memory of a machine without `--memory`, in bytes.
const MEMORY: u64 = 512 << 20;

/// QEMU takes whole mebibytes.
const UNIT: u64 = 1 << 20;

/// The most processors: a guest with more has not been tested.
const MOST_CPUS: f64 = 64.0;

/// Options of virtual machines.
#[derive(Args)]
#[command(
    next_help_heading = "Options of virtual machines (hosts need QEMU); `--memory` and `--cpus` also apply to virtual machines"
)]
pub struct MachineOptions {
    /// Runs a virtual machine: its output is the serial console, and it ends when the guest powers off
    #[arg(long, conflicts_with_all = ["root", "bundle"])]
    vm: bool,
    /// Boots this kernel; the file must exist on each host
    #[arg(long, value_name = "FILE", requires = "vm")]
    kernel: Option<PathBuf>,
    /// The initial RAM disk of the kernel; the file must exist on each host
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// Arguments of the kernel, besides `console=` and `ip=`
    #[arg(long, value_name = "TEXT", requires = "kernel", default_value = "", hide_default_value = true)]
    append: String,
    /// A disk: an image file at the same path on each host. With `shared`, all hosts have the same file; with `local`, the contents
    /// move along to a new file [default: local]. A file named `.qcow2` has that format, each other is raw, unless `,raw` or `,qcow2` says
    /// otherwise. Without `--kernel`, the machine boots the first disk
    #[arg(long = "disk", value_name = "FILE[,local|,shared][,raw|,qcow2]", requires = "vm")]
    disks: Vec<DiskOption>,
    /// The machine type [default: the newest q35 of the first host's QEMU]
    #[arg(long, value_name = "TYPE", requires = "vm")]
    machine: Option<String>,
    /// The CPU model, with features after commas [default: Nehalem under KVM, else qemu64]
    #[arg(long, value_name = "MODEL", requires = "vm")]
    cpu_model: Option<String>,
    /// How the processors are executed: by the host's (`kvm`), or translated (`tcg`). A machine moves to hosts that can do the
    /// same [default: kvm where it works on the first host]
    #[arg(long, value_name = "WAY", requires = "vm", value_parser = accelerator())]
    accel: Option<Accelerator>,
    /// Adds a display and a tablet, offered by VNC at a Unix socket of the host that only root can use
    #[arg(long, requires = "vm")]
    vnc: bool,
    #[command(flatten)]
    seed: SeedOptions,
}

impl MachineOptions {
    /// The virtual machine to run, if `--vm` was given. `memory` and `cpus` are the values of options that containers have too.
    pub fn vm(
        &self,
        command: &[String],
        stdin: bool,
        (memory, cpus): (Option<u64>, Option<f64>),
    ) -> Result<Option<Vm>> {
        if !self.vm {
            return Ok(None);
        }
        let wrong = |what: &str, remedy: &str| Err(Failure::new(what, remedy).with_code(WRONG_USAGE));
        if !command.is_empty() {
            return wrong("`--vm` takes no command", "start the program in the guest");
        }
        if stdin {
            return wrong("a virtual machine has no standard input", "omit `--stdin`");
        }
        if self.kernel.is_none() && self.disks.is_empty() {
            return wrong("the virtual machine has nothing to boot", "pass `--kernel` or `--disk`");
        }
        let memory_bytes = memory.unwrap_or(MEMORY);
        if memory_bytes % UNIT != 0 {
            return wrong("`--memory` must be a multiple of 1 MiB", "pass a whole number of M or G");
        }
        let cpus = cpus.unwrap_or(1.0);
        if cpus.fract() != 0.0 || !(1.0..=MOST_CPUS).contains(&cpus) {
            return wrong(
                "`--cpus` of a virtual machine must be a whole number up to 64",
                "pass a whole number from 1 to 64",
            );
        }
        let disk = |DiskOption { path, is_shared, format }: &DiskOption| {
            Ok(Disk { path: absolute(path)?, is_shared: *is_shared, format: *format })
        };
        Ok(Some(Vm {
            cpus: cpus as u32,
            memory_bytes,
            machine: self.machine.clone(),
            cpu_model: self.cpu_model.clone(),
            accelerator: self.accel,
            boot: self.boot()?,
            disks: self.disks.iter().map(disk).collect::<Result<_>>()?,
            vnc: self.vnc,
            seed: self.seed.seed()?,
        }))
    }

    fn boot(&self) -> Result<Option<Boot>> {
        let Some(kernel) = &self.kernel else { return Ok(None) };
        let initrd = self.initrd.as_deref().map(absolute).transpose()?;
        Ok(Some(Boot { kernel: absolute(kernel)?, initrd, append: self.append.clone() }))
    }
}

fn accelerator() -> impl TypedValueParser<Value = Accelerator> {
    PossibleValuesParser::new(["kvm", "tcg"])
        .map(|name| if name == "kvm" { Accelerator::Kvm } else { Accelerator::Tcg })
}

/// `FILE[,local|,shared][,raw|,qcow2]`
#[derive(Clone, Debug, PartialEq, Eq)]
struct DiskOption {
    path: PathBuf,
    is_shared: bool,
    format: Option<DiskFormat>,
}

impl FromStr for DiskOption {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let (text, format) = match text.rsplit_once(',') {
            Some((text, "raw")) => (text, Some(DiskFormat::Raw)),
            Some((text, "qcow2")) => (text, Some(DiskFormat::Qcow2)),
            _ => (text, None),
        };
        let (path, is_shared) = match text.rsplit_once(',') {
            Some((path, "shared")) => (path, true),
            Some((path, "local")) => (path, false),
            Some(_) => return Err("use FILE[,local|,shared][,raw|,qcow2]"),
            None => (text, false),
        };
        if path.is_empty() { Err("name a file") } else { Ok(Self { path: path.into(), is_shared, format }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_local_unless_it_says_shared() {
        let disk = |text: &str| text.parse::<DiskOption>();
        let option = |is_shared, format| Ok(DiskOption { path: "/a.img".into(), is_shared, format });
        assert_eq!(disk("/a.img"), option(false, None));
        assert_eq!(disk("/a.img,shared"), option(true, None));
        assert_eq!(disk("/a.img,qcow2"), option(false, Some(DiskFormat::Qcow2)));
        assert_eq!(disk("/a.img,shared,raw"), option(true, Some(DiskFormat::Raw)));
        assert!(
            disk("/a.img,remote").is_err() && disk(",local").is_err() && disk("/a.img,raw,local,x").is_err()
        );
    }
}
