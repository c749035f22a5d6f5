//! What `transhume run` gives a container: the OCI runtime's configuration, of a bundle, an image or options.

mod image;

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use oci_image::{Source, description};
use serde_json::{Value, json};

use super::Program;
use crate::cli::words;
use crate::failure::{Failure, Result};
use crate::{WRONG_USAGE, library};

/// No host has more processes: `PID_MAX_LIMIT` of Linux.
const MOST_PIDS: i64 = 4 << 20;

/// What a program finds in `$PATH` of an image that says nothing.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What root may do in a container: that of other container engines.
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

/// Files about the host that a container does not see.
const MASKED: [&str; 7] = [
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/sys/firmware",
];
/// Files about the host that a container does not change.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// How a container is asked for.
#[derive(Args)]
#[command(next_help_heading = "Options of containers, which need an OCI runtime on the hosts (runc)")]
pub struct Options {
    /// Runs it in a container with this root file system: a directory on each host, of which nothing is changed. What the
    /// program writes lies in a layer above it, which moves along
    #[arg(long, value_name = "DIR", group = "root", conflicts_with = "bundle")]
    rootfs: Option<PathBuf>,
    /// Runs it in a container of this image, which each host has by this name: in an OCI image layout (`oci:DIR` or `oci:DIR:TAG`) or
    /// in its podman (`podman:NAME`). The command comes after the image's entry point, in place of its arguments
    #[arg(long, value_name = "IMAGE", group = "root", conflicts_with = "bundle", value_parser = Source::from_str)]
    image: Option<Source>,
    /// Runs it in a container by the `config.json` of this OCI bundle, with its limits and mounts, and with its command unless one is given
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Shows a file or directory of the host in the container; it must be on each host
    #[arg(long, value_name = "SOURCE:PLACE[:ro]", requires = "root", conflicts_with = "bundle")]
    volume: Vec<Volume>,
    /// Sets a variable of the program's environment; a container gets nothing of yours
    #[arg(long, value_name = "NAME=VALUE", value_parser = words::variable)]
    env: Vec<(String, String)>,
    /// Where in the container the program starts [default: / or what image or bundle say]
    #[arg(long, value_name = "DIR")]
    directory: Option<String>,
    /// As whom the program runs in the container [default: 0:0 or what image or bundle say]
    #[arg(long, value_name = "UID[:GID]", value_parser = words::user)]
    user: Option<(u32, u32)>,
    /// The most memory that the container may use, as 512M or 2G
    #[arg(long, value_name = "SIZE", requires = "root", conflicts_with = "bundle")]
    memory: Option<Size>,
    /// The most processors that it may use, as 1.5
    #[arg(long, value_name = "N", requires = "root", conflicts_with = "bundle", value_parser = processors)]
    cpus: Option<f64>,
    /// The most processes that it may have
    #[arg(long, value_name = "N", requires = "root", conflicts_with = "bundle", value_parser = clap::value_parser!(i64).range(2..=MOST_PIDS))]
    pids: Option<i64>,
    /// Lets the program in the container write to volumes and to memory only
    #[arg(long, requires = "root", conflicts_with = "bundle")]
    read_only: bool,
    /// Leaves out the RDMA libraries, which need glibc 2.34 or newer and libgcc_s.so.1 in the container
    #[arg(long)]
    without_rdma: bool,
}

impl Options {
    /// The program to run, if it is one in a container.
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
            let help = "give a program and its arguments after `--`";
            return Err(Failure::new("there is no command to run", help).with_code(WRONG_USAGE));
        }
        let directory = self.directory.clone().or_else(|| Some(process["cwd"].as_str()?.to_owned()));
        let number = |name: &str| process["user"][name].as_u64().and_then(|id| u32::try_from(id).ok());
        let (user, group) = match &self.user {
            Some(ids) => *ids,
            None => (number("uid").unwrap_or(0), number("gid").unwrap_or(0)),
        };
        let groups = process["user"]["additionalGids"].as_array();
        // Another user has none of the bundle's.
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

    /// What only containers have is refused without one.
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
                let what = format!("{option} is for containers");
                Err(Failure::new(what, "add `--rootfs`, `--image` or `--bundle`").with_code(WRONG_USAGE))
            }
        }
    }

    /// The bundle's environment, with a usual `$PATH` unless it says one, and what is set here. Where its user is at home only the
    /// container knows.
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
        library::add_to(environment, Path::new(engines::CONTAINER_LIBRARIES))
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

/// The file systems that each container has.
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

/// The devices that a container may use: those of memory, of terminals, and no others.
fn devices() -> Value {
    let allowed = |major: u32, minor: Option<u32>| json!({ "allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm" });
    let memory = [3, 5, 7, 8, 9].map(|minor| allowed(1, Some(minor)));
    let terminals = [allowed(5, Some(0)), allowed(5, Some(2)), allowed(136, None)];
    let mut rules = vec![json!({ "allow": false, "access": "rwm" })];
    rules.extend(memory.into_iter().chain(terminals).map(without_null));
    rules.into()
}

/// A rule without a minor number is for all.
fn without_null(mut rule: Value) -> Value {
    if let Some(rule) = rule.as_object_mut() {
        rule.retain(|_, value| !value.is_null());
    }
    rule
}

/// The root file system of a bundle, and its configuration.
fn read(bundle: &Path) -> Result<(String, Value)> {
    let path = bundle.join("config.json");
    let wrong = |what: String| {
        Failure::new(what, "`--bundle` wants a directory as `runc spec` makes one").with_code(WRONG_USAGE)
    };
    let text = description(&path).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    let config: Value =
        serde_json::from_slice(&text).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    let root = config["root"]["path"].as_str();
    let root = root.ok_or_else(|| wrong(format!("{} names no root file system", path.display())))?;
    Ok((absolute(&bundle.join(root))?, config))
}

/// The path from the root on, as the hosts need it.
fn absolute(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    let plain = !path.components().any(|part| part == Component::ParentDir);
    match path.to_str().filter(|_| plain) {
        Some(path) => Ok(path.to_owned()),
        None => {
            let what = format!("{} is no path that other hosts can use", path.display());
            Err(Failure::new(what, "give one in UTF-8, without `..`").with_code(WRONG_USAGE))
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
            _ => return Err("a volume is SOURCE:PLACE or SOURCE:PLACE:ro".into()),
        };
        if !source.starts_with('/') || !place.starts_with('/') {
            return Err("both paths of a volume start at the root, with `/`".into());
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
        const WRONG: &str = "a size is a number with K, M or G, as 512M";
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
        _ => Err(format!("processors are a number, {LEAST} or more")),
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
    fn only_who_is_given_a_home_has_one_before_it_is_in_its_container() {
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
    fn words_of_the_command_line_are_read_or_refused() {
        let volume: Volume = "/a:/b:ro".parse().unwrap();
        assert_eq!(volume, Volume { source: "/a".into(), place: "/b".into(), read_only: true });
        assert!("/a".parse::<Volume>().is_err() && "a:/b".parse::<Volume>().is_err());
        assert_eq!("512M".parse(), Ok(Size(512 << 20)));
        assert!(["", "5", "-1M", "0G", "9999999999G", "Mü"].iter().all(|text| text.parse::<Size>().is_err()));
        assert!(processors("1.5").is_ok() && processors("0").is_err() && processors("NaN").is_err());
    }
}
