//! A lab without daemons.

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::layout::Layout;
use lab::record::{Lock, Record};
use lab::{Error, Files, Lab, LabName, Place, files, network};

/// A lab of two hosts without daemons, removed at the end also of a failed test.
pub struct Bare {
    pub name: LabName,
    pub layout: Layout,
}

impl Bare {
    /// `None` without root.
    pub fn new(name: &str, files: &Files) -> Option<Self> {
        if !test_support::is_root() {
            test_support::skip("namespaces need root");
            return None;
        }
        let name: LabName = name.parse().unwrap();
        Lab::down(&name).unwrap();
        let bare = Self { layout: Layout::of(&name), name };
        drop(Lock::create(&bare.name, &bare.layout).unwrap());
        fs::create_dir(bare.layout.images_in_memory()).unwrap();
        let record = Record::new(2, Path::new("/bin/false")).unwrap();
        record.write(&bare.layout).unwrap();
        network::make(&bare.layout, &record).unwrap();
        files::make(&bare.layout, &record, files).unwrap();
        assert!(matches!(Lab::open(&bare.name), Err(Error::Incomplete { .. })));
        // A lab is complete when each of its daemons was started once, even if a daemon has ended since.
        Place::all(2).for_each(|place| fs::write(bare.layout.pid_file(place), "").unwrap());
        Some(bare)
    }

    /// A command at a place.
    pub fn command(&self, place: Place, program: &str) -> Command {
        Lab::open(&self.name).unwrap().command(place, program).unwrap()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        Lab::down(&self.name).unwrap();
    }
}
