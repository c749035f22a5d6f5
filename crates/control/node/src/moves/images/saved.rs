//! Images in a directory of a checkpoint.
//!
//! The directory holds the engine's images unchanged, and [`CONTENTS`], which is written last. A directory without that file, or whose
//! files do not match it, is not usable. Parts without any data occupy no room, here and where they are copied to: disks have many.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use blake3::Hasher;
use fabric::Vid;
use instance::{Carried, ImageFile};
use serde::{Deserialize, Serialize};

use super::parts::{MAX_IMAGES, PART, is_plain};

/// The file that describes the directory's contents.
const CONTENTS: &str = "transhume.contents";

/// The file that names the instance of the directory, written first.
const BEGUN: &str = "transhume.begun";

/// The longest [`CONTENTS`], in bytes.
const MAX_CONTENTS: u64 = 64 * 1024 * 1024;

/// Raised when the layout of [`Contents`] changes.
const VERSION: u16 = 2;

#[derive(Serialize, Deserialize)]
struct Contents {
    version: u16,
    vid: Vid,
    carried: Carried,
    images: Vec<(ImageFile, [u8; 32])>,
}

/// The parts of an instance that a checkpoint saves.
pub struct Dumped {
    /// The instance.
    pub vid: Vid,
    /// The state of its broker.
    pub carried: Carried,
    /// The directory of its images.
    pub directory: PathBuf,
    /// Its images.
    pub images: Vec<ImageFile>,
}

/// Called with the copied bytes and the total; returns whether to continue.
pub type GoesOn<'a> = &'a dyn Fn(u64, u64) -> bool;

/// Copies images to the directory `to`, which must not exist, and makes them durable. An incomplete copy is removed.
pub fn save(dumped: Dumped, to: &Path, goes_on: GoesOn<'_>) -> io::Result<()> {
    if dumped.images.len() > MAX_IMAGES {
        return Err(io::Error::other(format!("it has more than {MAX_IMAGES} images")));
    }
    if let Some(parent) = to.parent() {
        private::trusted(parent)?;
    }
    DirBuilder::new().mode(0o700).create(to)?;
    let saved = fill(dumped, to, goes_on);
    if saved.is_err() {
        fs::remove_dir_all(to)?;
    }
    saved
}

/// Removes the directory that [`save`] has made for `vid`, complete or not, if it exists. It leaves any other directory alone.
pub fn discard(saved: &Path, vid: Vid) -> io::Result<()> {
    let is_begun =
        || fs::read(saved.join(BEGUN)).is_ok_and(|whose| whose == vid.lid().to_string().as_bytes());
    match check(saved, vid) {
        Err(_) if is_begun() => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && !saved.exists() => return Ok(()),
        checked => checked?,
    }
    fs::remove_dir_all(saved)
}

fn fill(dumped: Dumped, to: &Path, goes_on: GoesOn<'_>) -> io::Result<()> {
    let Dumped { vid, carried, directory, images } = dumped;
    private::replace(&to.join(BEGUN), vid.lid().to_string().as_bytes())?;
    let total = images.iter().map(|image| image.size).sum();
    let mut copier = Copier { part: vec![0; PART], empty: vec![0; PART], copied: 0, total, goes_on };
    let mut digests = Vec::new();
    for image in images {
        let digest =
            copier.copy(&directory.join(&image.name), create(&to.join(&image.name))?, image.size, true)?;
        digests.push((image, digest));
    }
    let contents = Contents { version: VERSION, vid, carried, images: digests };
    let contents = postcard::to_stdvec(&contents).map_err(io::Error::other)?;
    if contents.len() as u64 > MAX_CONTENTS {
        return Err(io::Error::other("its output and the names of its images are too long"));
    }
    let digest = *blake3::hash(&contents).as_bytes();
    private::sync_folder_of(to)?;
    private::replace_durably(&to.join(CONTENTS), &[&digest, &contents[..]].concat())
}

/// Checks that the directory `saved` is complete and belongs to `vid`.
pub fn check(saved: &Path, vid: Vid) -> io::Result<()> {
    read_contents(saved, vid).map(drop)
}

/// Copies the images of `vid` from the directory `saved` to the files that `to` gives for their names, and returns the broker's state
/// saved beside them.
pub fn load(
    saved: &Path,
    vid: Vid,
    to: &mut dyn FnMut(&str) -> io::Result<File>,
    goes_on: GoesOn<'_>,
) -> io::Result<Carried> {
    let contents = read_contents(saved, vid)?;
    let total = contents.images.iter().map(|(image, _)| image.size).fold(0, u64::saturating_add);
    let mut copier = Copier { part: vec![0; PART], empty: vec![0; PART], copied: 0, total, goes_on };
    for (image, digest) in contents.images {
        let copied = copier.copy(&saved.join(&image.name), to(&image.name)?, image.size, false)?;
        if copied != digest {
            return Err(damaged(&image.name));
        }
    }
    Ok(contents.carried)
}

fn read_contents(saved: &Path, vid: Vid) -> io::Result<Contents> {
    let mut bytes = Vec::new();
    private::regular(&saved.join(CONTENTS))?.take(MAX_CONTENTS + 32).read_to_end(&mut bytes)?;
    let (digest, bytes) = bytes.split_first_chunk::<32>().ok_or_else(|| damaged(CONTENTS))?;
    if blake3::hash(bytes) != *digest {
        return Err(damaged(CONTENTS));
    }
    // Every layout begins with its version.
    let (version, _) = postcard::take_from_bytes::<u16>(bytes).map_err(|_| damaged(CONTENTS))?;
    if version != VERSION {
        let what = format!(
            "it was written by another release (its layout is {version}, and this release reads {VERSION})"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let contents: Contents = postcard::from_bytes(bytes).map_err(|_| damaged(CONTENTS))?;
    if contents.images.len() > MAX_IMAGES || !contents.images.iter().all(|(image, _)| is_plain(&image.name)) {
        return Err(damaged(CONTENTS));
    }
    if contents.vid != vid {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it belongs to another instance"));
    }
    Ok(contents)
}

fn damaged(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{name} is damaged"))
}

fn create(path: &Path) -> io::Result<File> {
    private::open(path, OpenOptions::new().write(true).create(true).truncate(true))
}

struct Copier<'a> {
    part: Vec<u8>,
    /// A part without data.
    empty: Vec<u8>,
    /// Bytes so far.
    copied: u64,
    /// Bytes in all.
    total: u64,
    goes_on: GoesOn<'a>,
}

impl Copier<'_> {
    /// Copies a file of `size` bytes, and returns the digest of the copied bytes.
    fn copy(&mut self, from: &Path, mut writer: File, size: u64, is_durable: bool) -> io::Result<[u8; 32]> {
        let in_words = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(&from.to_string_lossy()),
            kind => io::Error::new(kind, format!("{}: {error}", from.display())),
        };
        let mut reader = private::regular(from).map_err(in_words)?;
        let mut hasher = Hasher::new();
        let mut left = size;
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(PART).min(PART);
            let part = &mut self.part[..length];
            reader.read_exact(part).map_err(in_words)?;
            hasher.update(part);
            if *part == self.empty[..length] {
                writer.seek(SeekFrom::Current(length as i64))?;
            } else {
                writer.write_all(part)?;
            }
            left -= length as u64;
            self.copied += length as u64;
            if length == PART && !(self.goes_on)(self.copied, self.total) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "cancelled"));
            }
        }
        writer.set_len(size)?;
        if is_durable {
            writer.sync_all()?;
        }
        Ok(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn vid() -> Vid {
        Vid::new(7).unwrap()
    }

    /// A dump in `directory`.
    fn dumped(directory: &Path) -> Dumped {
        let from = directory.join("dump");
        fs::create_dir_all(&from).unwrap();
        let disk = [vec![0; PART], vec![3; PART], vec![0; 2 * PART + 1]].concat();
        let files = [
            ("core-1.img", vec![1; 10]),
            ("pages-1.img", vec![2; PART + 1]),
            ("empty.img", Vec::new()),
            ("disk.img", disk),
        ];
        let images = files.map(|(name, bytes)| {
            fs::write(from.join(name), &bytes).unwrap();
            ImageFile { name: name.into(), size: bytes.len() as u64 }
        });
        let carried = Carried { exit: Some(3), ..Carried::default() };
        Dumped { vid: vid(), carried, directory: from, images: images.into() }
    }

    fn saved(directory: &Path) -> PathBuf {
        let to = directory.join("checkpoint/a.1");
        save(dumped(directory), &to, &|_, _| true).unwrap();
        to
    }

    #[test]
    fn saved_images_can_be_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let saved = saved(directory.path());
        check(&saved, vid()).unwrap();
        assert_eq!(fs::metadata(&saved).unwrap().permissions().mode() & 0o777, 0o700);
        let to = directory.path().join("again");
        fs::create_dir(&to).unwrap();
        let carried = load(&saved, vid(), &mut |name| create(&to.join(name)), &|_, _| true).unwrap();
        assert_eq!(carried.exit, Some(3));
        for name in ["core-1.img", "pages-1.img", "empty.img", "disk.img"] {
            let original = fs::read(directory.path().join("dump").join(name)).unwrap();
            assert!(fs::read(to.join(name)).unwrap() == original, "{name}");
            assert!(fs::read(saved.join(name)).unwrap() == original, "{name}");
        }
    }

    #[test]
    fn parts_without_data_occupy_no_room() {
        let directory = tempfile::tempdir().unwrap();
        let saved = saved(directory.path());
        let occupied = fs::metadata(saved.join("disk.img")).unwrap().blocks() * 512;
        assert!(occupied < 2 * PART as u64, "{occupied}");
    }

    #[test]
    fn damaged_truncated_or_foreign_images_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let saved = saved(directory.path());
        let to = directory.path().join("again");
        fs::create_dir(&to).unwrap();
        assert!(check(&saved, Vid::new(8).unwrap()).unwrap_err().to_string().contains("another instance"));
        for name in [CONTENTS, "core-1.img", "pages-1.img"] {
            let whole = fs::read(saved.join(name)).unwrap();
            let mut changed = whole.clone();
            *changed.last_mut().unwrap() ^= 1;
            for wrong in [&changed[..], &whole[..whole.len() - 1], &[]] {
                fs::write(saved.join(name), wrong).unwrap();
                assert!(
                    load(&saved, vid(), &mut |name| create(&to.join(name)), &|_, _| true).is_err(),
                    "{name}, {} bytes",
                    wrong.len()
                );
            }
            fs::write(saved.join(name), whole).unwrap();
        }
        load(&saved, vid(), &mut |name| create(&to.join(name)), &|_, _| true).unwrap();
    }

    #[test]
    fn a_failed_save_leaves_nothing_and_overwrites_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("checkpoint/a.1");
        assert!(save(dumped(directory.path()), &to, &|_, _| false).is_err() && !to.exists());
        save(dumped(directory.path()), &to, &|_, _| true).unwrap();
        let again = save(dumped(directory.path()), &to, &|_, _| true);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        check(&to, vid()).unwrap();
    }

    #[test]
    fn only_directories_of_a_begun_save_are_discarded() {
        let directory = tempfile::tempdir().unwrap();
        let whole = saved(directory.path());
        assert!(discard(&whole, Vid::new(8).unwrap()).is_err() && discard(directory.path(), vid()).is_err());
        fs::remove_file(whole.join(CONTENTS)).unwrap();
        assert!(discard(&whole, Vid::new(8).unwrap()).is_err() && whole.exists());
        discard(&whole, vid()).unwrap();
        discard(&whole, vid()).unwrap();
        assert!(!whole.exists());
    }
}
