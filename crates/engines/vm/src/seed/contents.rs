//! The files of a seed disk.

use std::fs;
use std::path::{Path, PathBuf};

use engine_api::{Error, Result};
use instance::seed::Seed;
use instance::{InstanceSpec, Network};

use super::SeedFile;

/// The tools, as they lie in the folder of the host's own libraries.
const TOOLS: [&str; 3] = ["transhume-guest", "libibverbs.so.1", "librdmacm.so.1"];

/// User data that does nothing: cloud-init reads the other files only beside such a file.
const NO_USER_DATA: &str = "#cloud-config\n{}\n";

/// The files for a machine; `tools` is the folder with the tools.
///
/// # Errors
/// If a tool is missing.
pub fn files(spec: &InstanceSpec, seed: &Seed, tools: Option<&Path>) -> Result<Vec<SeedFile>> {
    let text = |name, text: &str| SeedFile { name, bytes: text.as_bytes().to_vec() };
    let mut files = vec![
        text("user-data", seed.user_data.as_deref().unwrap_or(NO_USER_DATA)),
        text("meta-data", &meta_data(spec)),
        text("network-config", &network_config(&spec.network)),
    ];
    if seed.tools {
        // A script of its own: a list of commands would be replaced by the user's.
        files.push(text("vendor-data", include_str!("vendor-data.sh")));
        files.push(text("install.sh", include_str!("install.sh")));
        for name in TOOLS {
            files.push(SeedFile { name, bytes: read(tools, name)? });
        }
    }
    Ok(files)
}

fn read(tools: Option<&Path>, name: &str) -> Result<Vec<u8>> {
    let path = tools.map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
    fs::read(&path).map_err(|error| {
        let what =
            format!("the tools for guests are incomplete: {} cannot be read ({error})", path.display());
        Error::unusable(what, "build them with `make build`, or run the machine without `--tools`")
    })
}

/// cloud-init sets a guest up anew when this identity changes, which no move does.
fn meta_data(spec: &InstanceSpec) -> String {
    let mac = spec.network.mac.map(|byte| format!("{byte:02x}")).concat();
    let name = &spec.name;
    format!("instance-id: transhume-{name}-{mac}\nlocal-hostname: {name}\n")
}

fn network_config(network: &Network) -> String {
    let Network { mac, address, prefix, mtu } = network;
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    format!(
        "version: 2\n\
         ethernets:\n  \
           transhume0:\n    \
             match:\n      \
               macaddress: \"{mac}\"\n    \
             addresses: [\"{address}/{prefix}\"]\n    \
             mtu: {mtu}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::tests::spec;

    fn found(files: &[SeedFile], name: &str) -> String {
        let file = files.iter().find(|file| file.name == name).unwrap();
        String::from_utf8(file.bytes.clone()).unwrap()
    }

    #[test]
    fn cloud_init_gets_the_users_data_and_the_instances_network() {
        let seed = Seed { tools: false, user_data: Some("#!/bin/sh\n".into()) };
        let files = files(&spec(), &seed, None).unwrap();
        assert_eq!(found(&files, "user-data"), "#!/bin/sh\n");
        assert_eq!(
            found(&files, "meta-data"),
            "instance-id: transhume-guest-0200000000a1\nlocal-hostname: guest\n"
        );
        assert_eq!(
            found(&files, "network-config"),
            "version: 2\nethernets:\n  transhume0:\n    match:\n      macaddress: \"02:00:00:00:00:a1\"\n    \
             addresses: [\"10.77.1.1/16\"]\n    mtu: 1450\n"
        );
        assert_eq!(files.len(), 3);
    }

    #[test]
    fn tools_come_with_a_script_that_cloud_init_runs() {
        let folder = tempfile::tempdir().unwrap();
        let seed = Seed { tools: true, user_data: None };
        let refusal = files(&spec(), &seed, Some(folder.path())).err().unwrap().to_string();
        assert!(refusal.contains("transhume-guest cannot be read") && refusal.contains("`make build`"));
        TOOLS.iter().for_each(|name| fs::write(folder.path().join(name), *name).unwrap());
        let files = files(&spec(), &seed, Some(folder.path())).unwrap();
        assert_eq!(found(&files, "user-data"), NO_USER_DATA);
        assert!(found(&files, "vendor-data").contains("install.sh"));
        let script = found(&files, "install.sh");
        assert!(TOOLS.iter().all(|name| found(&files, name) == *name && script.contains(name)));
    }
}
