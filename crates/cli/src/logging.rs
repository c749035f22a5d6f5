//! Logging of the daemons.

use clap::Args;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

/// Options of the log.
#[derive(Args)]
pub struct Logging {
    /// Log levels: a level, and others for single modules, such as `info,node=trace`
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
