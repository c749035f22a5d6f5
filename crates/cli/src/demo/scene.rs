//! The lab and the two instances, with their programs.
//!
//! * [`programs`]: two programs with their RDMA traffic. [`machine`]: a virtual machine and a container.

mod machine;
mod programs;

use std::env;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use api::{Client, Instance, Request};
use lab::{Files, Lab, LabName, Spec};
use probe::{Prober, Requester};

use super::plan::Options;
use super::summary::MachineResult;
use super::traffic::{End, Known, Traffic};
use super::view::View;
use crate::failure::{Failure, Result};

/// How long programs may take to start, and to produce output after a move.
pub const PATIENCE: Duration = Duration::from_secs(30);

const HOSTS: u16 = 3;
const CHECK_PORT: u16 = 18600;
const ECHO_PORT: u16 = 7790;

/// A lab, with the output of the instances in it.
pub struct Stage {
    name: LabName,
    lab: Lab,
    traffic: Traffic,
}

/// The demo's lab with its traffic.
pub struct Scene {
    stage: Stage,
    /// The external prober: from the coordinator's place to the traveller.
    pub prober: Prober,
    cast: Cast,
}

/// What travels.
enum Cast {
    /// Programs, whose traffic ends at this time.
    Programs(Instant),
    /// A virtual machine, which answers requests of the outside.
    Machine(Requester),
}

impl Scene {
    /// Creates the lab and starts all programs. Returns when traffic flows.
    pub fn set(options: &Options, view: &View) -> Result<Self> {
        let name = options.lab.clone();
        let program = env::current_exe()?;
        let lab = Lab::up(&Spec { name: name.clone(), hosts: HOSTS, program, files: Files::own() })?;
        let stage = Stage { name, lab, traffic: Traffic::new(options.stream()) };
        view.watch(&stage.traffic);
        let (prober, cast) = match &options.machine {
            None => {
                let (prober, ends) = programs::start(&stage, options, view)?;
                (prober, Cast::Programs(ends))
            }
            Some(image) => {
                let (prober, requests) = machine::start(&stage, image, view)?;
                (prober, Cast::Machine(requests))
            }
        };
        Ok(Self { stage, prober, cast })
    }

    /// The coordinator's socket.
    pub fn socket(&self) -> PathBuf {
        self.stage.lab.layout().socket()
    }

    /// The parsed output of the programs.
    pub fn traffic(&self) -> &Traffic {
        &self.stage.traffic
    }

    /// The requests to the virtual machine, if one travels.
    pub fn requests(&self) -> Option<&Requester> {
        match &self.cast {
            Cast::Programs(_) => None,
            Cast::Machine(requests) => Some(requests),
        }
    }

    /// What was checked of the virtual machine besides its RDMA traffic.
    pub fn machine_result(&self) -> Result<Option<MachineResult>> {
        let Cast::Machine(requests) = &self.cast else { return Ok(None) };
        let lost = |why| Failure::new(format!("a reply was lost: {why}"), "");
        let blocks = self.traffic().known().disk_blocks;
        Ok(Some(MachineResult { replies: requests.answered().map_err(lost)?, blocks }))
    }

    /// Waits for the results of all programs. Fails if anything was lost.
    pub fn finish(&self) -> Result<()> {
        match &self.cast {
            Cast::Programs(ends) => programs::finish(&self.stage, *ends),
            Cast::Machine(_) => machine::stop(&self.stage),
        }
    }
}

impl Stage {
    /// Parses the output of an instance from now on.
    fn follow(&self, name: &str, end: End) -> Result<()> {
        let request = Request::Logs { name: name.into(), follow: true, after: None };
        let events = Client::send(&self.lab.layout().socket(), &request)?;
        let traffic = self.traffic.clone();
        thread::spawn(move || traffic.follow(end, events));
        Ok(())
    }

    /// Waits until both kinds of traffic flow.
    fn await_traffic(&self, deadline: Instant) -> Result<()> {
        let flows = |known: &Known| {
            !known.rates.is_empty() && known.intervals.iter().any(|interval| interval.counts.operations > 0)
        };
        self.traffic.wait_for("traffic", deadline, flows)
    }

    /// Runs a command of this program for the lab, and returns its output.
    fn transhume(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["--lab", self.name.as_str()]).args(arguments).env_remove(api::SOCKET_VARIABLE);
        let ended = command.stdin(Stdio::null()).output()?;
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        Err(Failure::new(format!("`transhume {}` failed: {said}", arguments.first().unwrap_or(&"")), ""))
    }

    /// The address of an instance.
    fn address(&self, name: &str) -> Result<String> {
        let listed: Vec<Instance> =
            serde_json::from_str(&self.transhume(&["ps", "--json"])?).map_err(io::Error::from)?;
        let found = listed.into_iter().find(|instance| instance.name == name);
        found.map(|found| found.address).ok_or_else(|| Failure::new(format!("`{name}` is gone"), ""))
    }
}

fn socket_address(address: &str) -> Result<SocketAddr> {
    let address = address.parse().map_err(|_| Failure::new(format!("`{address}` is not an address"), ""))?;
    Ok(SocketAddr::new(address, ECHO_PORT))
}

/// A program of this project, in the same directory as this one.
fn beside(name: &str) -> Result<PathBuf> {
    let path = env::current_exe()?.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::new(format!("{} is missing", path.display()), "build it with `make build`"))
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
