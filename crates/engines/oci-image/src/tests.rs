//! Tests with valid, damaged and hostile images.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use crate::unpack::{apply_all, confine, layers};
use crate::{Digest, Layout, Limits, Result, Source, digest};

const LIMITS: Limits = Limits { bytes: 1 << 20, files: 100 };

/// An archive under construction.
struct Archive(Builder<Vec<u8>>);

impl Archive {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn add(mut self, kind: EntryType, path: &str, link: &str, content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        // Written byte by byte: the builder refuses hostile names.
        let name = &mut header.as_gnu_mut().unwrap().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        let to = &mut header.as_gnu_mut().unwrap().linkname;
        to[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(if kind == EntryType::Directory { 0o751 } else { 0o4755 });
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(1_000_000);
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    fn file(self, path: &str, content: &str) -> Self {
        self.add(EntryType::Regular, path, "", content.as_bytes())
    }

    fn directory(self, path: &str) -> Self {
        self.add(EntryType::Directory, path, "", &[])
    }

    fn end(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A layout, and a directory to unpack into.
struct Made {
    folder: TempDir,
    root: Digest,
}

impl Made {
    /// A layout with layers, each given as stored and as unpacked.
    fn of(layers: &[(Vec<u8>, &[u8])]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let blobs = folder.path().join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        fs::create_dir(folder.path().join("files")).unwrap();
        let put = |bytes: &[u8]| {
            let digest = digest::of(bytes);
            fs::write(blobs.join(digest.digits()), bytes).unwrap();
            json!({ "mediaType": "", "digest": digest.to_string(), "size": bytes.len() })
        };
        let unpacked: Vec<Digest> = layers.iter().map(|(_, unpacked)| digest::of(unpacked)).collect();
        let config = json!({ "os": "linux", "architecture": "amd64", "config": { "Cmd": ["/x"] },
            "rootfs": { "type": "layers", "diff_ids": unpacked } });
        let layers: Vec<Value> = layers.iter().map(|(blob, _)| put(blob)).collect();
        let manifest = json!({ "config": put(config.to_string().as_bytes()), "layers": layers });
        let mut manifest = put(manifest.to_string().as_bytes());
        manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "v1" });
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(folder.path().join("index.json"), index.to_string()).unwrap();
        Self { folder, root: digest::of_chain(&unpacked).unwrap() }
    }

    fn plain(layers: Vec<Vec<u8>>) -> Self {
        let layers: Vec<_> = layers.iter().map(|layer| (layer.clone(), layer.as_slice())).collect();
        Self::of(&layers)
    }

    fn file(&self, path: &str) -> PathBuf {
        self.folder.path().join("files").join(path)
    }

    /// Unpacks it in a thread with its own root directory.
    fn unpack(&self, limits: Limits) -> Result<()> {
        let layers = layers(self.folder.path(), &self.root)?;
        let files = self.file("");
        let unpacking = thread::spawn(move || {
            // SAFETY: no memory is passed.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0, "{}", io::Error::last_os_error());
            confine(&files).unwrap();
            apply_all(layers, limits)
        });
        unpacking.join().unwrap()
    }

    fn refusal(&self) -> String {
        self.unpack(LIMITS).unwrap_err().what
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn unpacks_layers_in_order_with_each_compression() {
    let first = Archive::new().directory("./").directory("d/").file("d/gone", "1").file("d/kept", "2");
    let first =
        first.directory("o").file("o/gone", "3").file("changed", "4").directory("was/").file("was/in", "5");
    let first = first.directory("e").file("e/f", "9");
    let second = Archive::new().file("d/.wh.gone", "").file("o/new", "6").file("o/.wh..wh..opq", "");
    let second = second.file(".wh..wh.plnk", "").file("changed", "7").file("was", "now a file");
    let third = Archive::new().add(EntryType::Link, "hard", "d/kept", &[]);
    let third = third.add(EntryType::Symlink, "soft", "/d/kept", &[]).add(EntryType::Char, "null", "", &[]);
    let third = third.file("without/parents/file", "8").add(EntryType::Fifo, "pipe", "", &[]);
    let [first, second, third] = [first, second, third].map(Archive::end);
    let zstd = zstd::encode_all(second.as_slice(), 1).unwrap();
    let made = Made::of(&[(gzip(&first), &first), (zstd, &second), (third.clone(), &third)]);
    made.unpack(LIMITS).unwrap();
    for gone in ["d/gone", "d/.wh.gone", "o/gone", "o/.wh..wh..opq", ".wh..wh.plnk"] {
        assert!(fs::symlink_metadata(made.file(gone)).is_err(), "{gone}");
    }
    for (path, content) in [
        ("d/kept", "2"),
        ("o/new", "6"),
        ("changed", "7"),
        ("was", "now a file"),
        ("without/parents/file", "8"),
    ] {
        assert_eq!(read(&made.file(path)), content, "{path}");
    }
    let kept = fs::metadata(made.file("d/kept")).unwrap();
    assert_eq!((kept.mode() & 0o7777, kept.uid(), kept.gid(), kept.nlink()), (0o4755, 7, 8, 2));
    let directory = fs::metadata(made.file("e")).unwrap();
    assert_eq!((directory.mode() & 0o7777, directory.mtime()), (0o751, 1_000_000));
    assert_eq!(fs::metadata(made.file("")).unwrap().uid(), 7);
    assert_eq!(fs::read_link(made.file("soft")).unwrap(), Path::new("/d/kept"));
    let null = fs::metadata(made.file("null")).unwrap();
    assert!(null.file_type().is_char_device() && null.rdev() == libc::makedev(1, 3));
    assert!(fs::metadata(made.file("pipe")).unwrap().file_type().is_fifo());
}

#[test]
fn no_name_or_link_leads_out_of_an_image() {
    for (kind, path, link) in [
        (EntryType::Regular, "../out", ""),
        (EntryType::Regular, "a/../../out", ""),
        (EntryType::Link, "in", "../out"),
        (EntryType::Regular, "a/.wh...", ""),
    ] {
        let made = Made::plain(vec![Archive::new().add(kind, path, link, &[]).end()]);
        let refused = made.refusal();
        assert!(refused.contains("is damaged"), "{path}: {refused}");
        assert!(!made.folder.path().join("out").exists());
    }
    // A link that leads out is resolved within the image, and whiteouts do not follow it.
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap();
    fs::write(outside.path().join("kept"), "").unwrap();
    let first = Archive::new().directory(target).add(EntryType::Symlink, "way", target, &[]);
    let second = Archive::new().file("way/in", "x").file("way/.wh.kept", "").file("way/.wh..wh..opq", "");
    let made = Made::plain(vec![first.end(), second.end()]);
    made.unpack(LIMITS).unwrap();
    assert_eq!(read(&made.file(&target[1..]).join("in")), "x");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn refuses_damaged_and_too_large_layers() {
    let layer = Archive::new().file("a", "b").end();
    let other = Made::of(&[(layer.clone(), b"another")]);
    assert!(other.refusal().contains("it unpacks to sha256:"));
    let many = (0..101).fold(Archive::new(), |archive, number| archive.file(&format!("f{number}"), ""));
    assert!(Made::plain(vec![many.end()]).refusal().contains("too many files"));
    let large = vec![0; 2 << 20];
    let bomb = Made::of(&[(gzip(&large), &large)]);
    assert!(bomb.refusal().contains("more bytes than the limit"));
    let odd = Archive::new().add(EntryType::new(b'Z'), "odd", "", &[]).end();
    assert!(Made::plain(vec![odd]).refusal().contains("of an unknown type"));
    for cut in [&gzip(&layer)[..40], &zstd::encode_all(layer.as_slice(), 1).unwrap()[..40], &layer[..600]] {
        assert!(Made::of(&[(cut.to_vec(), &layer)]).refusal().contains("is damaged"));
    }
}

#[test]
fn refuses_parts_that_do_not_match_their_digests() {
    let made = Made::plain(vec![Archive::new().file("a", "b").end()]);
    let layout = made.folder.path();
    let source = |tag: &str| format!("oci:{}{tag}", layout.display()).parse::<Source>().unwrap();
    let (config, root) = source(":v1").look().unwrap();
    assert_eq!((config.cmd, &root), (Some(vec!["/x".to_owned()]), &made.root));
    assert_eq!(source("").look().unwrap().1, root);
    let missing = source(":v2").look().unwrap_err();
    assert!(missing.what.contains("no image `v2`") && missing.remedy.contains("v1"), "{missing}");
    // Under any tag, but not another image.
    assert_eq!(source(":v2").must_have(&root), Ok(()));
    let differs = source(":v1").must_have(&digest::of(b"another")).unwrap_err();
    assert!(differs.what.starts_with("image differs: "), "{differs}");
    assert!(Layout::open(&layout.join("blobs")).is_err());
    let is_one = |path: &Path| read(path).contains("amd64");
    let blobs = || fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|entry| entry.unwrap().path());
    let config = blobs().find(|path| File::open(path).is_ok() && is_one(path)).unwrap();
    let right = read(&config);
    fs::write(&config, right.replace("/x", "/y")).unwrap();
    assert!(source("").look().unwrap_err().what.contains("its digest differs"));
    fs::remove_file(&config).unwrap();
    symlink("/dev/zero", &config).unwrap();
    assert!(source("").look().unwrap_err().what.contains("it is not a regular file"));
    fs::remove_file(&config).unwrap();
    File::create(&config).unwrap().set_len(5 << 20).unwrap();
    assert!(source("").look().unwrap_err().what.contains("longer than 4096 KiB"));
    fs::write(&config, right).unwrap();
    fs::remove_file(blobs().find(|path| !read(path).starts_with('{')).unwrap()).unwrap();
    assert!(source("").look().unwrap_err().what.contains("it does not exist"));
}
