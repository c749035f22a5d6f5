//! Images as they come to the destination.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use blake3::Hasher;
use broker::Carried;
use rpc::frame;
use rpc::wire::{ImageMessage, Manifest, Received, SentImage};
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::{MAX_EARLY, MAX_IMAGES, PART, is_plain, part_of};

/// Takes images from `stream` into `directory`, and returns what came beside them.
pub async fn receive(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    directory: &Path,
) -> io::Result<Carried> {
    let mut receiver = Receiver { directory, digest: Hasher::new(), part: Vec::new(), early: HashMap::new() };
    let Manifest { carried, images } = loop {
        match frame::receive(stream).await? {
            ImageMessage::Early { name } => receiver.take_early(stream, name).await?,
            ImageMessage::Rest(manifest) => break manifest,
        }
    };
    if images.len() > MAX_IMAGES || !images.iter().all(|sent| is_plain(&sent.image.name)) {
        return Err(unacceptable());
    }
    for sent in &images {
        receiver.take_rest(stream, sent).await?;
    }
    receiver.forget_void().await?;
    let digest = *receiver.digest.finalize().as_bytes();
    frame::send(stream, &Received::Whole { digest }).await?;
    Ok(carried)
}

struct Receiver<'a> {
    directory: &'a Path,
    digest: Hasher,
    part: Vec<u8>,
    /// Files of which a part has come, and how much, by name.
    early: HashMap<String, (File, u64)>,
}

impl Receiver<'_> {
    async fn take_early(&mut self, stream: &mut (impl AsyncRead + Unpin), name: String) -> io::Result<()> {
        if !is_plain(&name) || self.early.len() > MAX_EARLY {
            return Err(unacceptable());
        }
        if !frame::read(stream, &mut self.part).await? || self.part.len() > PART {
            return Err(ends_early());
        }
        if !self.early.contains_key(&name) {
            let file = self.begin(&name).await?;
            self.early.insert(name.clone(), (file, 0));
        }
        if let Some((file, length)) = self.early.get_mut(&name) {
            self.digest.update(&self.part);
            file.write_all(&self.part).await?;
            *length += self.part.len() as u64;
        }
        Ok(())
    }

    async fn take_rest(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        SentImage { image, early }: &SentImage,
    ) -> io::Result<()> {
        let mut file = match self.early.remove(&image.name) {
            Some((file, length)) if length == *early => file,
            // What came of it was another dump's.
            _ if *early == 0 => self.begin(&image.name).await?,
            _ => return Err(unacceptable()),
        };
        let mut left = image.size.checked_sub(*early).ok_or_else(unacceptable)?;
        while left > 0 {
            if !frame::read(stream, &mut self.part).await? || self.part.len() != part_of(left) {
                return Err(ends_early());
            }
            self.digest.update(&self.part);
            file.write_all(&self.part).await?;
            left -= self.part.len() as u64;
        }
        file.flush().await
    }

    /// Deletes what came of files that there are not.
    async fn forget_void(&mut self) -> io::Result<()> {
        for (name, _) in self.early.drain() {
            fs::remove_file(self.directory.join(name)).await?;
        }
        Ok(())
    }

    /// A new file in the place of one that may be there. What is on its way to that one must not come into this one.
    async fn begin(&self, name: &str) -> io::Result<File> {
        let path = self.directory.join(name);
        match fs::remove_file(&path).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        OpenOptions::new().write(true).create_new(true).open(path).await
    }
}

fn unacceptable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what the source says of its images is not acceptable")
}

fn ends_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "they end too early")
}

#[cfg(test)]
mod tests {
    use engines::Image;

    use super::*;

    /// What a source says: a part of a file before the rest, or the names and sizes of all, how much of each has come, and the
    /// frames behind them.
    enum Said<'a> {
        Early(&'a str, &'a [u8]),
        Rest(&'a [(&'a str, u64, u64)], &'a [&'a [u8]]),
    }

    /// What is in the directory after this, and the source's end.
    async fn received(said: &[Said<'_>]) -> io::Result<Vec<(String, Vec<u8>)>> {
        let directory = tempfile::tempdir().unwrap();
        let (mut near, mut far) = tokio::io::duplex(8 << 20);
        for said in said {
            match said {
                Said::Early(name, part) => {
                    frame::send(&mut near, &ImageMessage::Early { name: (*name).into() }).await.unwrap();
                    frame::write(&mut near, part).await.unwrap();
                }
                Said::Rest(images, frames) => {
                    let image = |(name, size, early): &(&str, u64, u64)| SentImage {
                        image: Image { name: (*name).into(), size: *size },
                        early: *early,
                    };
                    let images = images.iter().map(image).collect();
                    let manifest = Manifest { carried: Carried::default(), images };
                    frame::send(&mut near, &ImageMessage::Rest(manifest)).await.unwrap();
                    for bytes in *frames {
                        frame::write(&mut near, bytes).await.unwrap();
                    }
                }
            }
        }
        let (_answers, mut writer) = tokio::io::split(near);
        writer.shutdown().await.unwrap();
        receive(&mut far, directory.path()).await?;
        let entries = std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap);
        let mut found: Vec<(String, Vec<u8>)> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
            .collect();
        found.sort();
        Ok(found)
    }

    fn files(files: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
        files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
    }

    #[tokio::test]
    async fn what_came_early_is_gone_on_with_or_made_void() {
        use Said::{Early, Rest};
        let whole = [Rest(&[("a", 3, 0)], &[b"abc"])];
        assert_eq!(received(&whole).await.unwrap(), files(&[("a", b"abc")]));
        let in_parts = [
            Early("b", b"12"),
            Early("c", b"x"),
            Early("b", b"3"),
            Rest(&[("a", 1, 0), ("b", 4, 3)], &[b"a", b"4"]),
        ];
        assert_eq!(received(&in_parts).await.unwrap(), files(&[("a", b"a"), ("b", b"1234")]));
        let anew = [Early("b", b"old and long"), Rest(&[("b", 3, 0)], &[b"new"])];
        assert_eq!(received(&anew).await.unwrap(), files(&[("b", b"new")]));
    }

    #[tokio::test]
    async fn a_source_that_does_not_send_what_it_said_is_refused() {
        use Said::{Early, Rest};
        let long = vec![0; PART + 1];
        let wrong: [&[Said<'_>]; 11] = [
            &[Rest(&[("../a", 3, 0)], &[b"abc"])],
            &[Rest(&[("a", 3, 0), ("/etc/a", 3, 0)], &[b"abc", b"abc"])],
            &[Rest(&[("a", 3, 0)], &[b"ab"])],
            &[Rest(&[("a", 3, 0)], &[b"abcd"])],
            &[Rest(&[("a", 3, 0)], &[])],
            &[Rest(&[("a", u64::MAX, 0)], &[b"abc"])],
            &[Early("../a", b"abc"), Rest(&[], &[])],
            &[Early("a", &long), Rest(&[("a", PART as u64 + 1, PART as u64 + 1)], &[])],
            &[Early("a", b"abc"), Rest(&[("a", 3, 2)], &[b"c"])],
            &[Early("a", b"abc"), Rest(&[("a", 2, 3)], &[])],
            &[Rest(&[("a", 3, 3)], &[])],
        ];
        for (number, said) in wrong.into_iter().enumerate() {
            assert!(received(said).await.is_err(), "case {number}");
        }
        let many = vec![("a", 0, 0); MAX_IMAGES + 1];
        let refused = received(&[Rest(&many, &[])]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
