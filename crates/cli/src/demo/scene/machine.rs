//! The scene with a virtual machine: it travels, with servers of all programs and a disk under verification. A container
//! is its peer.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use lab::Place;
use lab::network::namespace_file;
use probe::{Prober, Requester};

use super::{CHECK_PORT, PATIENCE, Stage, beside, quoted, socket_address};
use crate::demo::plan::{HOME, HOME_HOST, START_HOST, TRAVELLER};
use crate::demo::traffic::End;
use crate::demo::view::View;
use crate::failure::{Failure, Result};
use crate::library;

/// What the guest runs, as its image's `/etc/transhume/start`.
const START: &str = include_str!("guest.sh");

/// The disk of the machine, on each host its own. Its base is the image's disk.
const DISK: &str = "/var/lib/transhume/disks/demo.qcow2";

/// The library that verbs-check loads in the guest.
const LIBRARY: &str = "libibverbs.so.1";

/// When the container has this file, its programs end.
const STOP: &str = "/stop";

/// Starts both instances, and returns when traffic flows.
pub fn start(stage: &Stage, image: &Path, view: &View) -> Result<(Prober, Requester)> {
    let initrd = make_initrd(stage.lab.layout().root(), image)?;
    let base = image.join("disk.img");
    let mut disk = stage.lab.command(START_HOST.parse()?, "qemu-img")?;
    ran(disk.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(&base).arg(DISK))?;

    view.say(&format!(
        "booting `{TRAVELLER}` on {START_HOST}: a virtual machine with iperf3, fio and verbs-check"
    ));
    let kernel = image.join("vmlinux");
    let boot = ["--kernel", text(&kernel)?, "--initrd", text(&initrd)?, "--append", "quiet"];
    let size = ["--memory", "512M", "--cpus", "2", "--disk", DISK];
    stage.transhume(
        &[&["run", "--vm", "--name", TRAVELLER, "--host", START_HOST, "--detach"], &boot[..], &size].concat(),
    )?;
    stage.follow(TRAVELLER, End::Traveller)?;
    let boots = Instant::now() + 4 * PATIENCE;
    stage.traffic.wait_for("the servers", boots, |known| known.check_listens)?;

    view.say(&format!("starting `{HOME}` on {HOME_HOST}: a container with the clients"));
    let address = stage.address(TRAVELLER)?;
    let run =
        ["run", "--name", HOME, "--host", HOME_HOST, "--rootfs", "/", "--detach", "--", "/bin/sh", "-c"];
    stage.transhume(&[&run[..], &[&home_script(&address)?]].concat())?;
    stage.follow(HOME, End::Home)?;
    stage.await_traffic(Instant::now() + 2 * PATIENCE)?;
    let outside = namespace_file(&stage.lab.layout().namespace(Place::Coordinator));
    let echo = socket_address(&address)?;
    Ok((Prober::start(&outside, echo)?, Requester::start(&outside, echo)?))
}

/// Ends the programs. Each of them says then whether it has lost anything.
pub fn stop(stage: &Stage) -> Result<()> {
    stage.transhume(&["exec", HOME, "--", "touch", STOP])?;
    let deadline = Instant::now() + 2 * PATIENCE;
    stage.traffic.wait_for("the results of iperf3, fio and verbs-check", deadline, |known| {
        known.verdicts.len() == 2 && known.stream_was_stopped && known.disk_was_verified
    })
}

fn home_script(address: &str) -> Result<String> {
    let check = quoted(&beside("verbs-check")?);
    Ok(format!(
        "iperf3 --client {address} --bitrate 40M --time 86400 --format M --forceflush & stream=$!
        {check} client {address}:{CHECK_PORT} --qps 8 --depth 4 --max-size 4096 --events --json --report-interval 0.25 &
        check=$!
        while [ ! -e {STOP} ]; do sleep 0.2; done
        kill -TERM $stream; wait $stream
        kill -TERM $check; wait $check
        sleep 1000"
    ))
}

/// The image's initial RAM disk, with the files that it copies to the guest's disk.
fn make_initrd(folder: &Path, image: &Path) -> Result<PathBuf> {
    let tree = folder.join("guest");
    let (tools, start) = (tree.join("extra/opt/transhume"), tree.join("extra/etc/transhume"));
    fs::create_dir_all(&tools)?;
    fs::create_dir_all(&start)?;
    for program in ["transhume-guest", "probe-answer", "verbs-check"] {
        fs::copy(beside(program)?, tools.join(program))?;
    }
    fs::copy(library::folder()?.join(LIBRARY), tools.join(LIBRARY))?;
    for file in needed_libraries(&tools)? {
        fs::copy(&file, tools.join(file.file_name().unwrap_or_default()))?;
    }
    let start = start.join("start");
    fs::write(&start, START)?;
    ran(Command::new("chmod").arg("755").arg(&start))?;

    let initrd = folder.join("initrd");
    fs::copy(image.join("initrd"), &initrd)?;
    let mut whole = File::options().append(true).open(&initrd)?;
    // Archives follow each other at multiples of four bytes.
    let padding = whole.metadata()?.len().next_multiple_of(4) - whole.metadata()?.len();
    whole.write_all(&vec![0; usize::try_from(padding).unwrap_or(0)])?;
    let mut archive = Command::new("sh");
    archive.args(["-c", "find extra | cpio --quiet -o -H newc"]).current_dir(&tree).stdout(whole);
    let ended = archive.status()?;
    fs::remove_dir_all(&tree)?;
    if ended.success() {
        Ok(initrd)
    } else {
        Err(Failure::new("cpio failed", "run `scripts/setup.sh guest`"))
    }
}

/// The dynamic linker and the libraries of the programs in `folder`.
fn needed_libraries(folder: &Path) -> Result<Vec<PathBuf>> {
    let programs = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let listed = Command::new("ldd").args(programs).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    // Lines such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and one with a colon for each program.
    let is_library = |word: &&str| word.starts_with('/') && word.contains(".so") && !word.ends_with(':');
    let mut files: Vec<PathBuf> = listed.split_whitespace().filter(is_library).map(PathBuf::from).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

fn ran(command: &mut Command) -> Result<()> {
    let ended = command.stdin(Stdio::null()).output();
    let program = command.get_program().to_string_lossy().into_owned();
    let remedy = "run `scripts/setup.sh guest`";
    match ended {
        Ok(ended) if ended.status.success() => Ok(()),
        Ok(ended) => {
            let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
            Err(Failure::new(format!("{program} failed: {said}"), remedy))
        }
        Err(error) => Err(Failure::new(format!("cannot run {program}: {error}"), remedy)),
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Failure::new(format!("the path {} is not UTF-8", path.display()), "choose another folder")
    })
}
