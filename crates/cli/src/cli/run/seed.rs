//! The options of `transhume run` for the seed disk of a virtual machine.

use std::fs;
use std::path::PathBuf;

use api::Seed;
use clap::Args;
use instance::seed::MAX_USER_DATA;

use crate::WRONG_USAGE;
use crate::failure::{Failure, Result};

/// Options of the seed disk.
#[derive(Args)]
pub struct SeedOptions {
    /// Adds a read-only disk with the guest's agent, the RDMA libraries, and `install.sh`, which installs them; cloud-init runs it by itself
    #[arg(long, requires = "vm")]
    tools: bool,
    /// Adds a read-only disk from which cloud-init configures the guest by this file, its user data
    #[arg(long, value_name = "FILE", requires = "vm")]
    cloud_init: Option<PathBuf>,
}

impl SeedOptions {
    /// The seed disk, if there is one.
    ///
    /// # Errors
    /// If the file for cloud-init cannot be used.
    pub fn seed(&self) -> Result<Option<Seed>> {
        if !self.tools && self.cloud_init.is_none() {
            return Ok(None);
        }
        let user_data = self.cloud_init.as_ref().map(read).transpose()?;
        let seed = instance::Seed { tools: self.tools, user_data };
        seed.validate().map_err(|why| Failure::new(why.what, why.remedy).with_code(WRONG_USAGE))?;
        Ok(Some(Seed { tools: seed.tools, user_data: seed.user_data }))
    }
}

fn read(path: &PathBuf) -> Result<String> {
    let wrong = |why: &str| {
        let what = format!("the file for cloud-init {} cannot be used: {why}", path.display());
        Failure::new(what, "pass a text file with user data (`--cloud-init`)").with_code(WRONG_USAGE)
    };
    let found = fs::metadata(path).map_err(|error| wrong(&error.to_string()))?;
    if !found.is_file() {
        return Err(wrong("it is no regular file"));
    }
    if found.len() > MAX_USER_DATA as u64 {
        return Err(wrong(&format!("it has more than {} KiB", MAX_USER_DATA >> 10)));
    }
    fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))
}
