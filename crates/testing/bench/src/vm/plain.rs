//! The peer: two plain QEMUs, and a script that migrates the machine by QMP.
//!
//! It does what the manual of QEMU describes: the destination waits with `-incoming`, the source sends over TCP, and the destination runs
//! when it has everything.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use e2e::common_files;
use e2e::guest::counted;
use engine_vm::qmp::Qmp;
use lab::Lab;
use lab::layout;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Times;
use super::traced::Traced;

/// How long QEMU may take for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// How often the script looks for something that no event tells.
const LOOK: Duration = Duration::from_millis(1);

const PORT: u16 = 4444;

/// A machine that plain QEMU runs on a host of a lab.
pub struct Plain<'a> {
    lab: &'a Lab,
    traced: &'a Traced,
    line: Vec<String>,
    running: Qemu,
}

impl<'a> Plain<'a> {
    /// Boots a guest on h1 with the command line of another QEMU.
    ///
    /// # Errors
    /// If it does not boot.
    pub fn boot(lab: &'a Lab, traced: &'a Traced, line: &[String]) -> Result<Self> {
        let line = line.iter().filter(|word| *word != "-S").map(|word| unplugged(word)).collect::<Vec<_>>();
        let running = Qemu::start(lab, traced, "h1", &line, &[])?;
        let end = Instant::now() + LIMIT;
        while counted(&running.console()?)? < 3 {
            ensure!(Instant::now() < end, "the guest of plain QEMU does not boot: {:?}", running.console()?);
            thread::sleep(Duration::from_millis(100));
        }
        Ok(Self { lab, traced, line, running })
    }

    /// Stops its processors until the next migration.
    ///
    /// # Errors
    /// If QEMU refuses.
    pub fn stop(&mut self) -> Result<()> {
        self.running.qmp.execute("stop", json!({}))?;
        Ok(())
    }

    /// Lets its processors run for a while, and migrates it to `host`.
    ///
    /// # Errors
    /// If it does not arrive.
    pub fn migrate(&mut self, host: &str) -> Result<Times> {
        self.running.qmp.execute("cont", json!({}))?;
        thread::sleep(Duration::from_millis(300));
        let (begin, began) = (SystemTime::now(), Instant::now());
        let mut destination = Qemu::start(self.lab, self.traced, host, &self.line, &["-incoming", "defer"])?;
        let uri = format!("tcp:{}:{PORT}", layout::address(host.parse()?));
        let source = &mut self.running.qmp;
        for qmp in [&mut *source, &mut destination.qmp] {
            let events = json!({ "capability": "events", "state": true });
            qmp.execute("migrate-set-capabilities", json!({ "capabilities": [events] }))?;
        }
        destination.qmp.execute("migrate-incoming", json!({ "uri": uri }))?;
        // As a move does with this release: see ADR 0046.
        let downtime = if source.major_version() < 9 { 0 } else { 300 };
        source.execute(
            "migrate-set-parameters",
            json!({ "max-bandwidth": 1_u64 << 40, "downtime-limit": downtime }),
        )?;
        source.execute("migrate", json!({ "uri": uri }))?;
        await_event(source, |name, data| match (name, data["status"].as_str()) {
            ("MIGRATION", Some("failed")) => Err(anyhow::anyhow!("the migration has failed")),
            ("MIGRATION", Some("completed")) => Ok(true),
            _ => Ok(false),
        })?;
        await_event(&mut destination.qmp, |name, _| Ok(name == "RESUME"))?;
        let source = std::mem::replace(&mut self.running, destination);
        source.quit()?;
        let total = began.elapsed();
        Ok(Times { pause: self.traced.pause_since(begin)?.length, total })
    }
}

/// Plain QEMU has no TAP: its NIC leads nowhere.
fn unplugged(word: &str) -> String {
    if word.starts_with("tap,") { "hubport,id=net0,hubid=0".into() } else { word.into() }
}

fn await_event(qmp: &mut Qmp, mut is_it: impl FnMut(&str, &Value) -> Result<bool>) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if let Some(event) = qmp.next_event(Duration::from_millis(100))?
            && is_it(&event.name, &event.data)?
        {
            return Ok(());
        }
    }
    bail!("QEMU does not end the migration");
}

/// A QEMU with a folder of its own for its sockets and its console.
struct Qemu {
    process: Child,
    qmp: Qmp,
    folder: TempDir,
}

impl Qemu {
    fn start(lab: &Lab, traced: &Traced, host: &str, line: &[String], more: &[&str]) -> Result<Self> {
        let folder = common_files::folder()?;
        let mut command = lab.command(host.parse()?, "sh")?;
        // The folder of the host's own files is entered last.
        command
            .args(["-c", "cd \"$0\" && exec \"$@\""])
            .arg(folder.path())
            .arg(traced.program())
            .args(line)
            .args(more);
        command
            .stdin(Stdio::null())
            .stdout(File::create(folder.path().join("console"))?)
            .stderr(Stdio::inherit());
        let mut process = command.spawn()?;
        match connect(folder.path()) {
            Ok(qmp) => Ok(Self { process, qmp, folder }),
            Err(error) => {
                process.kill()?;
                process.wait()?;
                Err(error)
            }
        }
    }

    fn console(&self) -> Result<Vec<String>> {
        let console = fs::read(self.folder.path().join("console"))?;
        Ok(String::from_utf8_lossy(&console).lines().map(str::to_owned).collect())
    }

    fn quit(mut self) -> Result<()> {
        self.qmp.execute("quit", json!({}))?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The socket has the name that the engine gives it.
fn connect(folder: &Path) -> Result<Qmp> {
    let path = folder.join(format!("{}.qmp", super::ours::NAME));
    let end = Instant::now() + LIMIT;
    loop {
        match Qmp::connect(&path) {
            Ok(qmp) => return Ok(qmp),
            Err(error) if Instant::now() > end => return Err(error.into()),
            Err(_) => thread::sleep(LOOK),
        }
    }
}
