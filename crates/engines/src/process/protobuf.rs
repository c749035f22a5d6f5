//! Protobuf by hand: a dozen fields are not worth a compiler.

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

/// What a field holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// Of any type of number that takes as many bytes as it needs.
    Number(u64),
    /// Bytes, a text or a message.
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers, in their order; `None` if it is malformed.
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
