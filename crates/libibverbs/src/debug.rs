//! Messages to whoever set `TRANSHUME_DEBUG=1`.

use std::env;

/// Writes one line to standard error if the environment asks for it.
pub(crate) fn say(message: impl FnOnce() -> String) {
    if env::var_os("TRANSHUME_DEBUG").is_some_and(|value| value == "1") {
        eprintln!("transhume: {}", message());
    }
}
