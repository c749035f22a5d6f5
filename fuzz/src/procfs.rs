//! Text and files that instances may shape: `/proc`'s reports of their processes, and ELF files that they map.

use crate::input::Input;

/// Reads `bytes` as each of these.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.coin() {
        engine_criu::foreign::elf_notes(input.rest());
    } else if let Ok(text) = std::str::from_utf8(input.rest()) {
        engine_criu::foreign::text(text);
    }
}

/// Files as they are.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 5] = [
        b"7 (a) R 1) S 3 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 0",
        b"7f00-7f10 r-xp 00000000 fe:00 123                        /opt/my lib.so\n7f20-7f30 rw-p 00000000 00:00 0\n",
        b"pos:\t0\nflags:\t0100002\nAPI:\taa:80001800:1ffff\n",
        b"Name:\ta\nTgid:\t12\nSigPnd:\t0000000000000010\nRssAnon:\t 12 kB\nTracerPid:\t0\nUid:\t0 0 0 0\n",
        b"Version: v4.2-12-gabcdef\nGitID: x",
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| [b"\0", *text].concat()).collect();
    let note = b"\x01\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0\x01\xff\0\0";
    seeds.push(note.to_vec());
    seeds
}
