//! Two instances without a lab: brokers in this process, network namespaces, and an Ethernet
//! between them over which their programs find each other.

use std::os::fd::AsRawFd as _;
use std::process::{self, Command};
use std::time::Duration;

use anyhow::Result;
use broker::local::{LocalFabric, LocalInstance};

use crate::artifacts;
use crate::program::run;

/// How long a command that sets something up may take.
const SET_UP: Duration = Duration::from_secs(10);

/// The address of the first instance.
pub const FIRST: &str = "10.77.0.1";

/// The address of the second one.
const SECOND: &str = "10.77.0.2";

/// Where the two instances are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On two hosts: RDMA goes through a stream.
    TwoHosts,
    /// On one host: RDMA goes through shared memory.
    OneHost,
}

/// Two instances.
pub struct Pair {
    /// The fabric of both, with two hosts.
    pub fabric: LocalFabric,
    /// On host 0, with the address [`FIRST`].
    pub first: LocalInstance,
    /// On host 1, or on host 0 as well.
    pub second: LocalInstance,
}

impl Pair {
    /// Two new instances that reach each other.
    ///
    /// # Errors
    /// If network namespaces cannot be made.
    pub fn new(place: Place) -> Result<Self> {
        let fabric = LocalFabric::new(2)?;
        let first = fabric.add_instance(0)?;
        let second = fabric.add_instance(if place == Place::TwoHosts { 1 } else { 0 })?;
        connect(&first, &second)?;
        Ok(Self { fabric, first, second })
    }
}

/// A veth pair between two network namespaces.
fn connect(first: &LocalInstance, second: &LocalInstance) -> Result<()> {
    let peer = format!("/proc/{}/fd/{}", process::id(), second.network().as_raw_fd());
    ip(first, &["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &peer])?;
    for (instance, address) in [(first, FIRST), (second, SECOND)] {
        ip(instance, &["address", "add", &format!("{address}/24"), "dev", "eth0"])?;
        ip(instance, &["link", "set", "eth0", "up"])?;
    }
    Ok(())
}

fn ip(instance: &LocalInstance, arguments: &[&str]) -> Result<()> {
    run(instance.enter(Command::new("ip").args(arguments)), SET_UP).map(drop)
}

/// A command that starts `program` in `instance` with the RDMA library.
///
/// # Errors
/// If the library has not been built.
pub fn command(instance: &LocalInstance, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
    let mut command = Command::new(program);
    command.envs(artifacts::environment()?);
    instance.enter(&mut command);
    Ok(command)
}
