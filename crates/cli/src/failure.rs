//! Errors as the user sees them: the message on one line, the remedy on the next.

use std::error::Error;
use std::fmt;

use api::{ClientError, Event};

use crate::table::printable;

/// The result type of this crate.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The remedy when the connection to the coordinator is lost during a request.
const LOST: &str = "see the coordinator's log; the request may or may not have been executed: when the coordinator is back, check with `transhume ps` and \
                    `transhume net devices`";

/// Why a command failed, with the remedy.
#[derive(Debug)]
pub struct Failure {
    why: api::Failure,
    code: u8,
    json: bool,
}

impl Failure {
    /// A failure with its remedy, which may be empty.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { why: api::Failure::new(message, remedy), code: 1, json: false }
    }

    /// The same failure with another exit code.
    #[must_use]
    pub fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The same failure, printed as a JSON line in the coordinator's format, [`api::Event::Failed`].
    #[must_use]
    pub fn in_json(mut self) -> Self {
        self.json = true;
        self
    }

    /// The exit code of the process.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Whether the failure mentions `name`.
    pub fn names(&self, name: &str) -> bool {
        self.why.message.contains(&format!("`{name}`"))
    }

    /// The same failure with another remedy before the others.
    #[must_use]
    pub fn with_remedy(mut self, remedy: &str) -> Self {
        let others = std::mem::take(&mut self.why.remedy);
        self.why.remedy = if others.is_empty() { remedy.to_owned() } else { format!("{remedy} {others}") };
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.json {
            let line =
                serde_json::to_string(&api::Event::Failed(self.why.clone())).map_err(|_| fmt::Error)?;
            return f.write_str(&line);
        }
        write!(f, "transhume: {}", self.why.message)?;
        if self.why.remedy.is_empty() { Ok(()) } else { write!(f, "\n  {}", self.why.remedy) }
    }
}

/// Messages from elsewhere may contain names from users: control characters are escaped.
impl From<api::Failure> for Failure {
    fn from(why: api::Failure) -> Self {
        Self::new(printable(why.message), printable(why.remedy))
    }
}

impl From<lab::Error> for Failure {
    fn from(error: lab::Error) -> Self {
        Self::new(chain(&error), "")
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string(), "")
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let help = match error {
            ClientError::NotRunning(_) => {
                "start it with `transhume coordinator`, `transhume lab up` or \
                 `transhume lab start coordinator`, or select another with `--socket` or `--lab`; with `transhume net up`, the coordinator is on the first machine"
            }
            ClientError::NotAllowed(_) => "run this with sudo",
            ClientError::TooLong(_) => "use a shorter path with `--socket`",
            ClientError::Closed => LOST,
            ClientError::Io(_) if error.is_break() => LOST,
            ClientError::Request(_) => "shorten the command or its environment: `env -i PATH=\"$PATH\" …`",
            ClientError::Line(_) | ClientError::Io(_) => "",
        };
        Self::new(chain(&error), help)
    }
}

/// The failure for an answer that does not match the request.
pub fn unexpected(event: &Event) -> Failure {
    let text = serde_json::to_string(event).unwrap_or_default();
    Failure::new(
        format!("unexpected answer from the coordinator: {text}"),
        "use a coordinator of the same release",
    )
}

/// An error with its causes, on one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use super::*;

    #[test]
    fn a_coordinator_that_is_lost_in_a_request_has_one_remedy() {
        let shown = |error: ClientError| Failure::from(error).to_string();
        let help = |error| shown(error).lines().nth(1).map(str::trim).map(str::to_owned);
        let broken = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].map(io::Error::from);
        for error in [ClientError::Closed].into_iter().chain(broken.map(ClientError::Io)) {
            assert_eq!(help(error).as_deref(), Some(LOST));
        }
        assert_eq!(help(ClientError::Io(ErrorKind::WouldBlock.into())), None);
    }
}
