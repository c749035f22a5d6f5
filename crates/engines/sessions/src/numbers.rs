//! Parses numbers in init's arguments.

use std::ffi::OsStr;
use std::io;

/// Parses a list with commas, which may be empty.
pub fn numbers(list: &OsStr) -> io::Result<Vec<u32>> {
    let list = list.to_str().unwrap_or("?").split(',').filter(|number| !number.is_empty());
    list.map(|text| number(OsStr::new(text))).collect()
}

/// Parses one number.
pub fn number(text: &OsStr) -> io::Result<u32> {
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("transhume init: {} is not a number", text.display())))
}
