//! All inputs of all targets, and mutations of them: the same ones each time.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fuzz::mutation::Mutator;
use fuzz::{TARGETS, Target};

/// The target's seeds and its corpus, in an order that does not change.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = fs::read_dir(target.corpus())
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    files.sort();
    let corpus = files.iter().map(|file| fs::read(file).unwrap());
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
    trains "trains",
    ring "ring",
    stream_link "stream-link",
    ring_link "ring-link",
}
