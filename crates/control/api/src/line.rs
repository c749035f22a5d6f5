use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest line, in bytes with its end.
pub const MAX_LINE: usize = 1024 * 1024;

/// A line that is not a message of this protocol.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Longer than [`MAX_LINE`].
    #[error("a line has {0} bytes; the limit is {MAX_LINE}")]
    TooLong(usize),
    /// Not JSON, or an unknown request or event.
    #[error("malformed")]
    Malformed(#[from] serde_json::Error),
}

/// The line for `message`, with its end.
///
/// # Errors
/// If the line would be longer than [`MAX_LINE`].
pub fn to_line<M: Serialize>(message: &M) -> Result<String, LineError> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    if line.len() > MAX_LINE { Err(LineError::TooLong(line.len())) } else { Ok(line) }
}

/// The message in `line`, with or without its end.
///
/// # Errors
/// If the line is too long or malformed.
pub fn from_line<M: DeserializeOwned>(line: &str) -> Result<M, LineError> {
    if line.len() > MAX_LINE {
        return Err(LineError::TooLong(line.len()));
    }
    Ok(serde_json::from_str(line)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Failure, MoveRequest, Request};

    #[test]
    fn requests_are_single_json_lines() {
        let request = Request::Move(MoveRequest {
            name: "a".into(),
            host: "h2".into(),
            dry_run: false,
            force: false,
            post_copy: false,
            within_s: None,
        });
        let line = to_line(&request).unwrap();
        assert_eq!(
            line,
            "{\"move\":{\"name\":\"a\",\"host\":\"h2\",\"dry_run\":false,\"force\":false,\"post_copy\":false}}\n"
        );
        assert_eq!(from_line::<Request>(&line).unwrap(), request);
    }

    #[test]
    fn text_with_line_ends_stays_on_one_line() {
        let event = Event::Failed(Failure::new("a\nb", ""));
        let line = to_line(&event).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(from_line::<Event>(&line).unwrap(), event);
    }

    #[test]
    fn noise_and_long_lines_are_refused() {
        assert!(from_line::<Request>("{}").is_err());
        assert!(from_line::<Request>(&" ".repeat(MAX_LINE + 1)).is_err());
    }
}
