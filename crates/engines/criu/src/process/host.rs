//! The versions, features and free resources of this host.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;
use std::mem;
use std::path::Path;
use std::process::Command;

use crate::criu::check::verify::release;
use crate::error::{Doing, Error, Result};
use crate::linux::cgroup;
use crate::report::Host;

/// The first CRIU that dumps TCP sockets on new kernels, and the first such kernel.
const NEW_KERNELS: ((u32, u32), (u32, u32, u32)) = ((6, 16), (4, 2, 0));
/// The oldest CRIU whose RPC has the options that this engine uses.
const OLDEST: (u32, u32, u32) = (4, 1, 0);

/// Inspects this host, and lets CRIU check its kernel. The room is left at zero.
pub fn inspect(criu: &Path) -> Result<Host> {
    // SAFETY: no memory is passed.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Error::unusable("moving processes needs root", "run the node as root"));
    }
    let (kernel, architecture) = uname();
    let version = version_of(criu)?;
    let (new, least) = NEW_KERNELS;
    let needed = if release(&kernel) >= new { least } else { OLDEST };
    if version < needed {
        let (major, minor, _) = needed;
        return Err(Error::unusable(
            format!("{} is too old for kernel {kernel}", criu.display()),
            format!("install CRIU {major}.{minor} or newer with scripts/criu.sh"),
        ));
    }
    check(criu)?;
    let cpu_features = cpu_features()?;
    Ok(Host {
        kernel,
        criu: version,
        architecture,
        cpu_features,
        memory_available: 0,
        image_room: 0,
        layer_room: 0,
        containers: false,
        controllers: cgroup::controllers().doing(|| "finding the cgroup controllers".into())?,
    })
}

/// Available memory, in bytes.
pub fn memory_available() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").doing(|| "reading /proc/meminfo".into())?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kibibytes.unwrap_or(0) << 10)
}

fn version_of(criu: &Path) -> Result<(u32, u32, u32)> {
    let output = Command::new(criu).arg("--version").output();
    let output = output.map_err(|error| {
        let what = format!("CRIU at {} does not start ({error})", criu.display());
        Error::unusable(what, "install it with scripts/criu.sh")
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse_version(&text).ok_or_else(|| {
        let what = format!("the output of {} --version is not recognized", criu.display());
        Error::unusable(what, "install CRIU with scripts/criu.sh")
    })
}

/// `Version: 4.2.1` or `Version: v4.2-12-gabcdef`
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let version = text.lines().find_map(|line| line.strip_prefix("Version:"))?.trim();
    let digits = version.trim_start_matches('v').split('-').next()?;
    let mut numbers = digits.split('.').map(|number| number.parse::<u32>());
    let major = numbers.next()?.ok()?;
    Some((major, numbers.next()?.ok()?, numbers.next().and_then(Result::ok).unwrap_or(0)))
}

fn check(criu: &Path) -> Result<()> {
    let output = Command::new(criu).arg("check").output().doing(|| "running criu check".into())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().find(|line| line.contains("Error")).unwrap_or("it gives no reason").trim();
    Err(Error::unusable(
        format!("CRIU does not work on this kernel (criu check: {why})"),
        "choose a host with another kernel",
    ))
}

fn uname() -> (String, String) {
    // SAFETY: all-zero is a valid utsname, and uname fills it with C strings.
    unsafe {
        let mut names: libc::utsname = mem::zeroed();
        libc::uname(&raw mut names);
        let text = |field: &[libc::c_char]| CStr::from_ptr(field.as_ptr()).to_string_lossy().into_owned();
        (text(&names.release), text(&names.machine))
    }
}

fn cpu_features() -> Result<Vec<String>> {
    let text = fs::read_to_string("/proc/cpuinfo").doing(|| "reading /proc/cpuinfo".into())?;
    let line = text.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let features: BTreeSet<&str> = line
        .and_then(|line| line.split_once(':'))
        .map(|(_, list)| list.split_whitespace().collect())
        .unwrap_or_default();
    Ok(features.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_criu_prints_them() {
        assert_eq!(parse_version("Version: 4.2.1\n"), Some((4, 2, 1)));
        assert_eq!(parse_version("Version: v4.2-12-gabcdef\nGitID: x"), Some((4, 2, 0)));
        assert_eq!(parse_version("criu: not found"), None);
        assert_eq!(release("6.18.44-fc"), (6, 18));
    }
}
