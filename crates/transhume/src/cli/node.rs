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
use engines::process::{Config, ContainerConfig, ProcessEngine};
use node::{Nics, NodeOptions};
use overlay_io::offloads::{Offload, Offloads};

use crate::failure::{Failure, Result};
use crate::logging::Logging;
use crate::{library, precedence};

/// Runs this host's node, which starts and moves instances
///
/// It ends at SIGTERM or SIGINT, and instances run on: the next node finds them again. It needs
/// root, a bridge to which instances are linked, and CRIU as `scripts/criu.sh` gives it.
#[derive(Args)]
#[command(
    after_help = "Example:\n  transhume node --name node1 --listen 192.0.2.11:7700 --join 192.0.2.1:7700"
)]
pub struct Arguments {
    /// The host's name: that of its certificate
    #[arg(long)]
    name: String,
    /// Where other nodes reach this one
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Where the coordinator listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    join: SocketAddr,
    /// What the overlay does not leave to the kernel, which all else is tried for at first. Without all of it traffic is slower
    #[arg(long, value_name = "OFFLOAD", value_delimiter = ',', value_parser = offload())]
    without: Vec<Offload>,
    /// Where Prometheus reads metrics of the overlay, as http://ADDRESS:PORT/metrics. Whoever reaches it can read them
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// The folder with this host's certificate and key, and `authority.pem`
    #[arg(long, value_name = "DIR", default_value = "/etc/transhume/pki")]
    pki: PathBuf,
    /// The folder for what the node must remember; its own alone
    #[arg(long, value_name = "DIR", default_value = "/var/lib/transhume/node")]
    state: PathBuf,
    /// The folders for images of instances; the first with room is taken
    #[arg(long, value_name = "DIR", default_values = ["/dev/shm/transhume", "/var/lib/transhume/images"])]
    images: Vec<PathBuf>,
    /// How many MiB of an instance's memory a second leave this host at the most while it runs, so that moves leave room for others;
    /// what it waits for after `transhume move --post-copy` comes beside that
    /// [default: as many as there is room for]
    #[arg(long, value_name = "MIB")]
    move_bandwidth: Option<NonZeroU32>,
    /// The bridge to which instances are linked
    #[arg(long, default_value = "br0")]
    bridge: String,
    /// What runs containers: runc, or an OCI runtime with the same commands [default: runc or crun, if one is in $PATH]
    #[arg(long, value_name = "PATH", env = "TRANSHUME_RUNTIME")]
    runtime: Option<PathBuf>,
    /// CRIU 4.2 or newer [default: that of scripts/criu.sh, or the one installed]
    #[arg(long, value_name = "PATH", env = "TRANSHUME_CRIU")]
    criu: Option<PathBuf>,
    #[command(flatten)]
    logging: Logging,
}

impl Arguments {
    pub fn run(self) -> Result<ExitCode> {
        self.logging.begin();
        // SAFETY: the call has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            let message = "a node makes namespaces and moves other users' programs, which needs root";
            return Err(Failure::new(message, "run this with sudo"));
        }
        precedence::take();
        let nics = Nics::default();
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
        node::run(NodeOptions {
            name: self.name,
            listen: self.listen,
            join: self.join,
            metrics: self.metrics,
            offloads: Offloads::ALL.without(&self.without),
            pki: self.pki,
            state: self.state,
            engine: Some(Box::new(engine)),
            start_patience: START_PATIENCE,
            move_bandwidth: self.move_bandwidth.map(|mebibytes| u64::from(mebibytes.get()) << 20),
            nics,
            device: None,
            progress: Box::new(drop),
        })
        .map_err(|error| Failure::new(error.to_string(), error.remedy()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads the name of an offload.
fn offload() -> impl TypedValueParser<Value = Offload> {
    let names = Offload::EACH.map(Offload::name);
    PossibleValuesParser::new(names).try_map(|name| Offload::named(&name).ok_or("it is no offload"))
}

/// How long a host that is very busy may take to start a command.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// What starts an instance's first process. A lab's mark goes along, since the environment is the
/// instance's own.
fn init_command() -> Result<Vec<OsString>> {
    let mut command = vec![env::current_exe()?.into(), "init".into()];
    if let Ok(id) = env::var(lab::mark::VARIABLE) {
        command.extend(["--mark".into(), lab::mark::assignment(&id).into()]);
    }
    command.push("--".into());
    Ok(command)
}

/// With the first runtime that is there, unless one is given. Without the libraries programs in containers find no RDMA device.
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
    }
}

/// Where `scripts/criu.sh` puts what it gets, unless an installed CRIU is new enough.
fn default_criu() -> PathBuf {
    let fetched = Path::new("/var/cache/transhume/criu/criu");
    if fetched.exists() { fetched.to_owned() } else { "criu".into() }
}
