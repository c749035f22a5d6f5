//! Parts of images as they are read: none is longer than allowed, and each is what its digest says.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ring::digest::{Context, SHA256};

use instance::Digest;

use crate::digest;

/// What `reader` gives, up to so many bytes.
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

/// Opens a regular file. Nobody waits for what may come out of another one, as a FIFO.
///
/// # Errors
/// If it is none, or cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    match fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// An index, a manifest or a configuration.
///
/// # Errors
/// If it is no regular file, cannot be read, or has more than 4 MiB.
pub fn description(path: &Path) -> io::Result<Vec<u8>> {
    read_within(open(path)?, MAX_DESCRIPTION)
}

/// What was compressed by gzip, by zstd or not at all, as its first bytes say.
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

/// Measures what is read through it.
pub struct Measured<R> {
    inner: R,
    context: Context,
    left: u64,
}

impl<R: Read> Measured<R> {
    /// Lets so many bytes through.
    pub fn new(inner: R, most: u64) -> Self {
        Self { inner, context: Context::new(&SHA256), left: most }
    }

    /// The digest of all that there is, read to its end, and how many bytes more it might have had.
    ///
    /// # Errors
    /// As those of reading.
    pub fn finish(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((digest::finished(&self.context.finish()), self.left))
    }
}

impl<R: Read> Read for Measured<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::StorageFull, "it unpacks to more than there is room for")
        })?;
        self.context.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_than_allowed_is_not_read_on() {
        let endless = || io::repeat(7);
        assert!(read_within(endless(), 4096).unwrap_err().to_string().contains("longer than 4 KiB"));
        let (digest, left) = Measured::new(&b"abc"[..], 5).finish().unwrap();
        assert_eq!((digest, left), (digest::of(b"abc"), 2));
        let refused = Measured::new(endless(), 1 << 20).finish().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    }
}
