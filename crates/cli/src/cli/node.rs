//! `transhume node`

use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use engine_criu::process::{Config, ContainerConfig, ProcessEngine};
use engine_vm::VmEngine;
use node::{Nics, NodeOptions};
use overlay_io::offloads::{Offload, Offloads};

use super::words;
use crate::failure::{Failure, Result};
use crate::logging::Logging;
use crate::{library, precedence};

/// Runs the node of this host, which starts and moves instances
///
/// It runs until SIGTERM or SIGINT; instances continue to run, and the next node finds them again. It requires
/// root, a bridge for the instances, and CRIU (`scripts/criu.sh` gets it).
#[derive(Args)]
#[command(
    after_help = "Example:\n  transhume node --name node1 --listen 192.0.2.11:7700 --join 192.0.2.1:7700"
)]
pub struct Arguments {
    /// The host's name, as in its certificate
    #[arg(long)]
    name: String,
    /// The address at which other nodes reach this one
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The address of the coordinator
    #[arg(long, value_name = "ADDRESS:PORT")]
    join: SocketAddr,
    /// Offloads that the overlay does not use, although the kernel may have them; this makes traffic slower
    #[arg(long, value_name = "OFFLOAD", value_delimiter = ',', value_parser = offload())]
    without: Vec<Offload>,
    /// Serves metrics of the overlay for Prometheus at http://ADDRESS:PORT/metrics, without authentication
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// The directory with this host's certificate and key, and `authority.pem`
    #[arg(long, value_name = "DIR", default_value = "/etc/transhume/pki")]
    pki: PathBuf,
    /// The directory for the node's durable state; no other node may use it. If a file `leave` is made in it, the host asks to be
    /// emptied, for the reason in the file's first line: `transhume plan --auto` drains it then
    #[arg(long, value_name = "DIR", default_value = "/var/lib/transhume/node")]
    state: PathBuf,
    /// Directories for image files of instances; the first one with enough room is used
    #[arg(long, value_name = "DIR", default_values = ["/dev/shm/transhume", "/var/lib/transhume/images"])]
    images: Vec<PathBuf>,
    /// Limits the rate, in MiB/s, at which this host sends memory of running instances, to leave bandwidth for
    /// other traffic; pages that an instance waits for after `transhume move --post-copy` are not limited
    /// [default: unlimited]
    #[arg(long, value_name = "MIB")]
    move_bandwidth: Option<NonZeroU32>,
    /// The bridge for the instances
    #[arg(long, default_value = "br0")]
    bridge: String,
    /// The OCI runtime for containers, compatible with runc [default: runc or crun from $PATH]
    #[arg(long, value_name = "PATH", env = "TRANSHUME_RUNTIME")]
    runtime: Option<PathBuf>,
    /// CRIU 4.2 or newer [default: the one from scripts/criu.sh, or the installed one]
    #[arg(long, value_name = "PATH", env = "TRANSHUME_CRIU")]
    criu: Option<PathBuf>,
    /// QEMU for virtual machines [default: qemu-system-x86_64 from $PATH]
    #[arg(long, value_name = "PATH", env = "TRANSHUME_QEMU")]
    qemu: Option<PathBuf>,
    /// Emulates the processors of virtual machines, and does not test whether KVM works
    #[arg(long, env = "TRANSHUME_WITHOUT_KVM")]
    without_kvm: bool,
    /// How often the use of processors, memory, disks and networks is sampled
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = words::interval, env = "TRANSHUME_SAMPLE_INTERVAL")]
    sample_interval: Duration,
    #[command(flatten)]
    logging: Logging,
}

impl Arguments {
    pub fn run(self) -> Result<ExitCode> {
        self.logging.begin();
        // SAFETY: the call has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            let message = "a node creates namespaces and moves programs of other users, which requires root";
            return Err(Failure::new(message, "run this with sudo"));
        }
        precedence::take();
        let nics = Nics::default();
        let machines = engine_vm::Config {
            kvm: !self.without_kvm,
            emulator: self.qemu.unwrap_or_else(|| "qemu-system-x86_64".into()),
            state: self.state.join("machines"),
            bridge: self.bridge.clone(),
            overlay: Some(Arc::new(nics.clone())),
            tools: library::folder().ok(),
            init: init_command()?,
        };
        let config = Config {
            criu: self.criu.unwrap_or_else(default_criu),
            state: self.state.join("engine"),
            images: self.images,
            bridge: self.bridge,
            overlay: Some(Arc::new(nics.clone())),
            init: init_command()?,
            containers: Some(containers(self.runtime, &self.state)),
        };
        let engine = ProcessEngine::new(config).map_err(|error| Failure::new(error.to_string(), ""))?;
        let machines = VmEngine::new(machines).map_err(|error| Failure::new(error.to_string(), ""))?;
        node::run(NodeOptions {
            name: self.name,
            listen: self.listen,
            join: self.join,
            metrics: self.metrics,
            offloads: Offloads::ALL.without(&self.without),
            pki: self.pki,
            state: self.state,
            engines: vec![Arc::new(engine), Arc::new(machines)],
            start_patience: START_PATIENCE,
            sample_interval: self.sample_interval,
            move_bandwidth: self.move_bandwidth.map(|mebibytes| u64::from(mebibytes.get()) << 20),
            nics,
            device: None,
            progress: Box::new(drop),
        })
        .map_err(|error| Failure::new(error.to_string(), error.remedy()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Parses the name of an offload.
fn offload() -> impl TypedValueParser<Value = Offload> {
    let names = Offload::EACH.map(Offload::name);
    PossibleValuesParser::new(names).try_map(|name| Offload::named(&name).ok_or("unknown offload"))
}

/// How long a command may take to start on a busy host.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// The command that starts an instance's first process. It carries the lab's mark as an argument, because the environment is the
/// instance's.
fn init_command() -> Result<Vec<OsString>> {
    let mut command = vec![env::current_exe()?.into(), "init".into()];
    if let Ok(id) = env::var(lab::mark::VARIABLE) {
        command.extend(["--mark".into(), lab::mark::assignment(&id).into()]);
    }
    command.push("--".into());
    Ok(command)
}

/// The configuration of containers, with the given runtime or the first one found. Without the RDMA libraries, containers have no RDMA device.
fn containers(given: Option<PathBuf>, state: &Path) -> ContainerConfig {
    const KNOWN: [&str; 2] = ["runc", "crun"];
    let folders = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&folders).collect();
    let in_path = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    ContainerConfig {
        runtime: given.or_else(|| KNOWN.into_iter().find_map(in_path)),
        folder: state.join("containers"),
        unpacked: state.join("unpacked"),
        libraries: library::folder().ok(),
        hosts: Some(state.join(node::HOSTS)),
        devices: Some(fabric::device_file::FOLDER.into()),
    }
}

/// The CRIU that `scripts/criu.sh` has built, unless the installed one is new enough.
fn default_criu() -> PathBuf {
    let fetched = Path::new("/var/cache/transhume/criu/criu");
    if fetched.exists() { fetched.to_owned() } else { "criu".into() }
}
