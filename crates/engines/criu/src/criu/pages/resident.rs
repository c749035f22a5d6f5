//! Reads the memory of running processes as a dump would find it now.
//!
//! The result is an estimate of the dump, since memory changes while it is read. The dump is authoritative, and sends the pages
//! that are missing or outdated here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::criu::pages::archives::FileSystem;
use crate::linux::task;
use crate::memory::{MemorySink, Owner, PAGE};

mod scan;

/// The number of bytes that are read at once.
const PART: u64 = 1 << 20;

/// The name of memory that the RDMA device shares with neighbours; when they release it, the process owns it again.
const BORROWED: &str = "/memfd:transhume-pages";

/// Gives `sink` the memory of all processes below `root`, and the contents of these file systems, until `goes_on` returns false;
/// returns `false` then.
pub fn show(
    root: i32,
    file_systems: &[FileSystem],
    sink: &dyn MemorySink,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<bool> {
    sink.begin()?;
    let tree = task::tree(root)?;
    let mut bytes = file_systems.iter().map(FileSystem::bytes).sum();
    each_run(&tree, &mut |run| {
        bytes += run.end - run.start;
        Ok(goes_on())
    })?;
    sink.expect(bytes);
    let mut part = vec![0; PART as usize];
    if !each_run(&tree, &mut |run| run.show(sink, goes_on, &mut part))? {
        return Ok(false);
    }
    for file_system in file_systems {
        if !file_system.show(sink, goes_on)? {
            return Ok(false);
        }
    }
    sink.end()?;
    Ok(true)
}

/// Consecutive present pages.
struct Run<'a> {
    memory: &'a File,
    mapping: &'a Mapping,
    start: u64,
    end: u64,
}

/// A range of a process's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    owner: Owner,
    /// The owner's address of `start`.
    address: u64,
    kind: Kind,
}

/// The pages of a mapping that a dump contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Pages that differ from a file's.
    Private,
    /// All pages.
    Shared,
}

/// Visits the dumped pages of all processes of `tree`, until `visit` returns false.
fn each_run(tree: &[i32], visit: &mut dyn FnMut(Run<'_>) -> io::Result<bool>) -> io::Result<bool> {
    for pid in tree {
        match each_run_of(*pid, visit) {
            // A process that has ended has no memory.
            Err(error) if task::has_ended(&error) => {}
            Ok(true) => {}
            other => return other,
        }
    }
    Ok(true)
}

fn each_run_of(pid: i32, visit: &mut dyn FnMut(Run<'_>) -> io::Result<bool>) -> io::Result<bool> {
    let number = task::number_inside(pid)?;
    let number = u32::try_from(number).map_err(|_| io::ErrorKind::InvalidData)?;
    let maps = task::read(&format!("/proc/{pid}/maps"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let pages = File::open(format!("/proc/{pid}/pagemap"))?;
    for mapping in maps.lines().filter_map(|line| mapping(line, Owner::Process(number))) {
        for (start, end) in scan::present(&pages, mapping.start, mapping.end, mapping.kind)? {
            if !visit(Run { memory: &memory, mapping: &mapping, start, end })? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

impl Run<'_> {
    /// Gives it to `sink`, through the buffer `part`, until `goes_on` returns false; returns `false` then.
    fn show(&self, sink: &dyn MemorySink, goes_on: &dyn Fn() -> bool, part: &mut [u8]) -> io::Result<bool> {
        let Self { memory, mapping, mut start, end } = *self;
        while start < end {
            if !goes_on() {
                return Ok(false);
            }
            let part = &mut part[..(end - start).min(PART) as usize];
            // Memory that was unmapped meanwhile cannot be read.
            let read = memory.read_at(part, start).unwrap_or(0) / PAGE * PAGE;
            if read > 0 {
                let address = mapping.address + (start - mapping.start);
                sink.take(mapping.owner, address, &part[..read])?;
            }
            start += read.max(PAGE) as u64;
        }
        Ok(true)
    }
}

/// The mapping in a line of `/proc/PID/maps`, if a dump contains its pages.
fn mapping(line: &str, process: Owner) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let (rights, offset, _device) = (fields.next()?, number(fields.next()?)?, fields.next()?);
    let inode: u64 = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or_default().trim_start();
    let is_private = rights.ends_with('p') && !path.starts_with("[v") && !path.starts_with("/anon_hugepage");
    let is_memory = path.starts_with("/memfd:") || path == "/dev/zero (deleted)";
    match rights.ends_with('s') {
        false if is_private => {
            Some(Mapping { start, end, owner: process, address: start, kind: Kind::Private })
        }
        true if path.starts_with(BORROWED) => {
            Some(Mapping { start, end, owner: process, address: start, kind: Kind::Shared })
        }
        true if is_memory => {
            Some(Mapping { start, end, owner: Owner::Shared(inode), address: offset, kind: Kind::Shared })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
