//! Processors that do not sleep, as on hosts that are set up for low latency (tuned's profile `network-latency`).

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};

use anyhow::{Context as _, Result};

/// The kernel's own limit: how long a processor without work may take until it runs again.
const PATH: &str = "/dev/cpu_dma_latency";

/// As long as this is there, processors wait for work awake.
pub struct Awake(#[expect(dead_code, reason = "the kernel forgets the wish when it is closed")] File);

impl Awake {
    /// Keeps them awake.
    ///
    /// # Errors
    /// If the kernel does not offer that, or not to this user.
    pub fn keep() -> Result<Self> {
        Self::at_most_0_microseconds().with_context(|| format!("{PATH}: cannot keep the processors awake"))
    }

    fn at_most_0_microseconds() -> io::Result<Self> {
        let mut wish = OpenOptions::new().write(true).open(PATH)?;
        wish.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self(wish))
    }
}
