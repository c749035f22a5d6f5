//! The seed disk of a virtual machine: a read-only disk with tools for the guest and data for cloud-init.

use serde::{Deserialize, Serialize};

use crate::blocker::Blocker;

/// The most bytes of a user's data for cloud-init.
pub const MAX_USER_DATA: usize = 64 << 10;

/// How data of cloud-init begins: its formats that have no binary form.
const BEGINNINGS: [&str; 7] = [
    "#cloud-config",
    "#!",
    "MIME-Version:",
    "Content-Type:",
    "## template: jinja",
    "#include",
    "#cloud-boothook",
];

/// What a machine's seed disk offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// The agent and the libraries, with a script that installs them.
    pub tools: bool,
    /// The user's data for cloud-init.
    pub user_data: Option<String>,
}

impl Seed {
    /// Checks the user's data.
    ///
    /// # Errors
    /// If cloud-init would ignore it, or it is too long.
    pub fn validate(&self) -> Result<(), Blocker> {
        let Some(data) = &self.user_data else { return Ok(()) };
        if data.len() > MAX_USER_DATA {
            let what = format!("the file for cloud-init has more than {} KiB", MAX_USER_DATA >> 10);
            return Err(Blocker::new(what, "let it fetch the rest from a server (`#include`)"));
        }
        if !BEGINNINGS.iter().any(|beginning| data.starts_with(beginning)) {
            let what =
                "the file for cloud-init begins with neither `#cloud-config` nor `#!` nor a MIME header";
            return Err(Blocker::new(what, "pass user data as cloud-init documents it"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_that_cloud_init_reads_is_accepted() {
        let checked = |data: &str| Seed { tools: false, user_data: Some(data.into()) }.validate();
        assert!(checked("#cloud-config\n{}").is_ok() && checked("#!/bin/sh\n").is_ok());
        assert!(checked("MIME-Version: 1.0\n").is_ok());
        assert!(checked("packages: [x]").unwrap_err().what.contains("neither `#cloud-config`"));
        let long = "#".to_owned() + &"!".repeat(MAX_USER_DATA);
        assert!(checked(&long).unwrap_err().what.ends_with("more than 64 KiB"));
        assert!(Seed { tools: true, user_data: None }.validate().is_ok());
    }
}
