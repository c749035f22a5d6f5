//! QEMU's command line.
//!
//! Both ends of a move must give the same devices in the same order: their addresses follow from it. No option names anything that is
//! not in the specification, the record, or fixed here.

use std::path::Path;

use instance::{Accelerator, Boot, InstanceSpec, Network, VmSpec};

use crate::disks;
use crate::emulator::Emulator;
use crate::network::TAP;
use crate::record::{DISPLAY, Hardware, PORT, SEED, SOCKET, file_name};
use crate::seed;

/// The user that QEMU becomes when it has opened its devices.
const USER: &str = "nobody";

/// How QEMU begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// As a new machine.
    New,
    /// As a machine that comes from another host.
    Incoming,
}

/// The arguments for a machine. Its processors are stopped in either case, until `cont`. QEMU makes its socket in its working directory.
pub fn arguments(
    emulator: &Emulator,
    spec: &InstanceSpec,
    vm: &VmSpec,
    hardware: &Hardware,
    begin: Begin,
) -> Vec<String> {
    let mut line = Line::default();
    line.option("-name", format!("guest={}", spec.name));
    // Neither devices nor settings of the host's own.
    line.flag("-nodefaults").flag("-no-user-config");
    line.option("-machine", &hardware.machine).option("-accel", accelerator(hardware));
    line.option("-cpu", cpu_model(hardware)).option("-smp", vm.cpus.to_string());
    line.option("-m", format!("{}M", vm.memory >> 20));
    match vm.vnc {
        true => line.option("-vnc", format!("unix:{}", file_name(&spec.name, DISPLAY))),
        false => line.option("-display", "none"),
    };
    let [as_user, user] = emulator.runs_as(USER);
    line.option("-sandbox", "on,obsolete=deny,spawn=deny").option(&as_user, user);
    let socket = file_name(&spec.name, SOCKET);
    line.option("-chardev", format!("socket,id=qmp,path={socket},server=on,wait=off"));
    line.option("-mon", "chardev=qmp,mode=control");
    line.option("-chardev", "stdio,id=console,signal=off").option("-serial", "chardev:console");
    agent(&mut line, spec);
    network(&mut line, &spec.network);
    for (option, value) in disks::options(vm, &hardware.disks) {
        line.option(option, value);
    }
    if hardware.seed.is_some() {
        for (option, value) in seed::options(&file_name(&spec.name, SEED)) {
            line.option(option, value);
        }
    }
    if vm.vnc {
        display(&mut line);
    }
    if let Some(boot) = &vm.boot {
        kernel(&mut line, boot, &spec.network);
    }
    line.flag("-S");
    if begin == Begin::Incoming {
        line.option("-incoming", "defer");
    }
    line.0
}

/// The memory for translated instructions is limited: it belongs to the overhead of a machine.
fn accelerator(hardware: &Hardware) -> &'static str {
    match hardware.accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg => "tcg,thread=multi,tb-size=128",
    }
}

/// Under KVM, QEMU refuses a model that the host's processor does not have, instead of leaving features out.
fn cpu_model(hardware: &Hardware) -> String {
    match hardware.accelerator {
        Accelerator::Kvm => format!("{},enforce", hardware.cpu_model),
        Accelerator::Tcg => hardware.cpu_model.clone(),
    }
}

/// The serial port to the agent in the machine. The node connects to its socket.
fn agent(line: &mut Line, spec: &InstanceSpec) {
    let socket = file_name(&spec.name, PORT);
    line.option("-device", "virtio-serial-pci");
    line.option("-chardev", format!("socket,id=guest,path={socket},server=on,wait=off"));
    line.option("-device", format!("virtserialport,chardev=guest,name={}", guest::wire::PORT));
}

/// A graphics card, and a tablet: unlike a mouse, its pointer is where the viewer's is.
fn display(line: &mut Line) {
    for device in ["VGA", "qemu-xhci", "usb-tablet"] {
        line.option("-device", device);
    }
}

/// A virtio NIC on the TAP in QEMU's network namespace. The guest learns the MTU from the device. The NIC has no boot ROM.
fn network(line: &mut Line, network: &Network) {
    line.option("-netdev", format!("tap,id=net0,ifname={TAP},script=no,downscript=no"));
    let mac = network.mac.map(|byte| format!("{byte:02x}")).join(":");
    let device = format!("virtio-net-pci,netdev=net0,mac={mac},host_mtu={},romfile=", network.mtu);
    line.option("-device", device);
}

fn kernel(line: &mut Line, boot: &Boot, network: &Network) {
    line.option("-kernel", text(&boot.kernel));
    if let Some(initrd) = &boot.initrd {
        line.option("-initrd", text(initrd));
    }
    let append = format!("console=ttyS0 {} {}", address(network), boot.append);
    line.option("-append", append.trim_end());
}

/// The kernel argument that gives `eth0` its address, as initial RAM disks understand it.
fn address(network: &Network) -> String {
    let mask = u32::MAX.checked_shl(32 - u32::from(network.prefix)).unwrap_or(0);
    format!("ip={}:::{}::eth0:off", network.address, std::net::Ipv4Addr::from(mask))
}

/// Specifications only have paths in UTF-8: others cannot be encoded.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A command line that grows.
#[derive(Default)]
struct Line(Vec<String>);

impl Line {
    fn flag(&mut self, flag: &str) -> &mut Self {
        self.0.push(flag.to_owned());
        self
    }

    fn option(&mut self, option: &str, value: impl Into<String>) -> &mut Self {
        self.0.extend([option.to_owned(), value.into()]);
        self
    }
}

#[cfg(test)]
pub mod tests {
    use std::net::Ipv4Addr;

    use fabric::NetworkKind;
    use instance::{InstanceName, Workload};

    use super::*;
    use crate::emulator::tests::emulator;

    /// A machine with a kernel and without disks.
    pub fn spec() -> InstanceSpec {
        let network = Network {
            mac: [2, 0, 0, 0, 0, 0xa1],
            address: Ipv4Addr::new(10, 77, 1, 1),
            prefix: 16,
            mtu: 1450,
        };
        let (kernel, initrd) = ("/boot/vmlinuz".into(), Some("/boot/initrd".into()));
        let boot = Some(Boot { kernel, initrd, append: "quiet".into() });
        let (machine, cpu_model, disks) = (None, None, Vec::new());
        let vm = VmSpec {
            cpus: 2,
            memory: 512 << 20,
            machine,
            cpu_model,
            accelerator: None,
            boot,
            disks,
            vnc: false,
            seed: None,
        };
        let (name, network_kind) = (InstanceName::new("guest").unwrap(), NetworkKind::Overlay);
        InstanceSpec { name, network, network_kind, workload: Workload::Vm(vm) }
    }

    fn line(begin: Begin) -> Vec<String> {
        let spec = spec();
        let Workload::Vm(vm) = &spec.workload else { unreachable!() };
        let hardware = Hardware {
            machine: "pc-q35-7.2".into(),
            cpu_model: "qemu64".into(),
            accelerator: Accelerator::Tcg,
            disks: Vec::new(),
            seed: None,
        };
        arguments(&emulator(), &spec, vm, &hardware, begin)
    }

    fn value_of<'a>(line: &'a [String], option: &str) -> &'a str {
        &line[line.iter().position(|word| word == option).unwrap() + 1]
    }

    #[test]
    fn the_line_gives_the_guest_its_hardware_and_its_address() {
        let line = line(Begin::New);
        assert_eq!(value_of(&line, "-machine"), "pc-q35-7.2");
        assert_eq!((value_of(&line, "-m"), value_of(&line, "-smp")), ("512M", "2"));
        assert_eq!(value_of(&line, "-append"), "console=ttyS0 ip=10.77.1.1:::255.255.0.0::eth0:off quiet");
        let nic = "virtio-net-pci,netdev=net0,mac=02:00:00:00:00:a1,host_mtu=1450,romfile=";
        assert!(line.windows(2).any(|words| words == ["-device", nic]), "{line:?}");
    }

    #[test]
    fn both_ends_of_a_move_have_the_same_devices_and_neither_starts_by_itself() {
        let (new, incoming) = (line(Begin::New), line(Begin::Incoming));
        assert!(new.contains(&"-S".to_owned()));
        assert_eq!([&new[..], &["-incoming".into(), "defer".into()]].concat(), incoming);
    }
}
