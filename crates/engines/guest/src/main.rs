//! `transhume-guest`: the agent in a virtual machine.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, io};

use fabric::attach::{CONTAINER_FOLDER, SOCKET_NAME};
use fabric::{device_file, seqpacket};
use guest::agent::serve;
use guest::port::Port;

const HELP: &str = "Connects the programs of this virtual machine to the node of its host, and runs the commands of `transhume exec`

Usage: transhume-guest [PORT]

PORT is the device of a virtio-serial port; by default the one that `transhume run --vm` gives the machine.
The agent runs until it is killed. Programs that use RDMA find it by themselves.

Examples:
  transhume-guest &
  transhume-guest /dev/vport0p1";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let given = match &arguments[..] {
        [] => None,
        [word] if !word.starts_with('-') => Some(PathBuf::from(word)),
        [word] if word == "--help" || word == "-h" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    let Err(error) = run(given);
    eprintln!("transhume-guest: {error}");
    ExitCode::FAILURE
}

fn run(given: Option<PathBuf>) -> io::Result<Infallible> {
    let device = given.map_or_else(Port::device, Ok)?;
    let opened = Port::open(&device);
    let port =
        opened.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", device.display())))?;
    if let Err(error) = device_file::make() {
        eprintln!(
            "transhume-guest: programs that search /dev/infiniband will not find the RDMA device: {error}"
        );
    }
    // Programs wait for their node where this folder is.
    fs::create_dir_all(CONTAINER_FOLDER)?;
    let listener = seqpacket::listen(SOCKET_NAME)?;
    serve(port, listener)?;
    Err(io::Error::other("the port is closed"))
}
