//! `transhume net up`
//!
//! * [`state`]: the durable state of a joined machine. [`told`]: messages to the user.

mod state;
mod told;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::DEFAULT_MTU;
use clap::Args;
use clap::builder::PossibleValuesParser;
use coordinator::{CoordinatorOptions, Enrolment};
use moves::HostName;
use node::{Device, Nics, NodeError, NodeOptions, Progress};
use overlay_io::offloads::{Offload, Offloads};
use rpc::COORDINATOR;
use rpc::token::JoinToken;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{device, token};
use crate::cli::target::Target;
use crate::failure::{Failure, Result};
use crate::logging::Logging;
use crate::precedence;
use state::{Folder, Role, Settings};
use told::{Told, join_command};

/// Resets an option to its default.
const NONE: &str = "none";

/// Joins machines into an overlay, with two commands and no other set-up
///
/// The first machine creates the network and prints a join token; other machines join with it until it expires
/// (`transhume net token` prints another). All machines then share one Ethernet, through a network device on each. The
/// command runs in the foreground until SIGTERM or SIGINT, as a systemd service does. It stores its settings: a later start needs no options except `--state` and `--socket`.
///
/// The first machine listens on TCP port PORT, and on the next port with TCP and UDP. Other machines listen on the
/// next port too, but need not be reachable, because they dial. Run other `transhume net` commands on the first machine.
#[derive(Args)]
#[command(
    mut_arg("levels", |levels| levels.default_value("warn")),
    after_help = "Examples:\n  transhume net up --listen 192.0.2.1:7700 --address 10.88.0.1/24\n  \
                  transhume net up --join TOKEN --address 10.88.0.2/24\n  transhume net up\n  \
                  transhume net up --mtu 8900 --without kernel,udp-gro --metrics 127.0.0.1:9464"
)]
pub struct Arguments {
    /// The token with which this machine joins
    #[arg(long, value_name = "TOKEN", value_parser = join_token)]
    join: Option<JoinToken>,
    /// The address at which others reach the first machine; on other machines, the address to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The network device's address with its prefix
    #[arg(long, value_name = "ADDRESS/PREFIX", value_parser = device::address)]
    address: Option<String>,
    /// The network device's name [default: transhume0]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The network device's MTU; frames that do not fit into a datagram are fragmented, which is slower [default: 1400]
    #[arg(long, value_name = "BYTES", value_parser = device::mtu())]
    mtu: Option<u32>,
    /// Offloads that the overlay does not use, although the kernel may have them; `none` resets this
    #[arg(long, value_name = "OFFLOAD", value_delimiter = ',', value_parser = PossibleValuesParser::new(offloads()))]
    without: Vec<String>,
    /// Serves metrics for Prometheus at http://ADDRESS:PORT/metrics, without authentication; `none` resets this
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = metrics)]
    metrics: Option<Metrics>,
    /// This machine's name in the network [default: its host name]
    #[arg(long)]
    name: Option<String>,
    /// The directory for this machine's durable state
    #[arg(long, value_name = "DIR", default_value = "/var/lib/transhume/net")]
    state: PathBuf,
    /// Prints progress as JSON lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    logging: Logging,
}

/// Why the machine no longer takes part.
struct Ended {
    why: Failure,
    /// The only reason is that the coordinator has removed the machine.
    is_unwelcome: bool,
}

impl From<Failure> for Ended {
    fn from(why: Failure) -> Self {
        Self { why, is_unwelcome: false }
    }
}

/// The address of the metrics, if any.
#[derive(Clone, Copy)]
struct Metrics(Option<SocketAddr>);

fn metrics(text: &str) -> std::result::Result<Metrics, String> {
    match text.parse() {
        Ok(address) => Ok(Metrics(Some(address))),
        Err(_) if text == NONE => Ok(Metrics(None)),
        Err(_) => Err(format!("use an address with a port such as 127.0.0.1:9464, or `{NONE}`")),
    }
}

fn offloads() -> impl Iterator<Item = &'static str> {
    Offload::EACH.map(Offload::name).into_iter().chain([NONE])
}

fn join_token(text: &str) -> std::result::Result<JoinToken, String> {
    text.parse::<JoinToken>().map_err(|error| error.to_string())
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let json = self.json;
        let ended = self.run_here(target).map(|()| ExitCode::SUCCESS);
        ended.map_err(|failure| if json { failure.in_json() } else { failure })
    }

    fn run_here(self, target: &Target) -> Result<()> {
        // SAFETY: the call has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Failure::new("creating a network device requires root", "run this with sudo"));
        }
        self.logging.begin();
        let folder = Folder::take(self.state.clone())?;
        precedence::take();
        node::raise_descriptor_limit();
        match self.take_part_for_once(&folder, target) {
            // The machine was removed while it was down. The token lets it join again.
            Err(Ended { is_unwelcome: true, .. }) if self.join.is_some() => {
                self.take_part_for_once(&folder, target).map_err(|ended| ended.why)
            }
            ended => ended.map_err(|ended| ended.why),
        }
    }

    fn take_part_for_once(&self, folder: &Folder, target: &Target) -> Result<(), Ended> {
        let runtime = Runtime::new().map_err(Failure::from)?;
        let aborts = rpc::daemon::abort_on_panic();
        let ended = runtime.block_on(self.take_part(folder, target));
        drop(aborts);
        runtime.shutdown_background();
        ended
    }

    async fn take_part(&self, folder: &Folder, target: &Target) -> Result<(), Ended> {
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::from)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::from)?;
        let working = async {
            let settings = match folder.settings()? {
                Some(settings) => match folder.removal() {
                    Some(removal) => self.come_back(settings, folder, removal).await?,
                    None => self.go_on(settings, folder)?,
                },
                None => self.begin(folder).await?,
            };
            serve(&settings, folder, target, self.json).await
        };
        tokio::select! {
            ended = working => ended,
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    }

    /// Joins, or creates the network, for the first time.
    async fn begin(&self, folder: &Folder) -> Result<Settings> {
        let name = self.name.clone().unwrap_or_else(host_name);
        let (role, listen) = match (&self.join, self.listen) {
            (Some(token), listen) => {
                let coordinator = token.coordinator;
                (Role::Joined { coordinator }, listen.map_or_else(|| anywhere(coordinator), Ok)?)
            }
            (None, Some(listen)) => (Role::First, reachable(listen)?),
            (None, None) => return Err(neither_first_nor_joining()),
        };
        check_name(&name)?;
        let device = self.device.clone().unwrap_or_else(|| "transhume0".into());
        let settings = Settings {
            name,
            role,
            listen,
            device,
            former_device: None,
            address: None,
            mtu: None,
            without: Vec::new(),
            metrics: None,
        };
        let settings = self.amend(settings);
        match &self.join {
            Some(token) => folder.join(&settings, token).await?,
            None => folder.found(&settings)?,
        }
        Ok(settings)
    }

    /// Joins again after a removal: with a new key, and the previous settings unless options override them.
    async fn come_back(&self, before: Settings, folder: &Folder, removal: Failure) -> Result<Settings> {
        let Some(token) = &self.join else { return Err(removal) };
        let settings = Settings {
            name: self.name.clone().unwrap_or(before.name),
            role: Role::Joined { coordinator: token.coordinator },
            listen: self.listen.unwrap_or(before.listen),
            device: self.device.clone().unwrap_or(before.device),
            former_device: None,
            ..before
        };
        check_name(&settings.name)?;
        let settings = self.amend(settings);
        folder.join(&settings, token).await?;
        Ok(settings)
    }

    /// Starts again with the previous settings, unless options override them.
    fn go_on(&self, before: Settings, folder: &Folder) -> Result<Settings> {
        let mut settings = before.clone();
        if let Some(name) = self.name.as_ref().filter(|name| **name != before.name) {
            let what = format!(
                "this machine has already joined as `{}` and cannot change its name to `{name}`",
                before.name
            );
            return Err(Failure::new(what, self.forgetting()));
        }
        if let Some(token) = &self.join {
            if folder.authority()? != token.authority {
                let what = format!("this machine has already joined another network, as `{}`", before.name);
                return Err(Failure::new(what, self.forgetting()));
            }
            if let Role::Joined { coordinator } = &mut settings.role {
                *coordinator = token.coordinator;
            }
        }
        if let Some(listen) = self.listen {
            settings.listen = if settings.role == Role::First { reachable(listen)? } else { listen };
        }
        settings = self.amend(settings);
        if let Some(device) = self.device.as_ref().filter(|device| **device != before.device) {
            let former = std::mem::replace(&mut settings.device, device.clone());
            // A device that never existed need not be removed.
            settings.former_device = settings.former_device.or(Some(former));
        }
        if settings != before {
            folder.note(&settings)?;
        }
        Ok(settings)
    }

    /// The settings, with overrides for those that may change at any time.
    fn amend(&self, mut settings: Settings) -> Settings {
        settings.address = self.address.clone().or(settings.address);
        settings.mtu = self.mtu.or(settings.mtu);
        if !self.without.is_empty() {
            settings.without = self.without.iter().filter(|name| *name != NONE).cloned().collect();
        }
        if let Some(Metrics(address)) = self.metrics {
            settings.metrics = address;
        }
        settings
    }

    fn forgetting(&self) -> String {
        format!(
            "delete its state and keys with `rm -r {}`, or choose another directory with `--state`",
            self.state.display()
        )
    }
}

fn neither_first_nor_joining() -> Failure {
    Failure::new(
        "neither `--listen` nor `--join` was given",
        "start the first machine with `--listen ADDRESS:PORT`; it prints a token for `--join` on the others",
    )
}

/// This machine's host name, adapted to the rules of certificates.
fn host_name() -> String {
    fit(&fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default())
}

fn fit(name: &str) -> String {
    let first = name.trim().split('.').next().unwrap_or_default().to_ascii_lowercase();
    let fit = first.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    fit.trim_matches('-').chars().take(63).collect()
}

/// Fails for a name that the coordinator would refuse.
fn check_name(name: &str) -> Result<()> {
    let fits = HostName::new(name).is_ok() && name == name.to_ascii_lowercase();
    if fits && ![COORDINATOR, "authority"].contains(&name) {
        return Ok(());
    }
    let help = "choose another name with `--name`: lower-case letters, digits, `-` and `.`; `coordinator` and `authority` are reserved";
    Err(Failure::new(format!("`{name}` is not a valid machine name"), help))
}

/// The port after that of `address`, on which nodes listen.
fn next_port(address: SocketAddr) -> Result<u16> {
    address.port().checked_add(1).filter(|port| *port > 1).ok_or_else(|| {
        let what =
            format!("port {} is not usable: the machine listens on it and on the next port", address.port());
        Failure::new(what, "choose another port, such as 7700")
    })
}

/// Checks that others can reach the first machine at `listen`.
fn reachable(listen: SocketAddr) -> Result<SocketAddr> {
    next_port(listen)?;
    if listen.ip().is_unspecified() {
        let what = format!("others cannot reach this machine at {listen}");
        return Err(Failure::new(what, "use an address of this machine from `ip -brief address`"));
    }
    Ok(listen)
}

/// The default listening address of a joined machine.
fn anywhere(coordinator: SocketAddr) -> Result<SocketAddr> {
    let address: IpAddr =
        if coordinator.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    Ok(SocketAddr::new(address, next_port(coordinator)?))
}

/// Takes part until something fails.
async fn serve(settings: &Settings, folder: &Folder, target: &Target, json: bool) -> Result<(), Ended> {
    let (sender, progress) = unbounded_channel();
    let is_welcome = Arc::new(AtomicBool::new(false));
    let welcome = is_welcome.clone();
    let progressing = Box::new(move |step| {
        welcome.fetch_or(matches!(step, Progress::Connected), Ordering::Relaxed);
        drop(sender.send(step));
    });
    let node = tokio::spawn(node::serve(node_options(settings, folder, progressing)?));
    let coordinator = async {
        match settings.role {
            Role::First => {
                let options = coordinator_options(settings, folder, target)?;
                // Not a task of its own: it cleans up when this future is dropped.
                let error = coordinator::serve(options).await;
                Err(Failure::new(error.to_string(), error.remedy()))
            }
            Role::Joined { .. } => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = node => {
            let error = ended.map_err(broken_down)?;
            let mut is_unwelcome = false;
            if let NodeError::Removed(reason) = &error {
                folder.note_removal(reason)?;
                is_unwelcome = !is_welcome.load(Ordering::Relaxed);
            }
            Err(Ended { why: Failure::new(error.to_string(), error.remedy()), is_unwelcome })
        }
        ended = coordinator => Ok(ended?),
        told = tell(settings, folder, progress, target, json) => Ok(told?),
    }
}

fn broken_down(error: tokio::task::JoinError) -> Failure {
    Failure::new(error.to_string(), "")
}

fn node_options(
    settings: &Settings,
    folder: &Folder,
    progress: Box<dyn Fn(Progress) + Send + Sync>,
) -> Result<NodeOptions> {
    let (join, listen) = match settings.role {
        Role::Joined { coordinator } => (coordinator, settings.listen),
        Role::First => (settings.listen, SocketAddr::new(settings.listen.ip(), next_port(settings.listen)?)),
    };
    let device = Device {
        name: settings.device.clone(),
        address: settings.address.clone(),
        mtu: settings.mtu.unwrap_or(DEFAULT_MTU),
        former: settings.former_device.clone(),
    };
    let without: Vec<_> = settings.without.iter().filter_map(|name| Offload::named(name)).collect();
    Ok(NodeOptions {
        name: settings.name.clone(),
        listen,
        join,
        pki: folder.pki(),
        state: folder.of_daemon("node"),
        engines: Vec::new(),
        start_patience: Duration::ZERO,
        sample_interval: Duration::MAX,
        move_bandwidth: None,
        nics: Nics::default(),
        device: Some(device),
        offloads: Offloads::ALL.without(&without),
        metrics: settings.metrics,
        progress,
    })
}

fn coordinator_options(settings: &Settings, folder: &Folder, target: &Target) -> Result<CoordinatorOptions> {
    let center = HostName::new(&settings.name).map_err(|error| Failure::new(error.to_string(), ""))?;
    Ok(CoordinatorOptions {
        listen: settings.listen,
        socket: target.socket_to_listen_on(),
        metrics: None,
        pki: folder.pki(),
        state: folder.of_daemon("coordinator"),
        enrolment: Some(Enrolment { center }),
        cool_down: Duration::ZERO,
    })
}

/// Reports progress to the user. The first machine prints a token, once.
async fn tell(
    settings: &Settings,
    folder: &Folder,
    mut progress: UnboundedReceiver<Progress>,
    target: &Target,
    json: bool,
) -> Result<()> {
    let mut waits = false;
    let mut token_due = settings.role == Role::First;
    while let Some(step) = progress.recv().await {
        match (step, settings.role) {
            (Progress::Unreachable(reason), Role::Joined { coordinator }) if !waits => {
                waits = true;
                Told::Waiting { coordinator, reason: &reason }.tell(json);
            }
            (Progress::Lost, Role::Joined { coordinator }) => Told::Lost { coordinator }.tell(json),
            // On the first machine, the coordinator stops with this process and starts a moment after the node.
            (Progress::Unreachable(_) | Progress::Lost, _) => {}
            (Progress::Connected, _) => {
                waits = false;
                Told::Joined { name: &settings.name }.tell(json);
            }
            (Progress::Plugged, _) => {
                if settings.former_device.is_some() {
                    // The former device is gone now; another device may take its name.
                    folder.note(&Settings { former_device: None, ..settings.clone() })?;
                }
                let address = settings.address.as_deref();
                Told::Device { name: &settings.device, address }.tell(json);
                if std::mem::take(&mut token_due)
                    && let Some(token) = tokio::task::block_in_place(|| token::first(target))?
                {
                    let join = join_command(&token, address);
                    Told::Token { token: &token, join }.tell(json);
                }
            }
        }
    }
    // The node has ended, which is reported elsewhere.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_is_made_fit() {
        for (name, expected) in [("Web_01.example.org\n", "web-01"), ("-x-", "x"), ("\n", ""), ("ä", "")] {
            assert_eq!(fit(name), expected);
        }
        assert_eq!(fit(&"a".repeat(64)).len(), 63);
        for bad in ["", "coordinator", "authority", "A", "a b"] {
            let failure = check_name(bad).unwrap_err().to_string();
            assert!(failure.contains("--name"), "{failure}");
        }
        assert!(check_name("web-01").is_ok());
    }

    #[test]
    fn the_first_machine_has_to_be_reachable_at_two_ports() {
        assert!(reachable("192.0.2.1:7700".parse().unwrap()).is_ok());
        for bad in ["0.0.0.0:7700", "192.0.2.1:65535", "192.0.2.1:0", "[::]:7700"] {
            assert!(reachable(bad.parse().unwrap()).is_err(), "{bad}");
        }
        assert_eq!(anywhere("[::1]:7700".parse().unwrap()).unwrap(), "[::]:7701".parse().unwrap());
    }
}
