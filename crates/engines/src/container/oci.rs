//! The configuration of a container for its OCI runtime, made of the user's.
//!
//! Taken over are mounts, resources, capabilities, devices and all else that CRIU carries. What an instance has anyway is
//! replaced: its first process, which is `transhume init`, its namespaces and its root.

use std::path::{Component, Path, PathBuf};

use fabric::attach::CONTAINER_FOLDER;
use serde_json::{Map, Value, json};

use crate::criu::root::Bind;
use crate::init;
use crate::instance::{InstanceSpec, ResourceLimit};
use crate::linux::mounts::MOST_TERMINALS;
use crate::report::Blocker;

/// The largest configuration, in bytes.
pub const MAX_CONFIG: usize = 256 << 10;

/// File systems that CRIU makes anew, with what is in them where they keep anything.
const MADE_ANEW: [&str; 5] = ["proc", "sysfs", "tmpfs", "devpts", "mqueue"];

/// Where a container has what the kernel shows, and what programs cannot do without.
const OF_THE_KERNEL: [&str; 2] = ["/proc", "/dev"];

/// Of each host, and so not mounted.
const OF_THE_HOST: [&str; 2] = ["cgroup", "cgroup2"];

/// The inputs of a container's configuration on this host.
pub struct Wanted<'a> {
    /// The instance.
    pub spec: &'a InstanceSpec,
    /// The user's configuration, checked.
    pub config: Config,
    /// Where its root is mounted.
    pub root: &'a Path,
    /// Its network namespace.
    pub network: &'a Path,
    /// Its cgroup, from the root of each hierarchy.
    pub cgroup: &'a str,
    /// The limit of descriptors.
    pub descriptors: ResourceLimit,
    /// The program of its first process, with the arguments that precede the engine's.
    pub init: Vec<String>,
    /// The bind mounts beside the user's own.
    pub beside: Vec<Bind>,
}

/// A user's configuration that can be carried.
#[derive(Clone, Debug)]
pub struct Config {
    all: Map<String, Value>,
    binds: Vec<Bind>,
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// If it is invalid, or requires something that cannot move.
    pub fn parse(text: &str) -> Result<Self, Blocker> {
        if text.len() > MAX_CONFIG {
            let what = format!("the container's configuration is longer than {} KiB", MAX_CONFIG >> 10);
            return Err(Blocker::new(what, "remove entries that it does not need"));
        }
        let all = serde_json::from_str::<Map<String, Value>>(text);
        let mut all = all.map_err(|error| {
            let what = format!("the container's configuration is not a JSON object ({error})");
            Blocker::new(what, "create one with `runc spec`")
        })?;
        if all.get("hooks").is_some_and(|hooks| ![json!({}), Value::Null].contains(hooks)) {
            let what = "the container has hooks, which would run on one host only";
            return Err(Blocker::new(what, "remove them from its configuration"));
        }
        let kinds = all.get("linux").and_then(|linux| linux.get("namespaces")?.as_array());
        if kinds.into_iter().flatten().any(|namespace| namespace["type"] == "user") {
            let what = "the container has its own user namespace, which cannot move";
            return Err(Blocker::new(what, "remove it from `namespaces` in its configuration"));
        }
        let mut mounts = match all.remove("mounts") {
            None => Vec::new(),
            Some(Value::Array(mounts)) => mounts,
            Some(_) => {
                let what = "`mounts` in the container's configuration is not a list";
                return Err(Blocker::new(what, "compare it with the output of `runc spec`"));
            }
        };
        mounts.retain(|mount| !OF_THE_HOST.iter().any(|kind| mount["type"] == *kind));
        mounts.iter_mut().filter(|mount| mount["type"] == "devpts").for_each(limit_terminals);
        let binds = mounts.iter().filter_map(|mount| bind(mount).transpose()).collect::<Result<_, _>>()?;
        all.insert("mounts".into(), mounts.into());
        Ok(Self { all, binds })
    }

    /// Its bind mounts from the host.
    pub fn binds(&self) -> &[Bind] {
        &self.binds
    }

    /// Refuses a mount that hides an earlier bind mount.
    fn all_is_seen(&self) -> Result<(), Blocker> {
        let mounts = self.all.get("mounts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (number, mount) in mounts.iter().enumerate() {
            let Some(Bind { source, destination }) = bind(mount)? else { continue };
            let mut later = mounts[number + 1..].iter().filter_map(|mount| mount["destination"].as_str());
            if let Some(over) = later.find(|over| destination.starts_with(over)) {
                let (source, destination) = (source.display(), destination.display());
                let what = format!(
                    "{source} at {destination} in the container would be hidden by the later mount at {over}"
                );
                return Err(Blocker::new(what, "list the outer mount first, or remove one of them"));
            }
        }
        Ok(())
    }

    /// The cgroup controllers that its limits need.
    pub fn controllers(&self) -> Vec<String> {
        let resources = self.all.get("linux").and_then(|linux| linux.get("resources"));
        let said =
            |name: &str| resources.and_then(|resources| resources.get(name)).filter(|part| !part.is_null());
        let cpu = |name: &str| said("cpu").and_then(|cpu| cpu.get(name)).is_some();
        let needed = [
            ("memory", said("memory").is_some()),
            ("pids", said("pids").is_some()),
            ("hugetlb", said("hugepageLimits").is_some()),
            ("cpu", cpu("quota") || cpu("shares")),
            ("cpuset", cpu("cpus") || cpu("mems")),
        ];
        needed.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| name.to_owned()).collect()
    }

    /// The mount points in it.
    pub fn places(&self) -> Vec<PathBuf> {
        let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
        let mounts = list(self.all.get("mounts")).into_iter().map(|mount| mount["destination"].clone());
        let linux = self.all.get("linux");
        let hidden =
            ["maskedPaths", "readonlyPaths"].map(|kind| list(linux.and_then(|linux| linux.get(kind))));
        let all = mounts.chain(hidden.into_iter().flatten());
        all.filter_map(|place| Some(Path::new(place.as_str()?).components().collect())).collect()
    }
}

/// Checks that a container with this configuration can move, and that no mount hides another.
///
/// # Errors
/// A blocker that names the obstacle.
pub fn validate(config: &str) -> Result<(), Blocker> {
    Config::parse(config)?.all_is_seen()
}

/// Limits the number of pseudo-terminals of a devpts mount to [`MOST_TERMINALS`].
fn limit_terminals(mount: &mut Value) {
    let Some(mount) = mount.as_object_mut() else { return };
    let said = |option: &Value| option.as_str()?.strip_prefix("max=")?.parse::<u32>().ok();
    if let Value::Array(options) = mount.entry("options").or_insert_with(|| json!([]))
        && !options.iter().filter_map(said).any(|most| most <= MOST_TERMINALS)
    {
        options.push(format!("max={MOST_TERMINALS}").into());
    }
}

/// The bind mount that `mount` describes; `None` if its file system is created anew.
fn bind(mount: &Value) -> Result<Option<Bind>, Blocker> {
    let text = |name: &str| mount.get(name).and_then(Value::as_str).unwrap_or("");
    let destination = text("destination");
    let path = Path::new(destination);
    let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    if !path.is_absolute() || !plain || path.parent().is_none() {
        let what = format!("`{destination}` is not a valid mount point in the container");
        return Err(Blocker::new(what, "give an absolute path without `..`"));
    }
    if path.starts_with(CONTAINER_FOLDER) {
        let what = format!("{destination} is in {}, which is reserved in each container", CONTAINER_FOLDER);
        return Err(Blocker::new(what, "mount it elsewhere"));
    }
    let options = mount.get("options").and_then(Value::as_array);
    let binds = options.into_iter().flatten().any(|option| matches!(option.as_str(), Some("bind" | "rbind")));
    let kind = text("type");
    if !binds && !["", "bind"].contains(&kind) {
        if MADE_ANEW.contains(&kind) {
            return Ok(None);
        }
        let what =
            format!("{destination} in the container is a file system of type {kind}, which cannot move");
        return Err(Blocker::new(what, format!("use a bind mount, or {}", MADE_ANEW.join(", "))));
    }
    if OF_THE_KERNEL.iter().any(|own| path == Path::new(own)) {
        let what = format!("{destination} in a container is reserved for a kernel file system");
        return Err(Blocker::new(what, "mount it elsewhere"));
    }
    let source = Path::new(text("source"));
    if !source.is_absolute() {
        let what =
            format!("the source of the mount {destination}, `{}`, is not an absolute path", source.display());
        return Err(Blocker::new(what, "give an absolute path"));
    }
    // A trailing slash is not in what the kernel says.
    Ok(Some(Bind { source: source.into(), destination: path.components().collect() }))
}

impl Wanted<'_> {
    /// The runtime's configuration.
    pub fn configuration(&self) -> Value {
        let mut all = self.config.all.clone();
        all.entry("ociVersion").or_insert_with(|| "1.0.2".into());
        all.entry("hostname").or_insert_with(|| self.spec.name.as_str().into());
        let readonly = all.get("root").and_then(|root| root.get("readonly")).cloned().unwrap_or(false.into());
        all.insert("root".into(), json!({ "path": self.root, "readonly": readonly }));
        self.process(object(&mut all, "process"));
        let linux = object(&mut all, "linux");
        let own = ["pid", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
        let network = json!({ "type": "network", "path": self.network });
        linux.insert("namespaces".into(), own.into_iter().chain([network]).collect());
        linux.insert("cgroupsPath".into(), self.cgroup.into());
        if let Some(Value::Array(mounts)) = all.get_mut("mounts") {
            mounts.extend(self.beside.iter().map(|Bind { source, destination }| {
                let options = ["bind", "ro", "nosuid", "rprivate"];
                json!({ "type": "bind", "source": source, "destination": destination, "options": options })
            }));
        }
        all.into()
    }

    /// Init stays root, with the capabilities that the command may have, and works where CRIU finds a directory. All that it starts
    /// has its umask.
    fn process(&self, process: &mut Map<String, Value>) {
        process.insert("terminal".into(), false.into());
        let mut root = json!({ "uid": 0, "gid": 0 });
        if let Some(umask) = process.get("user").and_then(|user| user.get("umask")) {
            root["umask"] = umask.clone();
        }
        process.insert("user".into(), root);
        process.insert("cwd".into(), "/".into());
        let lent = init::lent(&self.lend(process));
        let arguments = self.init.iter().cloned().chain(lent).chain(init::arguments(self.spec));
        process.insert("args".into(), arguments.collect());
        let environment = init::shield(&self.spec.environment).map(|(name, value)| format!("{name}={value}"));
        process.insert("env".into(), environment.collect());
        let ResourceLimit { soft, hard, .. } = self.descriptors;
        let descriptors = json!({ "type": "RLIMIT_NOFILE", "soft": soft, "hard": hard });
        let limits = process.entry("rlimits").or_insert_with(|| json!([]));
        if let Value::Array(limits) = limits
            && !limits.iter().any(|limit| limit["type"] == "RLIMIT_NOFILE")
        {
            limits.push(descriptors);
        }
    }
}

impl Wanted<'_> {
    /// Gives init what it needs to become the command's user, and returns what of it commands may not have.
    fn lend(&self, process: &mut Map<String, Value>) -> Vec<u32> {
        let InstanceSpec { user, group, groups, .. } = self.spec;
        if *user == 0 && *group == 0 && groups.is_empty() {
            return Vec::new();
        }
        let capabilities = object(process, "capabilities");
        let missing = ["bounding", "effective", "permitted"].map(|name| {
            let set = capabilities.entry(name).or_insert_with(|| json!([]));
            set.as_array_mut().map(add_needed).unwrap_or_default()
        });
        let [of_bounding, ..] = missing;
        of_bounding
    }
}

/// Adds what init needs to `set`, and returns what was missing.
fn add_needed(set: &mut Vec<Value>) -> Vec<u32> {
    let missing: Vec<_> =
        init::NEEDED.into_iter().filter(|(name, _)| !set.iter().any(|one| one == name)).collect();
    set.extend(missing.iter().map(|(name, _)| Value::from(*name)));
    missing.into_iter().map(|(_, number)| number).collect()
}

/// The object `name` in `all`, which is made if it is not there.
fn object<'a>(all: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let place = all.entry(name).or_insert_with(|| json!({}));
    if !place.is_object() {
        *place = json!({});
    }
    place.as_object_mut().unwrap_or_else(|| unreachable!("it is one by now"))
}

#[cfg(test)]
mod tests;
