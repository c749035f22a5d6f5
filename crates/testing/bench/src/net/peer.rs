//! The peers: how each is configured and started. Each runs with its own defaults, as its MTU, and where it encrypts with a
//! cipher that it would choose itself today.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use e2e::program::{Program, run};

use super::ground::{Ground, address, address_in, eventually};
use super::{Path, RECEIVER, SENDER, measure};

/// How long a peer's tool may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How long a peer may take until something comes through.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Another overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// Layer 3, encrypted.
    WireguardGo,
    /// Layer 3, encrypted.
    Nebula,
    /// Layer 2, in the kernel, not encrypted.
    Vxlan,
    /// Layer 2, encrypted.
    Openvpn,
    /// Layer 2, encrypted.
    Tinc,
    /// Layer 2, encrypted.
    N2n,
    /// Layer 2, not encrypted: copies frames between a TAP and a socket, and does nothing else. No program in user space
    /// has much less latency.
    Socat,
}

/// A peer that carries traffic. Dropping it ends its programs.
pub struct Running {
    /// The way through it.
    pub path: Path,
    _programs: Vec<Program>,
}

/// One end of a peer.
struct End<'a> {
    ground: &'a Ground,
    host: &'static str,
    other: &'static str,
    /// Its own address in the overlay.
    inner: Ipv4Addr,
    /// The other's.
    other_inner: Ipv4Addr,
}

impl Peer {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WireguardGo => "wireguard-go",
            Self::Nebula => "Nebula",
            Self::Vxlan => "kernel VXLAN",
            Self::Openvpn => "OpenVPN tap",
            Self::Tinc => "tinc switch",
            Self::N2n => "n2n",
            Self::Socat => "socat",
        }
    }

    /// The name of its device.
    fn device(self) -> &'static str {
        match self {
            Self::WireguardGo => "wireguard1",
            Self::Nebula => "nebula1",
            Self::Vxlan => "vxlan1",
            Self::Openvpn => "openvpn1",
            Self::Tinc => "tinc1",
            Self::N2n => "n2n1",
            Self::Socat => "socat1",
        }
    }

    /// The third byte of its addresses.
    fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Starts both ends, and returns when something comes through.
    ///
    /// # Errors
    /// If it is not installed, says that it cannot run, or nothing comes through.
    pub fn start(self, ground: &Ground) -> Result<Running> {
        let ends = [End::new(self, ground, SENDER, RECEIVER)?, End::new(self, ground, RECEIVER, SENDER)?];
        let mut programs = match self {
            Self::WireguardGo => wireguard_go(&ends)?,
            Self::Nebula => nebula(&ends)?,
            Self::Vxlan => vxlan(&ends)?,
            Self::Openvpn => openvpn(&ends)?,
            Self::Tinc => tinc(&ends)?,
            Self::N2n => n2n(&ends)?,
            Self::Socat => socat(&ends)?,
        };
        for end in &ends {
            ground.address_device(end.host, self.device(), end.inner, &mut programs)?;
        }
        let path = Path { name: self.name(), address: address_in(self.number(), RECEIVER)?, sealed: None };
        measure::wait(ground, &path, READY_LIMIT)?;
        Ok(Running { path, _programs: programs })
    }
}

impl<'a> End<'a> {
    fn new(peer: Peer, ground: &'a Ground, host: &'static str, other: &'static str) -> Result<Self> {
        let (inner, other_inner) = (address_in(peer.number(), host)?, address_in(peer.number(), other)?);
        Ok(Self { ground, host, other, inner, other_inner })
    }

    /// A command with an installed program, on this end's host.
    fn command(&self, program: &str) -> Result<Command> {
        let program = installed(program)?;
        self.ground.command(self.host, program.to_str().context("a path that is not UTF-8")?)
    }

    /// This end's file `name`.
    fn file(&self, name: &str) -> PathBuf {
        self.ground.folder().join(format!("{}-{name}", self.host))
    }
}

/// The path of an installed program. Those for the administrator are found as well.
fn installed(name: &str) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    found.with_context(|| format!("{name} is not installed: `scripts/setup.sh bench-net` installs it"))
}

/// With the MTU that it would choose itself if it were bound to one device below it.
fn vxlan(ends: &[End<'_>; 2]) -> Result<Vec<Program>> {
    for end in ends {
        let (local, remote) = (address(end.host)?.to_string(), address(end.other)?.to_string());
        let device = ["link", "add", Peer::Vxlan.device(), "mtu", "1450", "type", "vxlan", "id", "1"];
        let ways = ["dstport", "4789", "local", &local, "remote", &remote];
        end.ground.ip(end.host, &[&device[..], &ways].concat())?;
    }
    Ok(Vec::new())
}

fn wireguard_go(ends: &[End<'_>; 2]) -> Result<Vec<Program>> {
    const PORT: u16 = 51820;
    let program = built("wireguard-go")?.join("wireguard");
    let program = program.to_str().context("a path that is not UTF-8")?;
    let (keys, other_keys) = (wireguard_keys()?, wireguard_keys()?);
    let mut programs = Vec::new();
    for (end, (private, _), (_, public)) in [(&ends[0], &keys, &other_keys), (&ends[1], &other_keys, &keys)] {
        let configuration = format!(
            "[Interface]\nPrivateKey = {private}\nListenPort = {PORT}\n[Peer]\nPublicKey = {public}\n\
             Endpoint = {}:{PORT}\nAllowedIPs = {}/32\n",
            address(end.other)?,
            end.other_inner,
        );
        let file = end.file("wireguard.conf");
        fs::write(&file, configuration)?;
        let mut program = start_wireguard_go(end, program)?;
        eventually(LIMIT, || {
            program.require_running()?;
            Ok(configure_wireguard_go(&program, &file))
        })?;
        programs.push(program);
    }
    Ok(programs)
}

/// The folder with the programs of a peer that is written in Go, which are built if there are none.
fn built(peer: &str) -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/go-peer.sh");
    let output = Command::new(script).arg(peer).output().with_context(|| format!("cannot run {script}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// A private key and its public one.
fn wireguard_keys() -> Result<(String, String)> {
    const SCRIPT: &str = "private=$(\"$0\" genkey) && echo \"$private\" && echo \"$private\" | \"$0\" pubkey";
    let keys = run(Command::new("sh").args(["-c", SCRIPT]).arg(installed("wg")?), LIMIT)?.lines;
    let [private, public] = &keys[..] else { bail!("wg gives no keys but {} lines", keys.len()) };
    Ok((private.clone(), public.clone()))
}

/// It makes its control socket in a folder of the machine. Each one gets its own folder in memory: nothing is left
/// over.
fn start_wireguard_go(end: &End<'_>, program: &str) -> Result<Program> {
    let script = "mount -t tmpfs none /run && exec \"$0\" -f \"$1\"";
    let mut command = end.ground.command(end.host, "unshare")?;
    command.args(["--mount", "sh", "-c", script, program, Peer::WireguardGo.device()]);
    Program::start(&mut command)
}

/// Its file lies in a folder that the program's mount namespace hides: it is opened before that is entered.
fn configure_wireguard_go(program: &Program, file: &FilePath) -> Result<()> {
    let mut command = Command::new("nsenter");
    command.args(["--target", &program.pid().to_string(), "--mount", "--net"]);
    command.arg(installed("wg")?).args(["setconf", Peer::WireguardGo.device(), "/dev/stdin"]);
    let output = command.stdin(File::open(file)?).stdout(Stdio::null()).output()?;
    ensure!(output.status.success(), "wg setconf: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Each knows where the other is, and needs no third party for that.
fn nebula(ends: &[End<'_>; 2]) -> Result<Vec<Program>> {
    const PORT: u16 = 4242;
    let folder = built("nebula")?;
    let [authority, authority_key] =
        ["nebula.crt", "nebula.key"].map(|name| ends[0].ground.folder().join(name));
    let mut ca = Command::new(folder.join("nebula-cert"));
    ca.args(["ca", "-name", "bench", "-out-crt"]).arg(&authority).arg("-out-key").arg(&authority_key);
    run(&mut ca, LIMIT)?;
    let start = |end: &End<'_>| {
        let (certificate, key) = (end.file("nebula.crt"), end.file("nebula.key"));
        let mut sign = Command::new(folder.join("nebula-cert"));
        sign.arg("sign").arg("-ca-crt").arg(&authority).arg("-ca-key").arg(&authority_key);
        sign.args(["-name", end.host, "-networks", &format!("{}/24", end.inner)]);
        run(sign.arg("-out-crt").arg(&certificate).arg("-out-key").arg(&key), LIMIT)?;
        let (local, remote, inner) = (address(end.host)?, address(end.other)?, end.other_inner);
        let configuration = format!(
            "pki: {{ca: {}, cert: {}, key: {}}}\n\
             static_host_map: {{\"{inner}\": [\"{remote}:{PORT}\"]}}\n\
             lighthouse: {{am_lighthouse: false}}\n\
             listen: {{host: {local}, port: {PORT}}}\n\
             tun: {{dev: {}}}\n\
             firewall: {{inbound: [{{port: any, proto: any, host: any}}], \
             outbound: [{{port: any, proto: any, host: any}}]}}\n",
            authority.display(),
            certificate.display(),
            key.display(),
            Peer::Nebula.device(),
        );
        let file = end.file("nebula.yml");
        fs::write(&file, configuration)?;
        let program = folder.join("nebula");
        let mut command =
            end.ground.command(end.host, program.to_str().context("a path that is not UTF-8")?)?;
        Program::start(command.arg("-config").arg(file))
    };
    ends.iter().map(start).collect()
}

/// With the hosts' own certificates.
fn openvpn(ends: &[End<'_>; 2]) -> Result<Vec<Program>> {
    let start = |(end, role): (&End<'_>, &str)| {
        let (local, remote) = (address(end.host)?.to_string(), address(end.other)?.to_string());
        let mut command = end.command("openvpn")?;
        command.args(["--dev", Peer::Openvpn.device(), "--dev-type", "tap", "--proto", "udp"]);
        command.args(["--local", &local, "--remote", &remote, role, "--dh", "none"]);
        command.args(["--data-ciphers", "AES-256-GCM"]);
        let pki = end.ground.pki();
        command.arg("--ca").arg(pki.join("authority.pem"));
        command.arg("--cert").arg(pki.join(format!("{}.pem", end.host)));
        command.arg("--key").arg(pki.join(format!("{}.key", end.host)));
        Program::start(&mut command)
    };
    ends.iter().zip(["--tls-server", "--tls-client"]).map(start).collect()
}

fn tinc(ends: &[End<'_>; 2]) -> Result<Vec<Program>> {
    ends.iter().try_for_each(configure_tinc)?;
    for end in ends {
        let hosts = end.ground.folder().join(format!("{}-tinc/hosts", end.other));
        fs::copy(end.file("tinc").join("hosts").join(end.host), hosts.join(end.host))?;
    }
    let start = |end: &End<'_>| {
        let mut command = end.command("tincd")?;
        command.arg("-D").arg("-c").arg(end.file("tinc"));
        command.arg(format!("--pidfile={}", end.file("tinc.pid").display()));
        Program::start(&mut command)
    };
    ends.iter().map(start).collect()
}

/// Writes an end's configuration and makes its keys.
fn configure_tinc(end: &End<'_>) -> Result<()> {
    let folder = end.file("tinc");
    fs::create_dir_all(folder.join("hosts"))?;
    let configuration = format!(
        "Name = {}\nMode = switch\nDeviceType = tap\nInterface = {}\nConnectTo = {}\nAddressFamily = ipv4\n",
        end.host,
        Peer::Tinc.device(),
        end.other,
    );
    fs::write(folder.join("tinc.conf"), configuration)?;
    fs::write(folder.join("hosts").join(end.host), format!("Address = {}\n", address(end.host)?))?;
    run(end.command("tincd")?.arg("-c").arg(&folder).arg("-K2048"), LIMIT).map(drop)
}

fn n2n(ends: &[End<'_>; 2]) -> Result<Vec<Program>> {
    const PORT: &str = "7654";
    let [first, _] = ends;
    let mut programs = vec![Program::start(first.command("supernode")?.args(["-l", PORT]))?];
    for end in ends {
        let mut command = end.command("edge")?;
        command.args(["-d", Peer::N2n.device(), "-a", &end.inner.to_string(), "-s", "255.255.255.0"]);
        command.args(["-c", "bench", "-k", "bench", "-l", &format!("{}:{PORT}", address(first.host)?)]);
        programs.push(Program::start(&mut command)?);
    }
    Ok(programs)
}

fn socat(ends: &[End<'_>; 2]) -> Result<Vec<Program>> {
    const PORT: u16 = 7655;
    let start = |end: &End<'_>| {
        let device = format!("TUN,tun-type=tap,iff-no-pi,tun-name={}", Peer::Socat.device());
        let (local, remote) = (address(end.host)?, address(end.other)?);
        let socket = format!("UDP4-DATAGRAM:{remote}:{PORT},bind={local}:{PORT}");
        Program::start(end.command("socat")?.args(["-b", "65536", &device, &socket]))
    };
    ends.iter().map(start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named() {
        let reason = installed("no-such-program").unwrap_err().to_string();
        assert!(reason.contains("no-such-program is not installed") && reason.contains("setup.sh bench-net"));
        assert!(installed("sh").unwrap().is_absolute());
    }

    #[test]
    fn every_peer_has_names_and_addresses_of_its_own() {
        let count = |of: fn(&Peer) -> String| {
            Peer::value_variants().iter().map(of).collect::<std::collections::HashSet<_>>().len()
        };
        let all = Peer::value_variants().len();
        assert_eq!(count(|peer| peer.name().into()), all);
        assert_eq!(count(|peer| peer.device().into()), all);
        assert_eq!(count(|peer| peer.number().to_string()), all);
        // The overlay has number 0.
        assert!(Peer::value_variants().iter().all(|peer| peer.number() > 0));
    }
}
