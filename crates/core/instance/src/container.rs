//! The configuration that a user gives a container, and the blockers in it.
//!
//! The container keeps the mounts, resources, capabilities, devices and all other settings that CRIU can restore. The engine replaces
//! the first process, the namespaces and the root.

use std::path::{Component, Path, PathBuf};

use fabric::attach::CONTAINER_FOLDER;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::blocker::Blocker;

pub use fabric::session::MOST_TERMINALS;

/// The largest configuration, in bytes.
pub const MAX_CONFIG: usize = 256 << 10;

/// File systems that CRIU mounts anew. It restores the files of those that hold any.
const MADE_ANEW: [&str; 5] = ["proc", "sysfs", "tmpfs", "devpts", "mqueue"];

/// Mount points of kernel file systems that programs need.
const OF_THE_KERNEL: [&str; 2] = ["/proc", "/dev"];

/// File systems that differ between hosts, and are left out.
const OF_THE_HOST: [&str; 2] = ["cgroup", "cgroup2"];

/// A bind mount from the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// The path on the host.
    pub source: PathBuf,
    /// The path in the container.
    pub destination: PathBuf,
}

/// A user's configuration without blockers.
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
    #[must_use]
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

    /// The whole configuration, except the mounts that differ between hosts.
    #[must_use]
    pub fn all(&self) -> &Map<String, Value> {
        &self.all
    }

    /// The cgroup controllers that its limits need.
    #[must_use]
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
    #[must_use]
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
        let what = format!("{destination} is in {CONTAINER_FOLDER}, which is reserved in each container");
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
    // The kernel reports paths without a trailing slash.
    Ok(Some(Bind { source: source.into(), destination: path.components().collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(config: &Value) -> String {
        Config::parse(&config.to_string()).unwrap_err().what
    }

    fn mounted(mount: &Value) -> Value {
        json!({ "mounts": [mount] })
    }

    #[test]
    fn a_setting_that_cannot_move_is_refused_by_name() {
        let user = json!({ "linux": { "namespaces": [{ "type": "pid" }, { "type": "user" }] } });
        assert!(refusal(&user).contains("user namespace"));
        let hooks = json!({ "hooks": { "prestart": [{ "path": "/bin/true" }] } });
        assert!(refusal(&hooks).contains("hooks"));
        let nfs = mounted(&json!({ "type": "nfs", "source": "a:/b", "destination": "/data" }));
        assert!(refusal(&nfs).contains("of type nfs"));
        for destination in ["data", "/a/../b", "/", ""] {
            let bind = json!({ "type": "bind", "source": "/srv", "destination": destination });
            assert!(refusal(&mounted(&bind)).contains("not a valid mount point"), "{destination}");
        }
        for destination in ["/proc", "/dev/"] {
            let bind = json!({ "type": "bind", "source": "/srv", "destination": destination });
            assert!(
                refusal(&mounted(&bind)).contains("is reserved for a kernel file system"),
                "{destination}"
            );
        }
        let ours = json!({ "type": "bind", "source": "/srv", "destination": "/.transhume/lib" });
        assert!(refusal(&mounted(&ours)).contains("is reserved in each container"));
        assert!(Config::parse("[]").is_err() && Config::parse("{").is_err());
        assert!(Config::parse(&" ".repeat(MAX_CONFIG + 1)).unwrap_err().what.contains("longer than 256 KiB"));
    }

    #[test]
    fn a_mount_that_hides_an_earlier_bind_mount_is_refused() {
        let bind = |source: &str, destination: &str| json!({ "type": "bind", "source": source, "destination": destination });
        let memory = json!({ "type": "tmpfs", "source": "tmpfs", "destination": "/a" });
        let both = |one: &Value, other: &Value| json!({ "mounts": [one, other] });
        let (outer, inner) = (bind("/x/va", "/a/"), bind("/x/vb", "/a/b"));
        for over in [&outer, &inner, &memory] {
            let hidden = validate(&both(&inner, over).to_string()).unwrap_err().what;
            assert!(
                hidden.contains("/x/vb at /a/b in the container would be hidden by the later"),
                "{hidden}"
            );
        }
        for (one, other) in [(&outer, &inner), (&memory, &inner), (&inner, &bind("/x/vc", "/a/bc"))] {
            assert_eq!(validate(&both(one, other).to_string()), Ok(()), "{one} {other}");
        }
        // Cgroup mounts are left out.
        let cgroup = json!({ "type": "cgroup", "source": "cgroup", "destination": "/a" });
        assert_eq!(validate(&both(&inner, &cgroup).to_string()), Ok(()));
    }

    #[test]
    fn limits_need_their_controllers() {
        let resources =
            json!({ "devices": [], "memory": { "limit": 1 }, "pids": null, "cpu": { "quota": 1 } });
        let config = json!({ "linux": { "resources": resources } }).to_string();
        assert_eq!(Config::parse(&config).unwrap().controllers(), ["memory", "cpu"]);
        assert_eq!(Config::parse("{}").unwrap().controllers(), [""; 0]);
    }

    #[test]
    fn pseudo_terminals_are_limited_to_those_that_criu_can_restore() {
        let options = |said: Value| {
            let mount =
                json!({ "type": "devpts", "source": "devpts", "destination": "/dev/pts", "options": said });
            let config = Config::parse(&mounted(&mount).to_string()).unwrap();
            config.all["mounts"][0]["options"].clone()
        };
        assert_eq!(options(json!(["gid=5"])), json!(["gid=5", "max=32"]));
        assert_eq!(options(json!(["max=4"])), json!(["max=4"]));
        assert_eq!(options(json!(["max=99"])), json!(["max=99", "max=32"]));
        assert_eq!(options(json!("none")), json!("none"));
        let none = json!({ "type": "devpts", "destination": "/dev/pts" });
        let config = Config::parse(&mounted(&none).to_string()).unwrap();
        assert_eq!(config.all["mounts"][0]["options"], json!(["max=32"]));
    }

    #[test]
    fn bind_mounts_are_distinguished_from_file_systems_created_anew() {
        let config = json!({ "mounts": [
            { "type": "tmpfs", "source": "tmpfs", "destination": "/tmp" },
            { "type": "cgroup", "source": "cgroup", "destination": "/sys/fs/cgroup" },
            { "type": "none", "source": "/srv/a", "destination": "/a/", "options": ["rbind"] },
            { "source": "/srv/b", "destination": "/b" },
        ] });
        let config = Config::parse(&config.to_string()).unwrap();
        let binds = [("/srv/a", "/a"), ("/srv/b", "/b")];
        let binds = binds
            .map(|(source, destination)| Bind { source: source.into(), destination: destination.into() });
        assert_eq!(config.binds(), binds);
        assert_eq!(config.all["mounts"].as_array().unwrap().len(), 3);
    }
}
