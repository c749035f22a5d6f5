//! The parsers of this engine for untrusted input, without file access: for the fuzz targets.

use crate::criu::check::{build_id_in, is_page_turner};
use crate::criu::log::reason_in;
use crate::criu::rpc;
use crate::linux::maps::range_and_path;
use crate::linux::task::Stat;

/// Parses a packet of CRIU.
pub fn criu_packet(packet: &[u8]) {
    let _ = rpc::decode(packet);
}

/// Parses `text` as files of `/proc`, and as a log of CRIU.
pub fn text(text: &str) {
    let _ = (Stat::parse(text), is_page_turner(text), reason_in(text));
    let _ = text.lines().filter_map(range_and_path).count();
}

/// Parses the notes of an ELF file.
pub fn elf_notes(notes: &[u8]) {
    let _ = build_id_in(notes);
}
