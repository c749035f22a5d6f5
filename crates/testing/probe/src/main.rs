//! Answers the packets and requests of the outside: `probe-answer PORT`. It has no other option, and is
//! small, so that it fits into a guest.

use std::env;
use std::process::ExitCode;
use std::thread;

fn main() -> ExitCode {
    let Some(port) = env::args().nth(1).and_then(|port| port.parse().ok()) else {
        eprintln!("usage: probe-answer PORT");
        return ExitCode::from(2);
    };
    thread::spawn(move || {
        if let Err(error) = probe::requests::serve(port) {
            eprintln!("probe-answer: no requests are answered: {error}");
        }
    });
    match probe::answer(port) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("probe-answer: no packets are answered: {error}");
            ExitCode::FAILURE
        }
    }
}
