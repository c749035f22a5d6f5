//! The wrapper for `tar` that CRIU runs for tmpfs mounts.
//!
//! CRIU compresses archives, which takes much longer than sending them, while the instance is stopped. So a wrapper for `tar` comes
//! first in CRIU's `$PATH`. It does not compress, and keeps nanosecond times, extended attributes and ACLs: with an ACL, the mode alone
//! would give the group too many rights. It unpacks both compressed and plain archives. If the wrapper cannot run, for example in a
//! directory mounted `noexec`, CRIU uses the next `tar` in `$PATH`.

use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Passes each argument except the compression to the next `tar` in the path, with `$attributes`, and with `$exact` to make an
/// archive. A `*` in these is for `tar`. `tar` recognizes a compressed archive in a file, but not in a pipe. Names are bytes,
/// whatever the host's locale is.
const TAR: &str = r#"
set -f
for word; do
    shift
    case $word in
        --gzip) ;;
        --create) set -- "$@" "$word" $exact $attributes ;;
        --extract) set -- "$@" "$word" $attributes --file=/proc/self/fd/0 ;;
        *) set -- "$@" "$word" ;;
    esac
done
PATH=${PATH#*:}
export LC_ALL=C
exec tar "$@"
"#;

/// Lets GNU tar keep times to the nanosecond, and omit everything that differs when the same files are packed again: PIDs in the
/// names of headers, and access times.
const EXACT: &str =
    "--format=posix --sparse-version=0.0 --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime";

/// Lets GNU tar keep extended attributes, including capabilities, and ACLs.
pub const ATTRIBUTES: [&str; 3] = ["--xattrs", "--xattrs-include=*", "--acls"];

/// Writes this `tar` into `directory`, and returns a `$PATH` with the directory at its beginning.
pub fn provide(directory: &Path) -> io::Result<OsString> {
    private::directory(directory)?;
    let (tar, next) = (directory.join("tar"), directory.join("tar.next"));
    let (exact, attributes) = if is_gnu() { (EXACT, ATTRIBUTES.join(" ")) } else { Default::default() };
    fs::write(&next, format!("#!/bin/sh\nexact='{exact}'\nattributes='{attributes}'\n{TAR}"))?;
    fs::set_permissions(&next, Permissions::from_mode(0o700))?;
    fs::rename(next, tar)?;
    let others = env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(PathBuf::from(directory)).chain(env::split_paths(&others));
    env::join_paths(all).map_err(io::Error::other)
}

/// Whether the system's `tar` is GNU tar.
fn is_gnu() -> bool {
    let said = Command::new("tar").arg("--version").stdin(Stdio::null()).output();
    said.is_ok_and(|said| said.stdout.starts_with(b"tar (GNU tar)"))
}
