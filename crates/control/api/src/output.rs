use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fabric::Vid;
use serde::{Deserialize, Serialize};

/// A client's position in the output of an instance's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The instance; it stays the same if another instance gets the name.
    pub vid: Vid,
    /// Number of pieces before the position.
    pub next: u64,
}

/// Bytes that a command has written: in JSON `"text"` if they are UTF-8, else `"base64"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Encoded", into = "Encoded")]
pub struct Bytes(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Encoded {
    Text(String),
    Base64(String),
}

impl From<Bytes> for Encoded {
    fn from(bytes: Bytes) -> Self {
        match String::from_utf8(bytes.0) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Base64(STANDARD.encode(error.as_bytes())),
        }
    }
}

impl TryFrom<Encoded> for Bytes {
    type Error = base64::DecodeError;

    fn try_from(encoded: Encoded) -> Result<Self, Self::Error> {
        match encoded {
            Encoded::Text(text) => Ok(Self(text.into_bytes())),
            Encoded::Base64(text) => STANDARD.decode(text).map(Self),
        }
    }
}

#[cfg(test)]
mod tests {
    use fabric::attach::OutputStream;

    use super::*;
    use crate::{Event, from_line, to_line};

    fn output(bytes: &[u8]) -> Event {
        let position = Position { vid: Vid::new(258).unwrap(), next: 3 };
        Event::Output { stream: OutputStream::Stdout, bytes: Bytes(bytes.into()), position }
    }

    #[test]
    fn encodes_utf8_as_text_and_other_bytes_as_base64() {
        let written = |bytes: &[u8]| to_line(&output(bytes)).unwrap();
        let position = r#""position":{"vid":258,"next":3}}}"#;
        let expected = format!("{{\"output\":{{\"stream\":\"Stdout\",\"text\":\"€\\n\",{position}\n");
        assert_eq!(written("€\n".as_bytes()), expected);
        let expected = format!("{{\"output\":{{\"stream\":\"Stdout\",\"base64\":\"/wA=\",{position}\n");
        assert_eq!(written(b"\xff\0"), expected);
    }

    #[test]
    fn every_byte_comes_through() {
        let all: Vec<u8> = (0..=255).chain([0xe2, 0x82]).collect();
        for bytes in [&all[..], b"", "a€\0".as_bytes()] {
            let event = output(bytes);
            assert_eq!(from_line::<Event>(&to_line(&event).unwrap()).unwrap(), event);
        }
    }

    #[test]
    fn rejects_malformed_base64() {
        let line = r#"{"output":{"stream":"Stdout","base64":"%","position":{"vid":1,"next":0}}}"#;
        assert!(from_line::<Event>(line).is_err());
    }
}
