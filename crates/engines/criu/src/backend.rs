//! The process engine as an engine of a node: it implements the traits of [`engine_api`].
//!
//! CRIU's peculiarities stay behind these traits: its start before an instance stops, the turns of dumps, the owners of pages, and
//! the names of image files.

mod destination;
mod images;
mod postcopy;
mod source;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use engine_api::{
    Capabilities, Destination, Driver, Engine, Error, Local, Recovered, Result, Running, Shortage, Source,
};
use instance::{InstanceName, InstanceSpec, Kind};

use self::destination::Arrival;
use self::source::Departure;
use crate::ProcessEngine;

impl Engine for ProcessEngine {
    fn capabilities(&self) -> Capabilities {
        Capabilities { kinds: &[Kind::Process, Kind::Container], precopy: Driver::Node }
    }

    fn create(&self, spec: &InstanceSpec) -> Result<()> {
        Ok(self.prepare(spec, 0)?)
    }

    fn local(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Local>> {
        self.must_have(name)?;
        Ok(Box::new(Here { engine: self, name: name.clone() }))
    }

    fn destroy(&self, name: &InstanceName) -> Result<()> {
        Ok(Self::destroy(self, name)?)
    }

    fn recover(&self) -> Result<Vec<Recovered>> {
        Ok(Self::recover(self)?)
    }

    fn source(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Source>> {
        self.must_have(name)?;
        Ok(Box::new(Departure::new(self, name.clone())))
    }

    fn destination(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Destination>> {
        Ok(Box::new(Arrival { engine: self, name: name.clone() }))
    }
}

/// An instance on this host.
struct Here {
    engine: Arc<ProcessEngine>,
    name: InstanceName,
}

impl Local for Here {
    fn network_namespace(&self) -> Result<OwnedFd> {
        Ok(self.engine.network_namespace(&self.name)?)
    }

    fn start(&self) -> Result<Running> {
        Ok(self.engine.start(&self.name)?)
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        Ok(self.engine.wait(&self.name, timeout)?)
    }

    fn shortage(&self) -> Shortage {
        self.engine.shortage(&self.name)
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        match error {
            crate::Error::NoRoom(_) => {
                Self::unusable(error.to_string(), "free space there, or choose another host")
            }
            crate::Error::Unusable { what, remedy } => Self::Unusable { what, remedy },
            crate::Error::Pinned { blocker, .. } => Self::Pinned(blocker),
            crate::Error::Criu { doing, reason, .. } => criu_failed(doing, &reason),
            crate::Error::Lost { reason, .. } => Self::Lost(reason),
            crate::Error::NotTaken(error) => Self::NotTaken(error),
            crate::Error::Cancelled => Self::Cancelled,
            other => Self::Other(other.to_string()),
        }
    }
}

/// CRIU's own message comes last: it is for readers who know CRIU.
fn criu_failed(doing: &str, reason: &str) -> Error {
    let what = match doing {
        "dump" => "its processes could not be dumped",
        _ => "it could not be restored",
    };
    // CRIU compares open files with their recorded sizes.
    let remedy = if reason.contains(" has bad size ") {
        "restore that file to its contents at the time of the checkpoint, or save the instance again"
    } else {
        "move it again; if that fails too, close or end the object that CRIU names, or choose another host"
    };
    Error::Failed { what: what.into(), reason: format!("CRIU says: {reason}"), remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_criu(doing: &'static str, reason: &str) -> Error {
        let name = InstanceName::new("a").unwrap();
        crate::Error::Criu { doing, name, reason: reason.into() }.into()
    }

    #[test]
    fn a_failure_of_criu_names_the_host_and_ends_with_its_message() {
        let dumped = of_criu("dump", "File \"x\" is odd");
        assert_eq!(
            dumped.on_host("h1"),
            "its processes could not be dumped on host h1 (CRIU says: File \"x\" is odd)"
        );
        assert!(dumped.remedy().unwrap().starts_with("move it again"));
        let restored = of_criu("restore", "File x has bad size 1 (expect 2)");
        assert!(restored.on_host("h1").starts_with("it could not be restored on host h1 (CRIU says: File"));
        assert!(restored.remedy().unwrap().starts_with("restore that file"));
    }

    #[test]
    fn a_full_host_is_named() {
        let full = Error::from(crate::Error::NoRoom("the images of `a` in /x".into()));
        assert_eq!(full.on_host("h1"), "host h1: there is no room for the images of `a` in /x");
        assert_eq!(full.remedy(), Some("free space there, or choose another host"));
    }
}
