//! A minimal protobuf parser and writer, for CRIU's images and messages. A dozen fields do not justify a protobuf compiler.

use std::io;
use std::path::Path;

/// An image begins with two magic numbers.
pub const MAGIC: usize = 8;

/// A protobuf message being written.
#[derive(Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    /// Appends a number.
    pub fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    /// Appends bytes, a text or a message.
    pub fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The value of a field.
#[derive(Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// A number of any type with variable length.
    Number(u64),
    /// Bytes, a text or a message.
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    /// The message that it contains; `None` if it is a number.
    pub fn message(self) -> Option<&'a [u8]> {
        match self {
            Field::Bytes(value) => Some(value),
            Field::Number(_) => None,
        }
    }
}

/// The fields of a message with their numbers, in order; `None` if it is malformed.
pub fn fields(mut rest: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = take_varint(&mut rest)?;
        let value = match key & 7 {
            0 => Field::Number(take_varint(&mut rest)?),
            2 => {
                let length = usize::try_from(take_varint(&mut rest)?).ok()?;
                let (value, after) = rest.split_at_checked(length)?;
                rest = after;
                Field::Bytes(value)
            }
            _ => return None,
        };
        fields.push((key >> 3, value));
    }
    Some(fields)
}

/// The number in a field; `None` if the field is missing, or the message is malformed.
pub fn number(message: &[u8], field: u64) -> Option<u64> {
    fields(message)?.into_iter().find_map(|(number, value)| match value {
        Field::Number(value) if number == field => Some(value),
        _ => None,
    })
}

/// The bytes in a field; `None` if the field is missing, or the message is malformed.
pub fn bytes(message: &[u8], field: u64) -> Option<&[u8]> {
    fields(message)?.into_iter().find_map(|(number, value)| match value {
        Field::Bytes(value) if number == field => Some(value),
        _ => None,
    })
}

/// The message with the bytes of a field changed.
pub fn with(message: &[u8], field: u64, change: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut changed = Message::default();
    for (number, value) in fields(message)? {
        match value {
            Field::Number(value) => changed.number(number, value),
            Field::Bytes(value) if number == field => changed.bytes(number, &change(value)?),
            Field::Bytes(value) => changed.bytes(number, value),
        }
    }
    Some(changed.0)
}

/// The message with the number in a field changed.
pub fn with_number(message: &[u8], field: u64, to: u64) -> Option<Vec<u8>> {
    let mut changed = Message::default();
    for (number, value) in fields(message)? {
        match value {
            Field::Number(_) if number == field => changed.number(number, to),
            Field::Number(value) => changed.number(number, value),
            Field::Bytes(value) => changed.bytes(number, value),
        }
    }
    Some(changed.0)
}

/// The first entry of an image.
pub fn first_entry(image: &[u8]) -> Option<&[u8]> {
    let (length, entry) = image.get(MAGIC..)?.split_first_chunk()?;
    entry.get(..u32::from_le_bytes(*length) as usize)
}

/// The entries of an image, each preceded by its length; `None` if it is malformed.
pub fn entries(image: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = image.get(MAGIC..)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk()?;
        let (entry, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        entries.push(entry);
        rest = after;
    }
    Some(entries)
}

/// The image with each of its entries changed. After the magic numbers, each entry is preceded by its length.
pub fn with_entries(image: &[u8], change: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut changed = image.get(..MAGIC)?.to_vec();
    for entry in entries(image)? {
        let entry = change(entry)?;
        changed.extend(u32::try_from(entry.len()).ok()?.to_le_bytes());
        changed.extend(entry);
    }
    Some(changed)
}

/// The error for an image that cannot be parsed.
pub fn not_understood(image: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} cannot be parsed", image.display()))
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
