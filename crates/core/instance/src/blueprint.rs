//! The encoded description from which any host can start an instance.
//!
//! ```text
//! "BP" · version · fabric, name, network, network kind · workload's tag · workload
//! ```
//!
//! Version and tags are one byte each; the other fields are in postcard encoding. The layout of a version never changes: a new layout gets
//! a new version. Releases without versions wrote the fabric's number first, then the length of the name, which is always less than `P`; such
//! bytes count as version 0. The coordinator keeps blueprints in its store and nodes keep them in a file, so a release may read blueprints
//! of another release: it refuses them.

use fabric::{FabricId, NetworkKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::spec::{Container, InstanceSpec, Program, Root, VmSpec, Workload};

/// The first bytes of every versioned blueprint.
const MAGIC: [u8; 2] = *b"BP";

/// An instance's specification in its fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blueprint {
    /// Its fabric.
    pub fabric: FabricId,
    /// Its specification.
    pub spec: InstanceSpec,
}

/// Why a blueprint cannot be decoded or encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlueprintError {
    /// Another release wrote it.
    #[error(
        "the instance's blueprint has version {found}, and this release reads version {}",
        Blueprint::VERSION
    )]
    OtherVersion {
        /// Its version.
        found: u8,
    },
    /// The bytes are not a blueprint, or only a part of one.
    #[error("the instance's blueprint is damaged")]
    Damaged,
    /// Part of the specification cannot be encoded.
    #[error("cannot encode the instance's blueprint: {0}")]
    Unwritable(String),
}

impl BlueprintError {
    /// The remedy for the user.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::OtherVersion { .. } => {
                "start the instance again with `transhume run`, or use the release that wrote the blueprint"
            }
            Self::Damaged => "start the instance again with `transhume run`",
            Self::Unwritable(_) => "use paths that are valid UTF-8",
        }
    }
}

impl Blueprint {
    /// The version that this release writes, and the only version that it reads.
    pub const VERSION: u8 = 3;

    /// Encodes the blueprint.
    ///
    /// # Errors
    /// If a path is not valid UTF-8.
    pub fn encode(&self) -> Result<Vec<u8>, BlueprintError> {
        let Self { fabric, spec: InstanceSpec { name, network, network_kind, workload } } = self;
        let mut writer = Writer(MAGIC.to_vec());
        writer.tag(Self::VERSION);
        writer.put(&(fabric, name, network))?;
        writer.tag(tag_of(*network_kind));
        match workload {
            Workload::Process(program) => {
                writer.tag(workload_tag::PROCESS);
                writer.put(program)?;
            }
            Workload::Container(Container { program, root, config, rdma }) => {
                writer.tag(workload_tag::CONTAINER);
                writer.put(&(program, config, rdma))?;
                match root {
                    Root::Directory(path) => {
                        writer.tag(root_tag::DIRECTORY);
                        writer.put(path)?;
                    }
                    Root::Image(image) => {
                        writer.tag(root_tag::IMAGE);
                        writer.put(image)?;
                    }
                }
            }
            Workload::Vm(vm) => {
                writer.tag(workload_tag::VM);
                writer.put(vm)?;
            }
        }
        Ok(writer.0)
    }

    /// Decodes a blueprint.
    ///
    /// # Errors
    /// If `bytes` have another version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlueprintError> {
        let Some(rest) = bytes.strip_prefix(&MAGIC) else {
            return Err(BlueprintError::OtherVersion { found: 0 });
        };
        let mut reader = Reader(rest);
        match reader.tag()? {
            Self::VERSION => {}
            found => return Err(BlueprintError::OtherVersion { found }),
        }
        let (fabric, name, network) = reader.take()?;
        let network_kind = network_kind(reader.tag()?)?;
        let workload = reader.workload()?;
        let spec = InstanceSpec { name, network, network_kind, workload };
        if reader.0.is_empty() { Ok(Self { fabric, spec }) } else { Err(BlueprintError::Damaged) }
    }
}

mod workload_tag {
    pub const PROCESS: u8 = 1;
    pub const CONTAINER: u8 = 2;
    pub const VM: u8 = 3;
}

mod root_tag {
    pub const DIRECTORY: u8 = 1;
    pub const IMAGE: u8 = 2;
}

fn tag_of(kind: NetworkKind) -> u8 {
    match kind {
        NetworkKind::Bridge => 1,
        NetworkKind::Overlay => 2,
    }
}

fn network_kind(tag: u8) -> Result<NetworkKind, BlueprintError> {
    match tag {
        1 => Ok(NetworkKind::Bridge),
        2 => Ok(NetworkKind::Overlay),
        _ => Err(BlueprintError::Damaged),
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn tag(&mut self, tag: u8) {
        self.0.push(tag);
    }

    fn put<T: Serialize>(&mut self, value: &T) -> Result<(), BlueprintError> {
        let bytes = postcard::to_stdvec(value);
        self.0.extend(bytes.map_err(|error| BlueprintError::Unwritable(error.to_string()))?);
        Ok(())
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn tag(&mut self) -> Result<u8, BlueprintError> {
        let (tag, rest) = self.0.split_first().ok_or(BlueprintError::Damaged)?;
        self.0 = rest;
        Ok(*tag)
    }

    fn take<T: DeserializeOwned>(&mut self) -> Result<T, BlueprintError> {
        let (value, rest) = postcard::take_from_bytes(self.0).map_err(|_| BlueprintError::Damaged)?;
        self.0 = rest;
        Ok(value)
    }

    fn workload(&mut self) -> Result<Workload, BlueprintError> {
        match self.tag()? {
            workload_tag::PROCESS => self.take::<Program>().map(Workload::Process),
            workload_tag::CONTAINER => {
                let (program, config, rdma) = self.take()?;
                let root = self.root()?;
                Ok(Workload::Container(Container { program, root, config, rdma }))
            }
            workload_tag::VM => self.take::<VmSpec>().map(Workload::Vm),
            _ => Err(BlueprintError::Damaged),
        }
    }

    fn root(&mut self) -> Result<Root, BlueprintError> {
        match self.tag()? {
            root_tag::DIRECTORY => self.take().map(Root::Directory),
            root_tag::IMAGE => self.take().map(Root::Image),
            _ => Err(BlueprintError::Damaged),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::digest::Digest;
    use crate::seed::Seed;
    use crate::spec::{Accelerator, Boot, ContainerImage, Disk, InstanceName, Network, ResourceLimit};

    fn program() -> Program {
        Program {
            command: vec!["true".into()],
            environment: vec![("A".into(), "b".into())],
            directory: "/".into(),
            user: 7,
            group: 8,
            groups: vec![9],
            limits: vec![ResourceLimit { resource: 1, soft: 2, hard: 3 }],
            stdin: true,
        }
    }

    fn blueprint(workload: Workload) -> Blueprint {
        let network =
            Network { mac: [2, 0, 0, 0, 0, 1], address: Ipv4Addr::new(10, 77, 1, 1), prefix: 16, mtu: 1500 };
        let (name, network_kind) = (InstanceName::new("a").unwrap(), NetworkKind::Overlay);
        Blueprint { fabric: FabricId(1), spec: InstanceSpec { name, network, network_kind, workload } }
    }

    fn all() -> Vec<Blueprint> {
        let container = |root| {
            Workload::Container(Container { program: program(), root, config: "{}".into(), rdma: true })
        };
        let image = ContainerImage { source: "oci:/i:v1".into(), root: Digest::from_bytes(&[3; 32]) };
        let disks = vec![Disk { path: "/srv/a.img".into(), is_shared: true, format: None }];
        let boot = Boot {
            kernel: "/boot/vmlinuz".into(),
            initrd: Some("/boot/initrd".into()),
            append: "quiet".into(),
        };
        let (machine, cpu_model) = (Some("pc-q35-7.2".into()), None);
        let (accelerator, boot) = (Some(Accelerator::Kvm), Some(boot));
        let seed = Some(Seed { tools: true, user_data: Some("#!/bin/sh".into()) });
        let (cpus, memory, vnc) = (2, 1 << 30, true);
        let vm = VmSpec { cpus, memory, machine, cpu_model, accelerator, boot, disks, vnc, seed };
        let workloads = [
            Workload::Process(program()),
            container(Root::Directory("/srv/root".into())),
            container(Root::Image(image)),
            Workload::Vm(vm),
        ];
        workloads.map(blueprint).into()
    }

    #[test]
    fn each_kind_of_workload_survives_encoding() {
        for blueprint in all() {
            assert_eq!(Blueprint::decode(&blueprint.encode().unwrap()), Ok(blueprint));
        }
    }

    #[test]
    fn a_truncated_or_extended_blueprint_is_damaged() {
        for blueprint in all() {
            let bytes = blueprint.encode().unwrap();
            for end in 3..bytes.len() {
                assert_eq!(Blueprint::decode(&bytes[..end]), Err(BlueprintError::Damaged), "{end}");
            }
            assert_eq!(Blueprint::decode(&[&bytes[..], &[0]].concat()), Err(BlueprintError::Damaged));
        }
    }

    #[test]
    fn a_blueprint_of_another_version_is_refused() {
        let mut bytes = all()[0].encode().unwrap();
        bytes[2] = 9;
        let refused = Blueprint::decode(&bytes).unwrap_err();
        assert_eq!(refused, BlueprintError::OtherVersion { found: 9 });
        assert!(refused.to_string().contains("version 9") && refused.remedy().contains("`transhume run`"));
    }

    /// Fabric 66, so that the first byte is that of a versioned blueprint, and the longest name.
    #[test]
    fn a_blueprint_of_a_release_without_versions_is_refused_as_version_0() {
        let old = [&[66, 63][..], "a".repeat(63).as_bytes(), &[0; 40]].concat();
        assert_eq!(Blueprint::decode(&old), Err(BlueprintError::OtherVersion { found: 0 }));
    }
}
