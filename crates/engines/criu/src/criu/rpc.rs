//! CRIU's RPC messages, as far as this engine uses them: `images/rpc.proto` of CRIU.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::criu::protobuf::{Field, Message, fields};
use instance::container::Bind;

/// Field numbers of `criu_opts`.
mod opts {
    pub const IMAGES_DIR_FD: u64 = 1;
    pub const PID: u64 = 2;
    pub const TCP_ESTABLISHED: u64 = 5;
    pub const FILE_LOCKS: u64 = 8;
    pub const LOG_LEVEL: u64 = 9;
    pub const LOG_FILE: u64 = 10;
    pub const PAGE_SERVER: u64 = 11;
    pub const NOTIFY_SCRIPTS: u64 = 12;
    pub const ROOT: u64 = 13;
    pub const EXT_MNT: u64 = 23;
    pub const MANAGE_CGROUPS: u64 = 24;
    pub const RST_SIBLING: u64 = 26;
    pub const LAZY_PAGES: u64 = 48;
    pub const MANAGE_CGROUPS_MODE: u64 = 34;
    pub const GHOST_LIMIT: u64 = 35;
    pub const NETWORK_LOCK: u64 = 64;
    pub const IMAGES_DIR: u64 = 68;
    pub const LEAVE_STOPPED: u64 = 69;
}

/// `criu_network_lock_method`: the link is cut already.
const NETWORK_LOCK_SKIP: u64 = 3;
/// `criu_cg_mode`: processes stay in the cgroup in which CRIU runs.
const CGROUPS_IGNORE: u64 = 0;
/// Errors and warnings. A higher level would write more in the blackout.
const LOG_WARNINGS: u64 = 2;
/// The size limit of deleted files that travel with the images, in bytes.
pub const GHOST_LIMIT: u64 = 64 << 20;

/// The file systems of a container that CRIU does not make.
#[derive(Clone, Copy, Debug)]
pub struct FileSystems<'a> {
    /// The mount point of its root.
    pub root: &'a Path,
    /// The bind mounts of the host in it.
    pub binds: &'a [Bind],
}

/// A request to CRIU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Dump the tree below this process and leave it stopped.
    Dump { pid: i32 },
    /// Restore a tree, with its root as a child of this process; if `lazily`, without memory that is not among the images.
    Restore { lazily: bool },
}

impl Request {
    /// CRIU's word for the request, and the log's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Dump { .. } => "dump",
            Self::Restore { .. } => "restore",
        }
    }

    fn code(self) -> u64 {
        match self {
            Self::Dump { .. } => 1,
            Self::Restore { .. } => 2,
        }
    }

    /// The packet of the request. A tree without file systems of its own shares the host's. CRIU sends dumped pages to its socket
    /// with the descriptor `pages`.
    pub fn encode(self, images: &str, own: Option<FileSystems<'_>>, pages: Option<RawFd>) -> Vec<u8> {
        let mut options = Message::default();
        options.number(opts::IMAGES_DIR_FD, u64::MAX);
        options.bytes(opts::IMAGES_DIR, images.as_bytes());
        options.number(opts::TCP_ESTABLISHED, 1);
        options.number(opts::FILE_LOCKS, 1);
        options.number(opts::LOG_LEVEL, LOG_WARNINGS);
        options.bytes(opts::LOG_FILE, format!("{}.log", self.word()).as_bytes());
        options.number(opts::NOTIFY_SCRIPTS, 1);
        options.number(opts::NETWORK_LOCK, NETWORK_LOCK_SKIP);
        options.number(opts::MANAGE_CGROUPS, 1);
        options.number(opts::MANAGE_CGROUPS_MODE, CGROUPS_IGNORE);
        match self {
            Self::Dump { pid } => {
                options.number(opts::PID, u64::from(pid.unsigned_abs()));
                options.number(opts::LEAVE_STOPPED, 1);
                options.number(opts::GHOST_LIMIT, GHOST_LIMIT);
            }
            Self::Restore { lazily } => {
                options.number(opts::RST_SIBLING, 1);
                options.number(opts::LAZY_PAGES, u64::from(lazily));
            }
        }
        if let Some(descriptor) = pages {
            let mut server = Message::default();
            server.number(4, u64::from(descriptor.unsigned_abs()));
            options.bytes(opts::PAGE_SERVER, &server.0);
        }
        if let Some(FileSystems { root, binds }) = own {
            options.bytes(opts::ROOT, root.as_os_str().as_bytes());
            for bind in binds {
                options.bytes(opts::EXT_MNT, &self.external(bind).0);
            }
        }
        let mut request = Message::default();
        request.number(1, self.code());
        request.bytes(2, &options.0);
        request.0
    }
}

impl Request {
    /// An `ext_mount_map`. A dump maps the mount point to a name in the images, a restore maps the name to the source. The name is
    /// the mount point.
    fn external(self, bind: &Bind) -> Message {
        let name = bind.destination.as_os_str().as_bytes();
        let mut map = Message::default();
        map.bytes(1, name);
        if matches!(self, Self::Restore { .. }) {
            // Unlike the runtime, CRIU does not follow a symbolic link there.
            let source = fs::canonicalize(&bind.source).unwrap_or_else(|_| bind.source.clone());
            map.bytes(2, source.as_os_str().as_bytes());
        } else {
            map.bytes(2, name);
        }
        map
    }
}

/// The packet that answers a hook: `go` lets CRIU continue.
pub fn encode_answer(go: bool) -> Vec<u8> {
    const NOTIFY: u64 = 6;
    let mut request = Message::default();
    request.number(1, NOTIFY);
    request.number(3, u64::from(go));
    request.0
}

/// A message of CRIU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// It waits at a hook.
    Hook {
        /// The hook's name.
        name: String,
        /// The root of the tree, if the hook reports it.
        pid: Option<i32>,
    },
    /// It is done.
    Done {
        /// Whether the request succeeded.
        success: bool,
    },
}

/// The message in `packet`; `None` if it is malformed.
pub fn decode(packet: &[u8]) -> Option<Response> {
    let message = parse(packet)?;
    let Some(Field::Bytes(hook)) = message.get(&5) else {
        return Some(Response::Done { success: message.get(&2) == Some(&Field::Number(1)) });
    };
    let hook = parse(hook)?;
    let Field::Bytes(name) = hook.get(&1)? else { return None };
    let pid = match hook.get(&2) {
        Some(Field::Number(pid)) => Some(i32::try_from(*pid).ok()?),
        _ => None,
    };
    Some(Response::Hook { name: String::from_utf8(name.to_vec()).ok()?, pid })
}

/// The fields of a message by number; for a repeated field, the last one.
fn parse(message: &[u8]) -> Option<BTreeMap<u64, Field<'_>>> {
    Some(fields(message)?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_parsed_as_criu_writes_it() {
        let packet = b"\x08\x06\x10\x01\x2a\x10\x0a\x0bpost-restor\x10\xdb\x63";
        let hook = Response::Hook { name: "post-restor".into(), pid: Some(12763) };
        assert_eq!(decode(packet), Some(hook));
    }

    #[test]
    fn a_failure_is_parsed_as_criu_writes_it() {
        let packet = b"\x08\x02\x10\x00\x22\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x38\x38";
        assert_eq!(decode(packet), Some(Response::Done { success: false }));
    }

    #[test]
    fn truncated_messages_are_refused() {
        assert_eq!(decode(b"\x2a\x10\x0a"), None);
        assert_eq!(decode(b"\x08\xff"), None);
        assert_eq!(decode(&[0xff; 12]), None);
    }

    #[test]
    fn a_request_carries_its_options() {
        let packet = Request::Dump { pid: 300 }.encode("/images", None, Some(9));
        let fields = parse(&packet).unwrap();
        let Field::Bytes(options) = fields[&2] else { panic!("no options") };
        let options = parse(options).unwrap();
        assert_eq!(options[&opts::PID], Field::Number(300));
        assert_eq!(options[&opts::IMAGES_DIR], Field::Bytes(b"/images"));
        assert_eq!(options[&opts::LEAVE_STOPPED], Field::Number(1));
        assert_eq!(options[&opts::PAGE_SERVER], Field::Bytes(&[4 << 3, 9]));
    }
}
