//! Containers: an MPI job in them goes on while they move, and errors in one are reported.

use std::fs;
use std::path::Path;
use std::process::{self, Command};
use std::time::Duration;

use anyhow::{Result, ensure};
use api::{MoveReport, Outcome};
use e2e::artifacts;
use e2e::common_files;
use e2e::job::{GROUP, Job, agree_again};
use e2e::mpi;
use e2e::program::{self, Ended, Program};
use e2e::testlab::TestLab;

const LIMIT: Duration = Duration::from_secs(120);

fn all_moved(ended: &Ended, count: usize) -> Result<()> {
    let reports: Vec<MoveReport> = serde_json::from_str(&ended.lines.concat())?;
    ensure!(reports.len() == count, "{reports:?}");
    ensure!(reports.iter().all(|report| report.outcome == Outcome::Moved), "{reports:?}");
    Ok(())
}

/// Alone, as a group, and from a drained host. The ranks wait for each other, so each of them is moved while it works.
#[test]
fn an_mpi_job_goes_on_while_its_containers_move() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let job = Job::start(&lab, &["h1", "h1", "h2"])?;
    let ring = Program::start(&mut job.ring(&lab))?;
    // As soon as a rank runs, mpirun has them all.
    lab.eventually("the ranks run", || {
        let found = lab.transhume(&["exec", "rank3", "--", "pgrep", "-f", "ring.py"])?;
        Ok(found.status.success())
    })?;
    for (rank, host) in [("rank1", "h2"), ("rank3", "h3")] {
        ensure!(lab.move_to(rank, host)?.outcome == Outcome::Moved);
    }
    all_moved(&lab.transhume(&["move", "--group", GROUP, "h1", "--json"])?.success()?, 2)?;
    lab.transhume(&["drain", "h1", "--json"])?.success()?;
    ensure!(lab.instances()?.iter().all(|instance| instance.host != "h1"));
    lab.transhume(&["undrain", "h1"])?.success()?;
    job.enough()?;
    let lines = ring.end(LIMIT)?.success()?.lines;
    ensure!(lines.iter().any(|line| line.ends_with(mpi::REPORT)), "{lines:?}");
    Ok(())
}

/// Collectives, one-sided access and a shared file. Every rank checks every result.
#[test]
fn joint_results_of_ranks_stay_right_while_the_ranks_move() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let job = Job::start(&lab, &["h1", "h1", "h2"])?;
    let mut ranks = Program::start(&mut job.checks(&lab))?;
    agree_again(&lab, &mut ranks)?;
    for host in ["h3", "h2", "h1"] {
        ensure!(lab.move_to("rank1", host)?.outcome == Outcome::Moved);
        agree_again(&lab, &mut ranks)?;
    }
    all_moved(&lab.transhume(&["move", "--group", GROUP, "h2,h3", "--json"])?.success()?, 2)?;
    agree_again(&lab, &mut ranks)?;
    lab.transhume(&["drain", "h2", "--json"])?.success()?;
    ensure!(lab.instances()?.iter().all(|instance| instance.host != "h2"));
    agree_again(&lab, &mut ranks)?;
    lab.transhume(&["undrain", "h2"])?.success()?;
    job.enough()?;
    let lines = ranks.end(LIMIT)?.success()?.lines;
    ensure!(lines.last().is_some_and(|line| line.starts_with("3 ranks agree after")), "{lines:?}");
    Ok(())
}

#[test]
fn an_invalid_container_is_refused_with_the_reason_and_not_started() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    let folder = common_files::folder()?;
    let bundle = folder.path().to_str().unwrap_or_default();
    let waits = folder.path().join("waits");
    fs::create_dir(&waits)?;
    for file in ["config.json", "index.json"] {
        program::run(Command::new("mkfifo").arg(waits.join(file)), LIMIT)?;
    }
    let (waits, layout) = (waits.display().to_string(), format!("oci:{}", waits.display()));
    let run = |arguments: &[&str]| lab.transhume(&[&["run", "--name", "c"], arguments].concat());
    let cases: [(&[&str], i32, &str); 9] = [
        (
            &["--rootfs", "/no/such", "--", "true"],
            1,
            "the root file system of `c`, /no/such, is not a directory on this host",
        ),
        (
            &["--rootfs", "/", "--volume", "/no/such:/a", "--", "true"],
            1,
            "/no/such, which `c` mounts, is not on",
        ),
        (&["--rootfs", "/", "--volume", "a:/b", "--", "true"], 2, "both paths of a volume must be absolute"),
        (&["--bundle", bundle], 2, "config.json"),
        (&["--bundle", &waits], 2, "config.json: it is not a regular file"),
        (&["--image", &layout, "--", "true"], 1, "index.json: it is not a regular file"),
        (&["--bundle", bundle, "--memory", "64M"], 2, "cannot be used with '--memory"),
        (&["--env", "A=b", "--", "true"], 2, "--env requires a container"),
        (&["--rootfs", "/", "--", "no-such-program"], 127, "`no-such-program` cannot be started"),
    ];
    for (arguments, code, expected) in cases {
        let ended = run(arguments)?;
        let said = &ended.errors;
        ensure!(ended.status.code() == Some(code) && said.contains(expected), "{arguments:?}: {ended:?}");
    }
    let rootfs = folder.path().join("rootfs");
    fs::create_dir(&rootfs)?;
    let hooks = r#"{"root": {"path": "rootfs"}, "hooks": {"prestart": [{"path": "/bin/true"}]}}"#;
    fs::write(folder.path().join("config.json"), hooks)?;
    let ended = run(&["--bundle", bundle, "--", "true"])?;
    ensure!(ended.errors.contains("the container has hooks"), "{ended:?}");
    ensure!(lab.instances()?.is_empty());
    Ok(())
}

/// Its code alone would not say why.
#[test]
fn an_end_for_want_of_memory_is_reported() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let container = ["run", "--host", "h1", "--rootfs", "/", "--memory", "64M"];
    let greedy = ["--name", "greedy", "--", "/usr/bin/python3", "-c", "bytearray(b'x') * (200 << 20)"];
    let ended = lab.transhume(&[&container[..], &greedy].concat())?;
    ensure!(ended.status.code() == Some(137), "{ended:?}");
    let events = lab.transhume(&["events"])?.success()?.lines;
    let told = "greedy on h1: the kernel ended 1 process: the memory limit is 64.0 MiB";
    ensure!(events.iter().any(|line| line.ends_with(told)), "{events:#?}");
    // A session with a shell that goes on without it, and leaves.
    let command = "/usr/bin/python3 -c \"bytearray(b'x') * (200 << 20)\"; echo next; sleep 1000";
    let shell = ["--name", "shell", "--", "sh", "-c", command];
    let mut shell = Program::start(&mut lab.command(&[&container[..], &shell].concat()))?;
    shell.wait_for(LIMIT, |line| (line == "next").then_some(()))?;
    ensure!(lab.move_to("shell", "h2")?.outcome == Outcome::Moved);
    let told = "shell on h1: the kernel ended 1 process: the memory limit is 64.0 MiB";
    lab.eventually("it is told", || {
        Ok(lab.transhume(&["events"])?.success()?.lines.iter().any(|line| line.ends_with(told)))
    })?;
    Ok(())
}

/// The bundle's own command, directory, environment and user.
#[test]
fn a_bundle_runs_by_its_configuration() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let folder = common_files::folder()?;
    let config = serde_json::json!({
        "root": { "path": "/", "readonly": true },
        "hostname": "other",
        "process": {
            "terminal": true, "cwd": "/usr", "user": { "uid": 0, "gid": 0, "additionalGids": [9] },
            "args": ["sh", "-c", "echo $WORD $(hostname) $PWD $(id -u) $(id -G); touch /x; exec sleep infinity"],
            "env": ["PATH=/usr/bin:/bin", "WORD=said"],
            "capabilities": { "bounding": ["CAP_CHOWN"], "permitted": ["CAP_CHOWN"],
                "effective": ["CAP_CHOWN"] },
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
        ],
    });
    fs::write(folder.path().join("config.json"), config.to_string())?;
    let bundle = folder.path().to_str().unwrap_or_default();
    lab.transhume(&["run", "--name", "c", "--host", "h1", "--detach", "--bundle", bundle])?.success()?;
    ensure!(lab.move_to("c", "h2")?.outcome == Outcome::Moved);
    let logs = lab.transhume(&["logs", "c"])?;
    ensure!(logs.lines == ["said other /usr 0 0 9"], "{logs:?}");
    ensure!(logs.errors.contains("touch: cannot touch '/x': Read-only file system"), "{logs:?}");
    let who = lab.transhume(&["exec", "c", "--", "sh", "-c", "hostname; id -G"])?.success()?;
    ensure!(who.lines == ["other", "0 9"], "{who:?}");
    Ok(())
}

/// An image of a shell that prints its input.
const SHELL: &[&str] = &[
    r#"ENTRYPOINT ["/bin/sh", "-c", "echo $0 $1; echo $0 >/kept; exec sleep infinity", "one"]"#,
    "/bin/sh",
    "/bin/sleep",
    "/bin/cat",
];

/// Writes an image as an OCI image layout.
fn write_image(layout: &Path, image: &[&str]) -> Result<()> {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engines/criu/tests/process/image.sh");
    program::run(Command::new(SCRIPT).arg(layout).args(image), LIMIT)?.success().map(drop)
}

/// From a layout: each host unpacks it for itself, or has it already.
#[test]
fn an_image_runs_by_its_configuration_and_moves_to_a_host_with_the_same_image() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let folder = common_files::folder()?;
    let [layout, away] = ["layout", "away"].map(|name| folder.path().join(name));
    // With libraries of its own for RDMA, and the libraries that ours need.
    let ours = artifacts::built("libibverbs.so")?;
    let programs = ["/usr/bin/env", "/usr/bin/ibv_devices", ours.to_str().unwrap_or_default()];
    write_image(&layout, &[SHELL, &programs].concat())?;
    let source = format!("oci:{}", layout.display());
    let run = ["run", "--name", "c", "--host", "h1", "--detach", "--image"];
    lab.transhume(&[&run[..], &[&source, "--", "more"]].concat())?.success()?;
    let dry_run = || lab.transhume(&["move", "c", "h2", "--dry-run"]);
    fs::rename(&layout, &away)?;
    let missing = dry_run()?;
    ensure!(missing.errors.contains("does not have the container's image"), "{missing:?}");
    write_image(&layout, &["CMD true", "/bin/true"])?;
    let differs = dry_run()?;
    ensure!(differs.errors.contains("image differs: "), "{differs:?}");
    fs::remove_dir_all(&layout)?;
    fs::rename(&away, &layout)?;
    dry_run()?.success()?;
    ensure!(lab.move_to("c", "h2")?.outcome == Outcome::Moved);
    fs::remove_dir_all(&layout)?;
    ensure!(lab.move_to("c", "h1")?.outcome == Outcome::Moved);
    ensure!(lab.transhume(&["logs", "c"])?.lines == ["one more"]);
    let kept = lab.transhume(&["exec", "c", "--", "cat", "/kept"])?.success()?;
    ensure!(kept.lines == ["one"], "{kept:?}");
    let devices = ["/bin/env", "-i", "/bin/ibv_devices"];
    let found = lab.transhume(&[&["exec", "c", "--"], &devices[..]].concat())?.success()?;
    ensure!(found.lines.concat().contains("transhume0"), "{found:?}");
    let gone = lab.transhume(&["run", "--image", &source])?;
    ensure!(gone.errors.contains("is not an OCI image layout"), "{gone:?}");
    Ok(())
}

/// An image in this machine's podman, which goes with this.
struct OfPodman(String);

impl Drop for OfPodman {
    fn drop(&mut self) {
        if let Err(error) = Command::new("podman").args(["rmi", "--force", &self.0]).output() {
            eprintln!("the image {} is left over: {error}", self.0);
        }
    }
}

#[test]
fn an_image_of_podman_runs_and_moves() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    // Podman calls it after its path, and wants that in lower case.
    let folder = tempfile::Builder::new()
        .prefix("transhume-")
        .rand_bytes(0)
        .suffix(&process::id().to_string())
        .tempdir_in(common_files::PARENT)?;
    let layout = folder.path().join("layout");
    write_image(&layout, SHELL)?;
    let mut load = Command::new("podman");
    load.args(["load", "--quiet", "--input"]).arg(&layout);
    let loaded = program::run(&mut load, LIMIT)?.success()?.lines.concat();
    let of_podman = OfPodman(loaded.rsplit(' ').next().unwrap_or_default().to_owned());
    let name = format!("podman:{}", of_podman.0);
    let run = ["run", "--name", "c", "--host", "h1", "--detach", "--without-rdma", "--image", &name];
    lab.transhume(&run)?.success()?;
    ensure!(lab.move_to("c", "h2")?.outcome == Outcome::Moved);
    let kept = lab.transhume(&["exec", "c", "--", "cat", "/kept"])?.success()?;
    ensure!(kept.lines == ["one"], "{kept:?}");
    drop(of_podman);
    let gone = lab.transhume(&["run", "--image", &name])?;
    ensure!(gone.errors.contains("podman cannot provide the image"), "{gone:?}");
    Ok(())
}
