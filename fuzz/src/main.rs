//! A target, named by `FUZZ_TARGET`, under libFuzzer; arguments are libFuzzer's. Its seeds are put into `FUZZ_SEEDS` first,
//! if that names a directory. `scripts/fuzz.sh` starts it.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static CHOSEN: OnceLock<&Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        fuzz::target(&name).unwrap_or_else(|| {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            panic!("FUZZ_TARGET must be one of: {}", names.join(" "));
        })
    })
}

fn write_seeds() {
    let Some(directory) = std::env::var_os("FUZZ_SEEDS").map(PathBuf::from) else { return };
    for (number, seed) in (chosen().seeds)().iter().enumerate() {
        fs::write(directory.join(format!("seed-{number}")), seed).expect("FUZZ_SEEDS is a directory");
    }
}

fuzz_target!(init: write_seeds(), |bytes: &[u8]| chosen().run(bytes));
