//! The configuration of a container for its OCI runtime, made from the user's.
//!
//! It keeps mounts, resources, capabilities, devices and everything else that CRIU carries. It replaces what every instance has:
//! its first process, which is `transhume init`, its namespaces and its root.

use std::path::Path;

use instance::container::{Bind, Config};
use instance::{InstanceName, Kind, Program, ResourceLimit};
use serde_json::{Map, Value, json};

use crate::init;

/// The inputs of a container's configuration on this host.
pub struct Wanted<'a> {
    /// The instance's name.
    pub name: &'a InstanceName,
    /// The program that runs in it.
    pub program: &'a Program,
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

impl Wanted<'_> {
    /// The runtime's configuration.
    pub fn configuration(&self) -> Value {
        let mut all = self.config.all().clone();
        all.entry("ociVersion").or_insert_with(|| "1.0.2".into());
        all.entry("hostname").or_insert_with(|| self.name.as_str().into());
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

    /// The first process: init stays root, with the capabilities that the command may have, and works in a directory that CRIU
    /// finds. Its umask applies to all that it starts.
    fn process(&self, process: &mut Map<String, Value>) {
        process.insert("terminal".into(), false.into());
        let mut root = json!({ "uid": 0, "gid": 0 });
        if let Some(umask) = process.get("user").and_then(|user| user.get("umask")) {
            root["umask"] = umask.clone();
        }
        process.insert("user".into(), root);
        process.insert("cwd".into(), "/".into());
        let lent = init::lent(&self.lend(process));
        let arguments =
            self.init.iter().cloned().chain(lent).chain(init::arguments(self.program, Kind::Container));
        process.insert("args".into(), arguments.collect());
        let environment =
            init::shield(&self.program.environment).map(|(name, value)| format!("{name}={value}"));
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
    /// Adds the capabilities that init needs to become the command's user. Returns those of them that commands may not have.
    fn lend(&self, process: &mut Map<String, Value>) -> Vec<u32> {
        let Program { user, group, groups, .. } = self.program;
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

/// Adds the capabilities that init needs to `set`, and returns the missing ones.
fn add_needed(set: &mut Vec<Value>) -> Vec<u32> {
    let missing: Vec<_> =
        init::NEEDED.into_iter().filter(|(name, _)| !set.iter().any(|one| one == name)).collect();
    set.extend(missing.iter().map(|(name, _)| Value::from(*name)));
    missing.into_iter().map(|(_, number)| number).collect()
}

/// The object `name` in `all`, which is made if it is missing.
fn object<'a>(all: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let place = all.entry(name).or_insert_with(|| json!({}));
    if !place.is_object() {
        *place = json!({});
    }
    place.as_object_mut().unwrap_or_else(|| unreachable!("it is an object by now"))
}

#[cfg(test)]
mod tests;
