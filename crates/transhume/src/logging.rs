//! What daemons log.

use clap::Args;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

/// What a daemon is told about its log.
#[derive(Args)]
pub struct Logging {
    /// Which messages to log: a level, and others for parts of the program, as `info,node=trace`
    #[arg(long = "log", value_name = "LEVELS", env = "TRANSHUME_LOG", default_value = "info")]
    levels: Targets,
}

impl Logging {
    /// Logs to standard error from now on.
    pub fn begin(&self) {
        let others = self.levels.default_level().unwrap_or(LevelFilter::INFO);
        let levels = self.levels.clone().with_default(others);
        let lines = fmt::layer().with_ansi(false).with_writer(std::io::stderr).with_filter(levels);
        tracing_subscriber::registry().with(lines).init();
    }
}
