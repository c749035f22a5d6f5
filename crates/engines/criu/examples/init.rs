//! The instance's first process, for the tests of this crate.

use std::ffi::OsString;
use std::process::exit;

fn main() {
    let command: Vec<OsString> = std::env::args_os().skip(1).collect();
    match engine_criu::init::run(&command) {
        Ok(code) => exit(code),
        Err(error) => {
            eprintln!("init: {error}");
            exit(125);
        }
    }
}
