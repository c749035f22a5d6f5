//! What daemons log.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Which messages are logged, as in `debug` or `info,node=trace`.
const VARIABLE: &str = "TRANSHUME_LOG";

/// Logs to standard error from now on.
pub fn to_stderr() {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var(VARIABLE)
        .from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
}
