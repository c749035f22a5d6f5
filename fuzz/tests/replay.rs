//! All inputs of all targets, and mutations of them: the same ones each time.

use std::fs::File;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flate2::read::GzDecoder;
use fuzz::mutation::Mutator;
use fuzz::{TARGETS, Target};
use tar::Archive;

/// The target's seeds and its corpus, in the order of the archive.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let archive =
        File::open(target.corpus()).expect("`scripts/fuzz.sh merge` writes the archive of a new target");
    let mut archive = Archive::new(GzDecoder::new(archive));
    let corpus = archive.entries().unwrap().map(|entry| {
        let mut bytes = Vec::new();
        entry.unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    });
    (target.seeds)().into_iter().chain(corpus).collect()
}

/// Runs `bytes`, and says which they were if that is a finding.
fn run(target: &Target, bytes: &[u8]) {
    if let Err(finding) = catch_unwind(AssertUnwindSafe(|| target.run(bytes))) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("{}: echo {hex} | xxd -r -p > input; FUZZ_TARGET={0} fuzz input", target.name);
        std::panic::resume_unwind(finding);
    }
}

fn replay(name: &str) {
    let target = fuzz::target(name).unwrap();
    let inputs = inputs(target);
    assert!(!inputs.is_empty(), "{name} has seeds");
    for bytes in &inputs {
        run(target, bytes);
    }
    let mut mutator = Mutator::new(name.len() as u64);
    for _ in 0..target.rounds {
        run(target, &mutator.mutate(&inputs));
    }
}

macro_rules! targets {
    ($($test:ident $name:literal,)*) => {
        $(#[test] fn $test() { replay($name); })*

        #[test]
        fn every_target_is_replayed() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

targets! {
    frame "frame",
    attach "attach",
    rpc "rpc",
    record "record",
    api "api",
    token "token",
    criu "criu",
    procfs "procfs",
    manager "manager",
    socket "socket",
    directory "directory",
    split "split",
    merge "merge",
    content "content",
    switch "switch",
    lane "lane",
    handed_over "handed-over",
    guest_port "guest-port",
    trains "trains",
    ring "ring",
    stream_link "stream-link",
    ring_link "ring-link",
}
