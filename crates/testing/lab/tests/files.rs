//! The files of a lab's hosts, without daemons: which are a host's own, and that nothing is left of them.

mod bare;

use std::fs;
use std::path::Path;
use std::process::Output;

use lab::layout::DISKS;
use lab::record::Record;
use lab::{Error, Files, Lab, files};

use self::bare::Bare;

/// Runs `script` in a place.
fn run(bare: &Bare, place: &str, script: &str) -> Output {
    bare.command(place.parse().unwrap(), "sh").args(["-c", script]).output().unwrap()
}

/// What `script` writes in a place.
fn output(bare: &Bare, place: &str, script: &str) -> String {
    String::from_utf8(run(bare, place, script).stdout).unwrap().trim().to_owned()
}

/// The mounts of this machine, and of all processes, that belong to the lab.
fn mounts(name: &str) -> Vec<String> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let all = pids.filter_map(|pid| fs::read_to_string(pid.path().join("mounts")).ok());
    let lines: Vec<_> = all.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    lines.into_iter().filter(|line| line.contains(&format!("lab-{name}/"))).collect()
}

#[test]
fn each_host_has_temporary_files_and_disks_of_its_own() {
    let Some(lab) = Bare::new("tfil1", &Files::own()) else { return };
    for folder in ["/tmp", "/run", "/dev/shm", "/var/lib/transhume/disks"] {
        let file = format!("{folder}/th-tfil1");
        for (host, text) in [("h1", "first"), ("h2", "second")] {
            assert_eq!(output(&lab, host, &format!("[ -e {file} ] || echo absent")), "absent", "{file}");
            assert!(run(&lab, host, &format!("echo {text} >{file}")).status.success());
        }
        // No process of the host has run meanwhile.
        assert_eq!(output(&lab, "h1", &format!("cat {file}")), "first");
        assert_eq!(output(&lab, "h2", &format!("cat {file}")), "second");
        assert!(!Path::new(&file).exists(), "{file} is on the machine");
        assert_eq!(output(&lab, "coordinator", &format!("[ -e {file} ] || echo absent")), "absent");
    }
}

#[test]
fn a_mount_of_one_host_is_not_in_the_other() {
    let Some(lab) = Bare::new("tfil2", &Files::own()) else { return };
    let mount = "mkdir -p /tmp/m && mount -n -t tmpfs tmpfs /tmp/m && touch /tmp/m/mounted";
    assert!(run(&lab, "h1", mount).status.success());
    assert_eq!(output(&lab, "h1", "ls /tmp/m"), "mounted");
    assert_eq!(output(&lab, "h2", "ls /tmp/m"), "");
}

#[test]
fn hosts_share_the_given_folders_and_the_directory_of_a_command() {
    if !test_support::is_root() {
        return test_support::skip("network namespaces need root");
    }
    let shared = std::env::temp_dir().join(format!("th-tfil3-{}", std::process::id()));
    fs::create_dir(&shared).unwrap();
    let lab = Bare::new("tfil3", &Files::Own { shared: vec![shared.clone()] }).unwrap();
    assert!(run(&lab, "h1", &format!("echo common >{}/file", shared.display())).status.success());
    let found = [output(&lab, "h2", &format!("cat {}/file", shared.display())), output(&lab, "h2", "pwd")];
    drop(lab);
    let text = fs::read_to_string(shared.join("file"));
    fs::remove_dir_all(&shared).unwrap();
    assert_eq!(text.unwrap(), "common\n");
    assert_eq!(found, ["common", std::env::current_dir().unwrap().to_str().unwrap()]);
}

#[test]
fn a_missing_shared_folder_is_named() {
    let Some(lab) = Bare::new("tfil4", &Files::Shared) else { return };
    let record = Record::read(&lab.layout).unwrap();
    let missing = Files::Own { shared: vec!["/no/such".into()] };
    let error = files::make(&lab.layout, &record, &missing).unwrap_err();
    assert!(matches!(&error, Error::Io { what, .. } if what.contains("/no/such")), "{error}");
}

#[test]
fn hosts_can_share_all_files_of_the_machine() {
    let Some(lab) = Bare::new("tfil5", &Files::Shared) else { return };
    let file = std::env::temp_dir().join("th-tfil5");
    assert!(run(&lab, "h1", &format!("echo common >{}", file.display())).status.success());
    let found = output(&lab, "h2", &format!("cat {}", file.display()));
    fs::remove_file(&file).unwrap();
    assert_eq!(found, "common");
}

#[test]
fn down_removes_the_files_and_mounts_of_hosts() {
    let Some(lab) = Bare::new("tfil6", &Files::own()) else { return };
    let make = "echo x >/var/lib/transhume/disks/image; mkdir /tmp/m; mount -n -t tmpfs tmpfs /tmp/m";
    assert!(run(&lab, "h1", make).status.success());
    assert!(Path::new(DISKS).join("lab-tfil6/h1/disks/image").exists());
    let mut inside = lab.command("h1".parse().unwrap(), "sleep").arg("600").spawn().unwrap();
    assert_ne!(mounts("tfil6"), [""; 0]);

    Lab::down(&lab.name).unwrap();

    assert!(inside.wait().unwrap().code().is_none());
    assert_eq!(mounts("tfil6"), [""; 0]);
    assert!(!Path::new(DISKS).join("lab-tfil6").exists());
    assert!(!lab.layout.root().exists());
}
