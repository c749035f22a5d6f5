//! Reads parts of images, with limits on their length, and verifies their digests.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ring::digest::{Context, SHA256};

use instance::Digest;

use crate::digest;

/// Reads all of `reader`, up to `most` bytes.
///
/// # Errors
/// If there is more, or the reader fails.
pub fn read_within(reader: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is longer than {} KiB", most >> 10)));
    }
    Ok(bytes)
}

/// The longest index, manifest or configuration that is read, in bytes.
const MAX_DESCRIPTION: u64 = 4 << 20;

/// Opens a regular file. Opening another type, such as a FIFO, could block.
///
/// # Errors
/// If it is not a regular file, or cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    match fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Reads an index, a manifest or a configuration.
///
/// # Errors
/// If it is not a regular file, cannot be read, or has more than 4 MiB.
pub fn description(path: &Path) -> io::Result<Vec<u8>> {
    read_within(open(path)?, MAX_DESCRIPTION)
}

/// A reader that decompresses gzip or zstd, recognized by the first bytes, or reads a file that is not compressed.
///
/// # Errors
/// If it cannot be read.
pub fn decompressed(file: File) -> io::Result<Box<dyn Read>> {
    const GZIP: &[u8] = &[0x1f, 0x8b];
    const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    const BUFFER: usize = 128 << 10;
    let mut start = Vec::new();
    (&file).take(ZSTD.len() as u64).read_to_end(&mut start)?;
    let is_gzip = start.starts_with(GZIP);
    let is_zstd = start.starts_with(ZSTD);
    let whole = BufReader::with_capacity(BUFFER, io::Cursor::new(start).chain(file));
    if is_gzip {
        return Ok(Box::new(MultiGzDecoder::new(whole)));
    }
    if is_zstd {
        return Ok(Box::new(zstd::Decoder::with_buffer(whole)?));
    }
    Ok(Box::new(whole))
}

/// A reader that counts and digests the bytes read through it.
pub struct Measured<R> {
    inner: R,
    context: Context,
    left: u64,
}

impl<R: Read> Measured<R> {
    /// A reader of at most `most` bytes.
    pub fn new(inner: R, most: u64) -> Self {
        Self { inner, context: Context::new(&SHA256), left: most }
    }

    /// Reads to the end, and returns the digest and the remaining number of bytes.
    ///
    /// # Errors
    /// Those of reading.
    pub fn finish(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((digest::finished(&self.context.finish()), self.left))
    }
}

impl<R: Read> Read for Measured<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::StorageFull, "it unpacks to more bytes than the limit")
        })?;
        self.context.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_stops_at_the_limit() {
        let endless = || io::repeat(7);
        assert!(read_within(endless(), 4096).unwrap_err().to_string().contains("longer than 4 KiB"));
        let (digest, left) = Measured::new(&b"abc"[..], 5).finish().unwrap();
        assert_eq!((digest, left), (digest::of(b"abc"), 2));
        let refused = Measured::new(endless(), 1 << 20).finish().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    }
}
