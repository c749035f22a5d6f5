//! The seed disk of a machine: a read-only disk with tools for its guest and data for cloud-init.
//!
//! It is a FAT file system with the label by which cloud-init finds its data (NoCloud). The first host builds the image; a move sends it,
//! since the guest may have parts of it in its memory, and another release has other tools.
//!
//! * [`contents`]: its files. [`travel`]: the image on its way to another host.

pub mod contents;
pub mod travel;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use serde_json::json;

/// The label of its file system: cloud-init's own.
pub const LABEL: &[u8; 11] = b"CIDATA     ";

/// A cluster of the file system, in bytes.
const CLUSTER: u64 = 4096;

/// Room for the file system's own structures, in bytes.
const BESIDE: u64 = 1 << 20;

/// A file on the disk.
pub struct SeedFile {
    /// Its name.
    pub name: &'static str,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// Writes an image with these files to `path`, and returns its size. Only its owner may read it: users' data may contain keys.
///
/// # Errors
/// Those of the file.
pub fn build(path: &Path, files: &[SeedFile]) -> io::Result<u64> {
    let contents: u64 = files.iter().map(|file| (file.bytes.len() as u64).next_multiple_of(CLUSTER)).sum();
    let size = (contents + contents / 64 + BESIDE).next_multiple_of(BESIDE);
    let image = private::open(path, File::options().read(true).write(true).create(true).truncate(true))?;
    image.set_len(size)?;
    let format = FormatVolumeOptions::new().volume_label(*LABEL).bytes_per_cluster(CLUSTER as u32);
    fatfs::format_volume(&image, format)?;
    let system = FileSystem::new(&image, FsOptions::new())?;
    for file in files {
        system.root_dir().create_file(file.name)?.write_all(&file.bytes)?;
    }
    system.unmount()?;
    image.sync_all()?;
    Ok(size)
}

/// QEMU's options for the disk of the image `file` in its working directory, as pairs.
pub fn options(file: &str) -> [(&'static str, String); 2] {
    const NODE: &str = "seed";
    let image = json!({ "driver": "file", "filename": file });
    let disk = json!({ "driver": "raw", "node-name": NODE, "read-only": true, "file": image });
    [("-blockdev", disk.to_string()), ("-device", format!("virtio-blk-pci,drive={NODE},serial=transhume"))]
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Command;

    use super::*;

    /// An independent reader is in the end-to-end tests: the kernel of a guest.
    #[test]
    fn an_image_has_its_label_and_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let long = vec![7; 3 << 20];
        let files = [("user-data", b"#cloud-config\n".to_vec()), ("libibverbs.so.1", long)];
        let files = files.map(|(name, bytes)| SeedFile { name, bytes });
        let size = build(&path, &files).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
        let system = FileSystem::new(File::open(&path).map(ReadOnly).unwrap(), FsOptions::new()).unwrap();
        for file in &files {
            let mut found = Vec::new();
            system.root_dir().open_file(file.name).unwrap().read_to_end(&mut found).unwrap();
            assert!(found == file.bytes, "{}", file.name);
        }
        let names: Vec<_> = system.root_dir().iter().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, files.map(|file| file.name));
        let found = Command::new("blkid").args(["-p", "-o", "value", "-s", "LABEL"]).arg(&path).output();
        let found = found.unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), "CIDATA", "{found:?}");
    }

    /// A file that refuses to be written.
    struct ReadOnly(File);

    impl io::Read for ReadOnly {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read(bytes)
        }
    }

    impl io::Seek for ReadOnly {
        fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    impl io::Write for ReadOnly {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
