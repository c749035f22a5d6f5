//! Container options of `transhume run`: makes the OCI runtime's configuration from a bundle, an image or options.

mod image;

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use oci_image::{Source, description};
use serde_json::{Value, json};

use super::Program;
use super::placement::PLACEMENT;
use crate::cli::words;
use crate::failure::{Failure, Result};
use crate::{WRONG_USAGE, library};

/// The kernel's limit on processes, `PID_MAX_LIMIT` of Linux.
const MOST_PIDS: i64 = 4 << 20;

/// The default `$PATH` of an image.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The default capabilities of root in a container, as in other container engines.
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Files about the host that are hidden in a container.
const MASKED: [&str; 7] = [
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/sys/firmware",
];
/// Files about the host that are read-only in a container.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Options of containers.
#[derive(Args)]
#[command(next_help_heading = "Container options (hosts need an OCI runtime such as runc)")]
pub struct Options {
    /// Runs a container with this root file system, a directory on each host that stays unchanged. Files that the
    /// program writes are stored in a layer above it, which moves along
    #[arg(long, value_name = "DIR", group = "root", conflicts_with = "bundle")]
    rootfs: Option<PathBuf>,
    /// Runs a container of this image, which each host has under this name: in an OCI image layout (`oci:DIR` or `oci:DIR:TAG`) or
    /// in podman's storage (`podman:NAME`). CMD replaces the arguments of the image's entry point
    #[arg(long, value_name = "IMAGE", group = "root", conflicts_with = "bundle", value_parser = Source::from_str)]
    image: Option<Source>,
    /// Runs a container from the `config.json` of this OCI bundle, with its limits and mounts; CMD replaces its command
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Mounts a file or directory of the host in the container; it must exist on each host
    #[arg(long, value_name = "SOURCE:PLACE[:ro]", requires = "root", conflicts_with = "bundle")]
    volume: Vec<Volume>,
    /// Sets an environment variable; a container does not inherit this environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = words::variable)]
    env: Vec<(String, String)>,
    /// The working directory in the container [default: that of the image or bundle, or /]
    #[arg(long, value_name = "DIR")]
    directory: Option<String>,
    /// The program's user in the container [default: that of the image or bundle, or 0:0]
    #[arg(long, value_name = "UID[:GID]", value_parser = words::user)]
    user: Option<(u32, u32)>,
    /// Memory that its host must have for it, such as 512M or 2G; also the limit of a container, and the size of a virtual machine
    #[arg(long, value_name = "SIZE", conflicts_with = "bundle", help_heading = PLACEMENT)]
    memory: Option<Size>,
    /// Processors that its host must have for it, such as 1.5; also the limit of a container, and the number of a virtual machine
    #[arg(long, value_name = "N", conflicts_with = "bundle", value_parser = processors, help_heading = PLACEMENT)]
    cpus: Option<f64>,
    /// Limit on the number of processes in the container
    #[arg(long, value_name = "N", requires = "root", conflicts_with = "bundle", value_parser = clap::value_parser!(i64).range(2..=MOST_PIDS))]
    pids: Option<i64>,
    /// Makes the root file system read-only; volumes and memory file systems stay writable
    #[arg(long, requires = "root", conflicts_with = "bundle")]
    read_only: bool,
    /// Omits the RDMA libraries, which require glibc 2.34 or newer and libgcc_s.so.1 in the container
    #[arg(long)]
    without_rdma: bool,
}

impl Options {
    /// The value of `--memory`, in bytes.
    pub fn memory(&self) -> Option<u64> {
        self.memory.map(|Size(bytes)| bytes.unsigned_abs())
    }

    /// The value of `--cpus`.
    pub fn cpus(&self) -> Option<f64> {
        self.cpus
    }

    /// The program to run, if container options were given.
    pub fn program(&self, command: &[String]) -> Result<Option<Program>> {
        let (rootfs, config, image) = match (&self.rootfs, &self.bundle, &self.image) {
            (Some(rootfs), ..) => (absolute(rootfs)?, self.configuration(), None),
            (_, Some(bundle), _) => read(bundle).map(|(rootfs, config)| (rootfs, config, None))?,
            (.., Some(source)) => {
                let (said, image) = image::look(source)?;
                (
                    String::new(),
                    image::apply(self.configuration(), &said, command, self.user.is_some())?,
                    Some(image),
                )
            }
            _ => return self.without_container().map(|()| None),
        };
        if let Err(why) = instance::container::validate(&config.to_string()) {
            return Err(Failure::new(why.what, why.remedy).with_code(WRONG_USAGE));
        }
        let process = &config["process"];
        let replaces = !command.is_empty() && image.is_none();
        let command = if replaces { command.to_vec() } else { texts(&process["args"]) };
        if command.is_empty() {
            let help = "pass a program and its arguments after `--`";
            return Err(Failure::new("no command was given", help).with_code(WRONG_USAGE));
        }
        let directory = self.directory.clone().or_else(|| Some(process["cwd"].as_str()?.to_owned()));
        let number = |name: &str| process["user"][name].as_u64().and_then(|id| u32::try_from(id).ok());
        let (user, group) = match &self.user {
            Some(ids) => *ids,
            None => (number("uid").unwrap_or(0), number("gid").unwrap_or(0)),
        };
        let groups = process["user"]["additionalGids"].as_array();
        // Another user gets none of the bundle's supplementary groups.
        let groups = groups.filter(|_| self.user.is_none()).into_iter().flatten();
        let groups = groups.filter_map(|group| group.as_u64()?.try_into().ok());
        let container = api::Container {
            rootfs,
            user,
            group,
            groups: groups.collect(),
            config: config.to_string(),
            rdma: !self.without_rdma,
            image,
        };
        Ok(Some(Program {
            command,
            environment: self.environment(&texts(&process["env"])),
            directory: directory.unwrap_or_else(|| "/".into()),
            container: Some(container),
        }))
    }

    /// Refuses container options without a container.
    fn without_container(&self) -> Result<()> {
        let given = [
            ("--env", !self.env.is_empty()),
            ("--directory", self.directory.is_some()),
            ("--user", self.user.is_some()),
            ("--without-rdma", self.without_rdma),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => {
                let what = format!("{option} requires a container");
                Err(Failure::new(what, "add `--rootfs`, `--image` or `--bundle`").with_code(WRONG_USAGE))
            }
        }
    }

    /// The bundle's environment with `--env` values, and a default `$PATH`. `$HOME` is not added, because only the container knows the user's
    /// home directory.
    fn environment(&self, of_bundle: &[String]) -> Vec<(String, String)> {
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let default = text(("PATH", PATH));
        let of_bundle = of_bundle.iter().filter_map(|variable| variable.split_once('=')).map(text);
        let mut environment: Vec<(String, String)> = Vec::new();
        for (name, value) in [default].into_iter().chain(of_bundle).chain(self.env.iter().cloned()) {
            environment.retain(|(known, _)| *known != name);
            environment.push((name, value));
        }
        if self.without_rdma {
            return environment;
        }
        library::add_to(environment, Path::new(engine_criu::CONTAINER_LIBRARIES))
    }

    /// The runtime's configuration without a bundle.
    fn configuration(&self) -> Value {
        let volumes = self.volume.iter().map(|Volume { source, place, read_only }| {
            let access = if *read_only { "ro" } else { "rw" };
            json!({ "type": "bind", "source": source, "destination": place, "options": ["bind", "rprivate", access] })
        });
        let capabilities = json!(CAPABILITIES);
        let mut resources = json!({ "devices": devices() });
        if let Some(Size(limit)) = self.memory {
            resources["memory"] = json!({ "limit": limit });
        }
        if let Some(cpus) = self.cpus {
            const PERIOD_US: f64 = 100_000.0;
            resources["cpu"] = json!({ "period": PERIOD_US as u64, "quota": (cpus * PERIOD_US) as i64 });
        }
        if let Some(limit) = self.pids {
            resources["pids"] = json!({ "limit": limit });
        }
        json!({
            "ociVersion": "1.0.2",
            "root": { "readonly": self.read_only },
            "process": {
                "capabilities": {
                    "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
                },
            },
            "mounts": mounts().into_iter().chain(volumes).collect::<Vec<_>>(),
            "linux": { "resources": resources, "maskedPaths": MASKED, "readonlyPaths": READ_ONLY },
        })
    }
}

/// The file systems of every container.
fn mounts() -> Vec<Value> {
    let mount = |place: &str, kind: &str, options: &[&str]| json!({ "destination": place, "type": kind, "source": kind, "options": options });
    vec![
        mount("/proc", "proc", &[]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777"]),
        mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    ]
}

/// Device rules: only memory and terminal devices are allowed.
fn devices() -> Value {
    let allowed = |major: u32, minor: Option<u32>| json!({ "allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm" });
    let memory = [3, 5, 7, 8, 9].map(|minor| allowed(1, Some(minor)));
    let terminals = [allowed(5, Some(0)), allowed(5, Some(2)), allowed(136, None)];
    let mut rules = vec![json!({ "allow": false, "access": "rwm" })];
    rules.extend(memory.into_iter().chain(terminals).map(without_null));
    rules.into()
}

/// Omits null fields: a rule without a minor number matches all.
fn without_null(mut rule: Value) -> Value {
    if let Some(rule) = rule.as_object_mut() {
        rule.retain(|_, value| !value.is_null());
    }
    rule
}

/// The root file system and the configuration of a bundle.
fn read(bundle: &Path) -> Result<(String, Value)> {
    let path = bundle.join("config.json");
    let wrong = |what: String| {
        Failure::new(what, "pass `--bundle` a directory with a `config.json`, such as `runc spec` creates")
            .with_code(WRONG_USAGE)
    };
    let text = description(&path).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    let config: Value =
        serde_json::from_slice(&text).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    let root = config["root"]["path"].as_str();
    let root = root.ok_or_else(|| wrong(format!("{} names no root file system", path.display())))?;
    Ok((absolute(&bundle.join(root))?, config))
}

/// The absolute path, as hosts need it.
pub fn absolute(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    let plain = !path.components().any(|part| part == Component::ParentDir);
    match path.to_str().filter(|_| plain) {
        Some(path) => Ok(path.to_owned()),
        None => {
            let what = format!("other hosts cannot use the path {}", path.display());
            Err(Failure::new(what, "use a path in UTF-8, without `..`").with_code(WRONG_USAGE))
        }
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
}

/// `SOURCE:PLACE` or `SOURCE:PLACE:ro`
#[derive(Clone, Debug, PartialEq, Eq)]
struct Volume {
    source: String,
    place: String,
    read_only: bool,
}

impl FromStr for Volume {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let (source, place, read_only) = match parts[..] {
            [source, place] | [source, place, "rw"] => (source, place, false),
            [source, place, "ro"] => (source, place, true),
            _ => return Err("use SOURCE:PLACE or SOURCE:PLACE:ro".into()),
        };
        if !source.starts_with('/') || !place.starts_with('/') {
            return Err("both paths of a volume must be absolute".into());
        }
        Ok(Self { source: source.into(), place: place.into(), read_only })
    }
}

/// Bytes, with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size(i64);

impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, &'static str> {
        const WRONG: &str = "use a number with K, M or G, such as 512M";
        let shift = match text.as_bytes().last() {
            Some(b'K') => 10,
            Some(b'M') => 20,
            Some(b'G') => 30,
            _ => return Err(WRONG),
        };
        let number: i64 = text[..text.len() - 1].parse().map_err(|_| WRONG)?;
        let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes > 0);
        bytes.map(Self).ok_or(WRONG)
    }
}

fn processors(text: &str) -> std::result::Result<f64, String> {
    const LEAST: f64 = 0.01;
    match text.parse::<f64>() {
        Ok(number) if (LEAST..=1e6).contains(&number) => Ok(number),
        _ => Err(format!("use a number of at least {LEAST}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn home_is_set_only_if_given() {
        let environment = |words: &[&str], said: &[&str]| {
            let line = Line::parse_from([&["run", "--rootfs", "/", "--without-rdma"], words].concat());
            let said: Vec<_> = said.iter().map(|variable| (*variable).to_owned()).collect();
            let variables = line.options.environment(&said).into_iter();
            variables.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(environment(&[], &[]), [format!("PATH={PATH}")]);
        assert_eq!(environment(&[], &["PATH=/bin", "HOME=/a"]), ["PATH=/bin", "HOME=/a"]);
        assert_eq!(environment(&["--env", "HOME=/b"], &["PATH=/bin", "HOME=/a"]), ["PATH=/bin", "HOME=/b"]);
    }

    #[test]
    fn parses_or_rejects_container_options() {
        let volume: Volume = "/a:/b:ro".parse().unwrap();
        assert_eq!(volume, Volume { source: "/a".into(), place: "/b".into(), read_only: true });
        assert!("/a".parse::<Volume>().is_err() && "a:/b".parse::<Volume>().is_err());
        assert_eq!("512M".parse(), Ok(Size(512 << 20)));
        assert!(["", "5", "-1M", "0G", "9999999999G", "Mü"].iter().all(|text| text.parse::<Size>().is_err()));
        assert!(processors("1.5").is_ok() && processors("0").is_err() && processors("NaN").is_err());
    }
}
