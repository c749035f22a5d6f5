use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::*;

const REGION: Region = Region(7);

/// A message of a source, and the frames behind it.
type Said = (ImageMessage, Vec<Vec<u8>>);

/// Records the calls for memory, and keeps files in a folder.
struct Noting {
    folder: PathBuf,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Noting {
    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }
}

impl ImageSink for Noting {
    fn begin(&mut self) {
        self.note("begin".into());
    }

    fn write(&mut self, region: Region, address: u64, pages: &[u8]) -> io::Result<()> {
        let first: Vec<u8> = pages.chunks(PAGE).map(|page| page[0]).collect();
        self.note(format!("write {} {address:#x} {first:?}", region.0));
        Ok(())
    }

    fn lay_out(&mut self, region: Region, runs: &[(u64, u64)]) -> io::Result<()> {
        self.note(format!("lay out {} {runs:x?}", region.0));
        Ok(())
    }

    fn leave(&mut self, region: Region, runs: &[(u64, u64)]) -> io::Result<()> {
        self.note(format!("leave {} {runs:x?}", region.0));
        Ok(())
    }

    fn file(&mut self, name: &str) -> io::Result<fs::File> {
        fs::File::create_new(self.folder.join(name))
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        self.note("finish".into());
        Ok(())
    }
}

/// The calls for memory and the files that result from these messages of a source that then closes the connection.
async fn received(said: Vec<Said>) -> io::Result<(Vec<String>, Vec<(String, Vec<u8>)>)> {
    let directory = tempfile::tempdir().unwrap();
    let (mut near, mut far) = tokio::io::duplex(8 << 20);
    for (message, frames) in said {
        frame::send(&mut near, &message).await.unwrap();
        for bytes in frames {
            frame::write(&mut near, &bytes).await.unwrap();
        }
    }
    let (_answers, mut writer) = tokio::io::split(near);
    writer.shutdown().await.unwrap();
    let calls = Arc::default();
    let sink = Noting { folder: directory.path().to_owned(), calls: Arc::clone(&calls) };
    receive(&mut far, Box::new(sink)).await?;
    let entries = fs::read_dir(directory.path()).unwrap().map(Result::unwrap);
    let mut found: Vec<(String, Vec<u8>)> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    found.sort();
    let calls = calls.lock().unwrap().clone();
    Ok((calls, found))
}

fn rest(images: &[(&str, u64)], frames: &[&[u8]]) -> Said {
    let image = |(name, size): &(&str, u64)| ImageFile { name: (*name).into(), size: *size };
    let images = images.iter().map(image).collect();
    let manifest = Manifest { carried: Carried::default(), images };
    (ImageMessage::Rest(manifest), frames.iter().map(|bytes| bytes.to_vec()).collect())
}

fn pages(runs: &[(u64, u32)], bytes: &[u8]) -> Said {
    let pages = bytes.iter().flat_map(|byte| [*byte; PAGE]).collect();
    (ImageMessage::Pages { region: REGION, runs: runs.to_vec() }, vec![pages])
}

fn layout(runs: &[(u64, u64)]) -> Said {
    (ImageMessage::Layout { region: REGION, runs: runs.to_vec() }, Vec::new())
}

fn left(runs: &[(u64, u64)]) -> Said {
    (ImageMessage::Left { region: REGION, runs: runs.to_vec() }, Vec::new())
}

fn begin() -> Said {
    (ImageMessage::Begin, Vec::new())
}

#[tokio::test]
async fn files_arrive_unchanged() {
    let (_, found) = received(vec![rest(&[("a", 3), ("b", 0)], &[b"abc"])]).await.unwrap();
    assert_eq!(found, [("a".to_owned(), b"abc".to_vec()), ("b".to_owned(), Vec::new())]);
}

#[tokio::test]
async fn memory_reaches_the_sink_in_the_order_in_which_it_was_sent() {
    let said = vec![
        begin(),
        pages(&[(0x1000, 1), (0x5000, 2)], &[1, 2, 3]),
        begin(),
        pages(&[(0x5000, 1)], &[4]),
        layout(&[(0x5000, 1), (0x9000, 1)]),
        left(&[(0x9000, 1)]),
        rest(&[], &[]),
    ];
    let (calls, _) = received(said).await.unwrap();
    let expected = [
        "begin",
        "write 7 0x1000 [1]",
        "write 7 0x5000 [2, 3]",
        "begin",
        "write 7 0x5000 [4]",
        "lay out 7 [(5000, 1), (9000, 1)]",
        "leave 7 [(9000, 1)]",
        "finish",
    ];
    assert_eq!(calls, expected);
}

#[tokio::test]
async fn a_source_whose_frames_contradict_its_messages_is_refused() {
    let page = (0x1000, 1);
    let wrong = vec![
        vec![rest(&[("../a", 3)], &[b"abc"])],
        vec![rest(&[("a", 3), ("/etc/a", 3)], &[b"abc", b"abc"])],
        vec![rest(&[("a", 3), ("a", 3)], &[b"abc", b"abc"])],
        vec![rest(&[("a", 3)], &[b"ab"])],
        vec![rest(&[("a", 3)], &[b"abcd"])],
        vec![rest(&[("a", 3)], &[])],
        vec![rest(&[("a", u64::MAX)], &[b"abc"])],
        vec![begin(), pages(&[page], &[1, 2]), rest(&[], &[])],
        vec![begin(), pages(&[page, (0x2000, u32::MAX)], &[1]), rest(&[], &[])],
        vec![begin(), pages(&[(0, 257)], &[1; 257]), rest(&[], &[])],
        vec![begin(), (ImageMessage::Pages { region: REGION, runs: vec![page] }, Vec::new())],
    ];
    for (number, said) in wrong.into_iter().enumerate() {
        assert!(received(said).await.is_err(), "case {number}");
    }
    let many = vec![("a", 0); MAX_IMAGES + 1];
    let refused = received(vec![rest(&many, &[])]).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
}
