use instance::Region;

use super::*;

const PROCESS: Region = Region(7);

/// What a source says: a message, and the frames behind it.
type Said = (ImageMessage, Vec<Vec<u8>>);

/// What is in the directory after this, and the source's end.
async fn received(said: Vec<Said>) -> io::Result<Vec<(String, Vec<u8>)>> {
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
    receive(&mut far, directory.path()).await?;
    let entries = std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.path().is_file());
    let mut found: Vec<(String, Vec<u8>)> = files
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    found.sort();
    Ok(found)
}

fn rest(images: &[(&str, u64)], frames: &[&[u8]]) -> Said {
    let image = |(name, size): &(&str, u64)| ImageFile { name: (*name).into(), size: *size };
    let images = images.iter().map(image).collect();
    let manifest = Manifest { carried: Carried::default(), images };
    (ImageMessage::Rest(manifest), frames.iter().map(|bytes| bytes.to_vec()).collect())
}

fn pages(runs: &[(u64, u32)], bytes: &[u8]) -> Said {
    let pages = bytes.iter().flat_map(|byte| [*byte; PAGE]).collect();
    (ImageMessage::Pages { region: PROCESS, runs: runs.to_vec() }, vec![pages])
}

fn layout(runs: &[(u64, u64)]) -> Said {
    (ImageMessage::Layout { region: PROCESS, runs: runs.to_vec() }, Vec::new())
}

fn begin() -> Said {
    (ImageMessage::Begin, Vec::new())
}

#[tokio::test]
async fn files_come_as_they_were() {
    let found = received(vec![rest(&[("a", 3), ("b", 0)], &[b"abc"])]).await.unwrap();
    assert_eq!(found, [("a".to_owned(), b"abc".to_vec()), ("b".to_owned(), Vec::new())]);
}

#[tokio::test]
async fn memory_is_what_the_last_account_says() {
    let said = vec![
        begin(),
        pages(&[(0x1000, 1), (0x5000, 2)], &[1, 2, 3]),
        begin(),
        pages(&[(0x5000, 1)], &[4]),
        pages(&[(0x9000, 1)], &[5]),
        layout(&[(0x5000, 1), (0x9000, 1)]),
        rest(&[], &[]),
    ];
    let found = received(said).await.unwrap();
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["pagemap-7.img", "pages-1.img"]);
    assert_eq!(found[1].1, [5; PAGE], "what is new");
}

#[tokio::test]
async fn a_source_that_does_not_send_what_it_said_is_refused() {
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
        vec![begin(), pages(&[(0x1001, 1)], &[1]), rest(&[], &[])],
        vec![begin(), pages(&[(0, 257)], &[1; 257]), rest(&[], &[])],
        vec![begin(), (ImageMessage::Pages { region: PROCESS, runs: vec![page] }, Vec::new())],
        vec![begin(), pages(&[page], &[1]), layout(&[(0x1000, 1), (0x3000, 1)]), rest(&[], &[])],
        vec![begin(), layout(&[(0x3000, 1), (0x1000, 1)]), rest(&[], &[])],
        vec![begin(), layout(&[(0, u64::MAX)]), rest(&[], &[])],
        // It would take the place of what is written here.
        vec![begin(), pages(&[page], &[1]), layout(&[(0x1000, 1)]), rest(&[("pages-1.img", 1)], &[b"x"])],
    ];
    for (number, said) in wrong.into_iter().enumerate() {
        assert!(received(said).await.is_err(), "case {number}");
    }
    let many = vec![("a", 0); MAX_IMAGES + 1];
    let refused = received(vec![rest(&many, &[])]).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
}
