//! A node that restores an instance, holds it and is killed then, for the tests of this crate.

use std::path::PathBuf;

use engine_criu::{Config, ContainerConfig, ProcessEngine, Watch};
use instance::InstanceName;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("criu, state, images, bridge, instance, runtime, containers");
    let config = Config {
        criu: PathBuf::from(next()),
        state: PathBuf::from(next()),
        images: vec![PathBuf::from(next())],
        bridge: next(),
        overlay: None,
        init: vec![std::env::current_exe().expect("this program").with_file_name("init").into()],
        containers: None,
    };
    let name = InstanceName::new(&next()).expect("an instance's name");
    let (runtime, folder) = (next(), PathBuf::from(next()));
    let containers = Some(ContainerConfig {
        runtime: Some(runtime.into()),
        unpacked: folder.with_extension("unpacked"),
        folder,
        libraries: None,
        hosts: None,
        devices: None,
    });
    let config = Config { containers, ..config };
    let engine = ProcessEngine::new(config).expect("an engine");
    engine.recover().expect("what is prepared here");
    engine.restore(&name, &Watch::QUIET).expect("an instance that can be restored");
    println!("held");
    std::thread::sleep(std::time::Duration::from_secs(60));
}
