//! The lab's network by itself, without daemons: which hosts reach each other, and that nothing is left.

mod bare;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use lab::layout::{Layout, address};
use lab::partition::{self, Cut};
use lab::process::Identity;
use lab::record::{Lock, Record};
use lab::{Files, Lab, LabName, Place, mark};

use self::bare::Bare;

/// Whether a connection to a port without a listener is refused, rather than never answered.
fn reaches(bare: &Bare, from: Place, to: Place) -> bool {
    let connect = format!("exec 2>&1; true < /dev/tcp/{}/9", address(to));
    let mut command = bare.command(from, "timeout");
    let output = command.args(["1", "bash", "-c", &connect]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("refused")
}

fn place(name: &str) -> Place {
    name.parse().unwrap()
}

/// Everything with this lab's name that the lab could leave behind.
fn leftovers(name: &str) -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let netns = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let netns = netns.filter_map(|entry| entry.file_name().into_string().ok());
    let all = mounts.lines().map(str::to_owned).chain(netns);
    all.filter(|line| line.contains(&format!("th-{name}-")) || line.contains(&format!("lab-{name}")))
        .collect()
}

#[test]
fn concurrent_labs_do_not_interfere() {
    if !test_support::is_root() {
        return test_support::skip("network namespaces need root");
    }
    let come_and_go = |name: &str| {
        let name: LabName = name.parse().unwrap();
        for _ in 0..100 {
            drop(Lock::create(&name, &Layout::of(&name)).unwrap());
            Lab::down(&name).unwrap();
        }
    };
    thread::scope(|scope| {
        for name in ["tgo1", "tgo2", "tgo3"] {
            scope.spawn(move || come_and_go(name));
        }
    });
}

#[test]
fn cut_places_do_not_reach_each_other_until_healed() {
    let Some(bare) = Bare::new("tnet1", &Files::Shared) else { return };
    let (h1, h2, coordinator) = (place("h1"), place("h2"), place("coordinator"));
    assert!(reaches(&bare, h1, h2) && reaches(&bare, h2, coordinator));

    let apart = Cut::between(h2, h1).unwrap();
    partition::cut(&bare.layout, apart).unwrap();
    partition::cut(&bare.layout, apart).unwrap();
    assert_eq!(partition::cuts(&bare.layout).unwrap(), BTreeSet::from([apart]));
    assert!(!reaches(&bare, h1, h2));
    assert!(reaches(&bare, h1, coordinator));

    partition::heal(&bare.layout, apart).unwrap();
    partition::heal(&bare.layout, apart).unwrap();
    assert!(reaches(&bare, h1, h2));

    partition::cut(&bare.layout, Cut::between(h1, coordinator).unwrap()).unwrap();
    assert!(!reaches(&bare, coordinator, h1));
    partition::heal_all(&bare.layout).unwrap();
    assert!(reaches(&bare, coordinator, h1));
}

#[test]
fn down_removes_processes_namespaces_mounts_and_files() {
    let Some(bare) = Bare::new("tnet2", &Files::Shared) else { return };
    let id = Record::read(&bare.layout).unwrap().id;
    let mut inside = bare.command(place("h1"), "sleep").arg("600").spawn().unwrap();
    let mut marked = Command::new("sleep").arg("600").env(mark::VARIABLE, id).spawn().unwrap();
    let mut unrelated = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let mount = bare.layout.root().join("mount");
    fs::create_dir(&mount).unwrap();
    assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&mount).status().unwrap().success());
    assert!(leftovers("tnet2").len() > 3);
    let unrelated_identity = Identity::of(unrelated.id().try_into().unwrap()).unwrap();

    Lab::down(&bare.name).unwrap();

    assert!(inside.wait().unwrap().code().is_none());
    assert!(marked.wait().unwrap().code().is_none());
    assert_eq!(leftovers("tnet2"), BTreeSet::new());
    assert!(!bare.layout.root().exists());
    assert!(unrelated_identity.is_running());
    unrelated.kill().unwrap();
    unrelated.wait().unwrap();
    Lab::down(&bare.name).unwrap();
}

#[test]
fn down_removes_remains_of_an_interrupted_up() {
    let Some(bare) = Bare::new("tnet3", &Files::Shared) else { return };
    fs::write(bare.layout.record(), "{\"id\": \"cut sho").unwrap();
    assert!(Lab::open(&bare.name).is_err());
    Lab::down(&bare.name).unwrap();
    assert_eq!(leftovers("tnet3"), BTreeSet::new());
}
