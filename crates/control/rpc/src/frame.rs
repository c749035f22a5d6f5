//! Frames: a length of four bytes, little-endian, followed by that many bytes. A message is a frame in postcard encoding.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest frame, in bytes.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

/// Writes `bytes` as one frame. Does not flush.
///
/// # Errors
/// `InvalidInput` past [`MAX_FRAME`]; otherwise the stream's.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= MAX_FRAME);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    stream.write_all(&length.to_le_bytes()).await?;
    stream.write_all(bytes).await
}

/// Reads one frame into `buffer`; returns `false` if the stream ends before it.
///
/// # Errors
/// `UnexpectedEof` if the stream ends within the frame; `InvalidData` past [`MAX_FRAME`]; otherwise the stream's.
pub async fn read(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> io::Result<bool> {
    read_within(stream, buffer, MAX_FRAME).await
}

/// Like [`read()`], with a limit of `most` bytes per frame.
async fn read_within(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    most: usize,
) -> io::Result<bool> {
    let mut length = [0; 4];
    if stream.read(&mut length[..1]).await? == 0 {
        return Ok(false);
    }
    read_exact(stream, &mut length[1..]).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    buffer.resize(length, 0);
    read_exact(stream, buffer).await?;
    Ok(true)
}

async fn read_exact(stream: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> io::Result<()> {
    let read = stream.read_exact(buffer).await.map(drop);
    read.map_err(|error| if error.kind() == io::ErrorKind::UnexpectedEof { cut() } else { error })
}

/// Writes `message` as one frame and flushes.
///
/// # Errors
/// As [`write()`].
pub async fn send<M: Serialize>(stream: &mut (impl AsyncWrite + Unpin), message: &M) -> io::Result<()> {
    write(stream, &encode(message)?).await?;
    stream.flush().await
}

/// Reads the message in the next frame.
///
/// # Errors
/// `UnexpectedEof` if the stream has ended; `InvalidData` if the frame is malformed.
pub async fn receive<M: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<M> {
    receive_within(stream, MAX_FRAME).await
}

/// Like [`receive()`], with a limit of `most` bytes, for unauthenticated peers.
///
/// # Errors
/// As [`receive()`]; `InvalidData` if the frame is longer.
pub async fn receive_within<M: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> io::Result<M> {
    let mut buffer = Vec::new();
    if !read_within(stream, &mut buffer, most).await? {
        return Err(cut());
    }
    decode(&buffer)
}

/// The error for a stream that ends too early.
pub(crate) fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was cut")
}

/// Encodes `message`.
///
/// # Errors
/// `InvalidInput` if it cannot be encoded.
pub fn encode<M: Serialize>(message: &M) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Decodes the message in `bytes`.
///
/// # Errors
/// `InvalidData` if they are not exactly one message.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> io::Result<M> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_arrives_as_it_was_sent() {
        let (mut near, mut far) = tokio::io::duplex(64);
        send(&mut near, &("a", 7)).await.unwrap();
        assert_eq!(receive::<(String, i32)>(&mut far).await.unwrap(), ("a".into(), 7));
        drop(near);
        assert!(!read(&mut far, &mut Vec::new()).await.unwrap());
    }

    #[tokio::test]
    async fn early_end_of_stream_is_unexpected_eof() {
        for sent in [&[][..], &[9], &[9, 0, 0, 0, 1]] {
            let (mut near, mut far) = tokio::io::duplex(64);
            near.write_all(sent).await.unwrap();
            drop(near);
            let error = receive::<(String, i32)>(&mut far).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (io::ErrorKind::UnexpectedEof, "the connection was cut")
            );
        }
    }

    #[tokio::test]
    async fn rejects_too_long_frames_before_reading_them() {
        let (mut near, mut far) = tokio::io::duplex(64);
        near.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        let error = read(&mut far, &mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        send(&mut near, &[7_u8; 10]).await.unwrap();
        send(&mut near, &[7_u8; 11]).await.unwrap();
        assert_eq!(receive_within::<[u8; 10]>(&mut far, 10).await.unwrap(), [7; 10]);
        let error = receive_within::<[u8; 11]>(&mut far, 10).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
