//! The capabilities of init in a container, and of the commands that it starts.
//!
//! Init changes users and forwards signals, whatever the container's configuration permits. The runtime lends it the capabilities
//! that it lacks for this: they are in the bounding set; init removes them from there at once, and keeps them for itself. Commands
//! of root get their capabilities from the bounding set when they are executed. Commands of other users get the ambient
//! capabilities, as if the runtime had started them.

use std::ffi::{OsStr, OsString};
use std::io;

use crate::numbers::numbers;

/// The capabilities that init needs unless all commands run as root. The last one serves to remove lent capabilities.
pub const NEEDED: [(&str, u32); 4] =
    [("CAP_KILL", 5), ("CAP_SETGID", 6), ("CAP_SETUID", 7), ("CAP_SETPCAP", 8)];

/// The prefix of the list of lent capabilities, in the first argument.
const LENT: &str = "lent=";

/// The limit of capability numbers: the kernel's sets have no more bits.
const MOST: u32 = 64;

/// The argument that tells init which capabilities were lent to it, if any.
pub fn lent(capabilities: &[u32]) -> Option<String> {
    let numbers: Vec<_> = capabilities.iter().map(u32::to_string).collect();
    (!numbers.is_empty()).then(|| format!("{LENT}{}", numbers.join(",")))
}

/// Removes the lent capabilities, which the first of `arguments` lists, from the calling thread's bounding set. Returns the other
/// arguments.
pub fn give_back(arguments: &[OsString]) -> io::Result<&[OsString]> {
    let said = arguments.split_first().and_then(|(first, rest)| Some((first.to_str()?, rest)));
    let Some((lent, rest)) = said.and_then(|(first, rest)| Some((first.strip_prefix(LENT)?, rest))) else {
        return Ok(arguments);
    };
    for capability in numbers(OsStr::new(lent))? {
        if prctl(libc::PR_CAPBSET_DROP, capability.into(), NOTHING) == -1 {
            let error = io::Error::last_os_error();
            return Err(io::Error::other(format!(
                "transhume init: cannot give back capability {capability}, which the runtime lent to it: {error}"
            )));
        }
    }
    Ok(rest)
}

/// `struct __user_cap_header_struct`
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::pid_t,
}

/// The value that the kernel requires for unused arguments.
const NOTHING: libc::c_ulong = 0;

/// `_LINUX_CAPABILITY_VERSION_3`, for the calling thread.
const HEADER: Header = Header { version: 0x2008_0522, pid: 0 };

/// `struct __user_cap_data_struct`: a half of each set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The capabilities of commands whose user is not root.
#[derive(Clone, Copy, Default)]
pub struct Ambient {
    set: u64,
    /// All sets of a process that has only the ambient capabilities, and inherits the inheritable ones.
    halves: [Half; 2],
}

impl Ambient {
    /// The ambient capabilities of the calling thread.
    pub fn own() -> io::Result<Self> {
        let set = (0..MOST).filter(|&number| is_ambient(number)).fold(0, |set, number| set | 1 << number);
        let mut halves = own_sets()?;
        for (half, bits) in halves.iter_mut().zip([set as u32, (set >> u32::BITS) as u32]) {
            (half.effective, half.permitted) = (bits, bits);
        }
        Ok(Self { set, halves })
    }

    /// Makes `user` the user of the calling thread, with only these capabilities, also after it executes another program. Root
    /// keeps all. Like setuid, it makes system calls only, and returns -1 if one has failed.
    pub fn set_user(&self, user: libc::uid_t) -> libc::c_int {
        let keeps = user != 0 && self.set != 0;
        if keeps && prctl(libc::PR_SET_KEEPCAPS, 1, NOTHING) == -1 {
            return -1;
        }
        // SAFETY: no memory is passed.
        let changed = unsafe { libc::setuid(user) } != -1;
        if changed && (!keeps || self.take()) { 0 } else { -1 }
    }

    /// The change of the user has kept the permitted and the inheritable set, and cleared the others.
    fn take(&self) -> bool {
        let mut ambient = (0..MOST).filter(|number| self.set >> number & 1 == 1);
        set_own(&self.halves) != -1 && ambient.all(raise)
    }
}

fn own_sets() -> io::Result<[Half; 2]> {
    let (header, mut halves) = (HEADER, [Half::default(); 2]);
    // SAFETY: the kernel reads the header, and writes two halves, as many as this version has.
    match unsafe { libc::syscall(libc::SYS_capget, &raw const header, halves.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(halves),
    }
}

fn set_own(halves: &[Half; 2]) -> libc::c_long {
    let header = HEADER;
    // SAFETY: the kernel reads the header and two halves, as many as this version has.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, halves.as_ptr()) }
}

fn is_ambient(number: u32) -> bool {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_IS_SET as libc::c_ulong, number.into()) == 1
}

fn raise(number: u32) -> bool {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, number.into()) != -1
}

/// Makes a `prctl` call whose arguments are numbers.
fn prctl(call: libc::c_int, one: libc::c_ulong, other: libc::c_ulong) -> libc::c_int {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(call, one, other, NOTHING, NOTHING) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::process::Stdio;
    use std::thread;

    use super::*;
    use crate::launch::{Company, Launch};

    const CHOWN: u32 = 0;
    const SETUID: u32 = 7;
    const NET_BIND_SERVICE: u32 = 10;

    /// The capabilities in `/proc` of a command that was launched with these arguments, if init was lent one capability, has
    /// another one ambient, and inherits that and a third.
    fn sets(words: &'static str) -> HashMap<String, u64> {
        let init = move || {
            let mut own = own_sets().unwrap();
            own[0].inheritable = bits(&[CHOWN, NET_BIND_SERVICE]) as u32;
            assert!(set_own(&own) != -1 && raise(NET_BIND_SERVICE));
            let words = words.split(' ').chain(["grep", "Cap", "/proc/self/status"]).map(OsString::from);
            let arguments: Vec<_> = lent(&[SETUID]).into_iter().map(OsString::from).chain(words).collect();
            let launch = Launch::parse(give_back(&arguments).unwrap()).unwrap();
            let streams = [Stdio::null(), Stdio::piped(), Stdio::null()];
            launch.spawn(std::env::vars_os(), streams, Company::Own).unwrap()
        };
        // Each thread has capabilities of its own.
        let command = thread::spawn(init).join().unwrap();
        let said = String::from_utf8(command.wait_with_output().unwrap().stdout).unwrap();
        let sets = said.lines().map(|line| line.split_once(":\t").unwrap());
        sets.map(|(name, bits)| (name.to_owned(), u64::from_str_radix(bits, 16).unwrap())).collect()
    }

    fn bits(capabilities: &[u32]) -> u64 {
        capabilities.iter().map(|number| 1 << number).sum()
    }

    #[test]
    fn a_user_in_a_container_has_the_ambient_capabilities() {
        let sets = sets("container 65534 65534  /");
        let ambient = bits(&[NET_BIND_SERVICE]);
        assert_eq!(["CapPrm", "CapEff", "CapAmb"].map(|name| sets[name]), [ambient; 3]);
        assert_eq!(sets["CapInh"], bits(&[CHOWN, NET_BIND_SERVICE]));
        assert_eq!(sets["CapBnd"] & bits(&[CHOWN, SETUID]), bits(&[CHOWN]));
    }

    #[test]
    fn commands_of_root_lack_the_lent_capabilities() {
        let sets = sets("container 0 0  /");
        let asked = bits(&[CHOWN, SETUID, NET_BIND_SERVICE]);
        let left = bits(&[CHOWN, NET_BIND_SERVICE]);
        assert_eq!(["CapPrm", "CapEff", "CapBnd"].map(|name| sets[name] & asked), [left; 3]);
    }

    /// Capabilities of the node do not reach the instance.
    #[test]
    fn a_command_outside_containers_has_no_capability_of_the_node() {
        let sets = sets("65534 65534  /");
        assert_eq!(["CapPrm", "CapEff", "CapAmb"].map(|name| sets[name]), [0; 3]);
    }

    #[test]
    fn the_first_argument_lists_the_lent_capabilities() {
        let words = ["0", "0", "", "/", "true"].map(OsString::from);
        assert_eq!((give_back(&words).unwrap(), lent(&[])), (&words[..], None));
        assert_eq!(lent(&[5, 7]).as_deref(), Some("lent=5,7"));
        assert!(give_back(&["lent=x".into()]).unwrap_err().to_string().contains("x is not a number"));
        // No kernel has capability 64.
        let refused = give_back(&["lent=64".into()]).unwrap_err().to_string();
        assert!(refused.contains("cannot give back capability 64"), "{refused}");
    }
}
