//! `transhume-guest`: the agent in a virtual machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use fabric::attach::{CONTAINER_FOLDER, SOCKET_NAME};
use fabric::seqpacket;
use guest::agent::serve;
use guest::port::Port;

const HELP: &str = "Connects the programs of this virtual machine to the node of its host

Usage: transhume-guest [PORT]

PORT is the device of a virtio-serial port; by default the one that `transhume run --vm` gives the machine.
The agent runs until it is killed. Programs that use RDMA find it by themselves.

Examples:
  transhume-guest &
  transhume-guest /dev/virtio-ports/org.transhume.guest.0";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let device = match &arguments[..] {
        [] => Port::device(),
        [word] if !word.starts_with('-') => PathBuf::from(word),
        [word] if word == "--help" || word == "-h" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    let Err(error) = run(&device);
    eprintln!("transhume-guest: {}: {error}", device.display());
    ExitCode::FAILURE
}

fn run(device: &Path) -> io::Result<std::convert::Infallible> {
    let port = Port::open(device)?;
    // Programs wait for their node where this folder is.
    fs::create_dir_all(CONTAINER_FOLDER)?;
    let listener = seqpacket::listen(SOCKET_NAME)?;
    serve(port, listener)?;
    Err(io::Error::other("the port is closed"))
}
