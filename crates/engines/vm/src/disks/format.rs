//! The format of a disk's file.
//!
//! A guest writes what it likes to a raw disk, also the header of a qcow2 image that names any file of the host as its base or for its data. QEMU would
//! open that file with the rights of its starter. So the format is what the user states, or what the file's name says, and never
//! what is in the file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use engine_api::{Error, Result};
use instance::{Disk, DiskFormat, VmSpec};

/// QEMU's name of the driver of a format.
pub fn driver(format: DiskFormat) -> &'static str {
    match format {
        DiskFormat::Raw => "raw",
        DiskFormat::Qcow2 => "qcow2",
    }
}

/// The formats of a new machine's disks, in order.
///
/// # Errors
/// If a file cannot be read and written, its contents contradict its format, or they say that the data is in another file.
pub fn formats(vm: &VmSpec) -> Result<Vec<DiskFormat>> {
    vm.disks.iter().map(format).collect()
}

fn format(disk: &Disk) -> Result<DiskFormat> {
    let place = disk.path.display();
    let read = open_at_once(File::options().read(true).write(true), &disk.path).and_then(Header::read);
    let header = read.map_err(|error| {
        let what = format!("{place} cannot be read and written ({error})");
        Error::unusable(what, "pass an image file that exists on the host, or choose another host")
    })?;
    let is_named_qcow2 = disk.path.extension().is_some_and(|extension| extension == "qcow2");
    let format = match disk.format {
        Some(format) => format,
        None if is_named_qcow2 => DiskFormat::Qcow2,
        None if header.is_qcow2() => {
            let what = format!("{place} begins like a qcow2 image, which a guest can write to a raw disk");
            return Err(Error::unusable(
                what,
                format!("pass `{place},raw`, or `{place},qcow2` if you made the image"),
            ));
        }
        None => DiskFormat::Raw,
    };
    if format == DiskFormat::Raw {
        return Ok(format);
    }
    if !header.is_qcow2() {
        let what = format!("{place} is not a qcow2 image");
        return Err(Error::unusable(what, format!("pass `{place},raw` if it is raw")));
    }
    if header.has_data_file() {
        let what = format!("{place} keeps its data in another file");
        return Err(Error::unusable(what, "copy it to an image of its own with `qemu-img convert`"));
    }
    Ok(format)
}

/// Opens a regular file or a block device. Others, such as pipes, may wait for ever.
///
/// # Errors
/// If that fails, or it is something else.
pub fn open_at_once(options: &mut std::fs::OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a block device"))
}

/// The first bytes of a file: the header of a qcow2 image (QEMU's `docs/interop/qcow2.txt`), or anything.
struct Header(Vec<u8>);

impl Header {
    fn read(file: File) -> io::Result<Self> {
        const LENGTH: u64 = 80;
        let mut bytes = Vec::new();
        file.take(LENGTH).read_to_end(&mut bytes)?;
        Ok(Self(bytes))
    }

    fn is_qcow2(&self) -> bool {
        self.0.starts_with(b"QFI\xfb")
    }

    /// Whether the blocks of the image are in another file: the bit 2 of the incompatible features, which images have from version 3 on.
    fn has_data_file(&self) -> bool {
        const DATA_FILE: u8 = 1 << 2;
        let version = self.0.get(4..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes);
        version >= 3 && self.0.get(79).is_some_and(|features| features & DATA_FILE != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// The first bytes of an image of version 3 with these incompatible features.
    fn image(features: u8) -> Vec<u8> {
        let mut bytes = [&b"QFI\xfb\0\0\0\x03"[..], &[0; 72]].concat();
        bytes[79] = features;
        bytes
    }

    fn found(path: PathBuf, contents: &[u8], stated: Option<DiskFormat>) -> Result<DiskFormat> {
        fs::write(&path, contents).unwrap();
        format(&Disk { path, is_shared: false, format: stated })
    }

    #[test]
    fn the_format_is_never_what_a_guest_has_written() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert_eq!(found(at("a.img"), b"", None).unwrap(), DiskFormat::Raw);
        assert_eq!(found(at("a.qcow2"), &image(0), None).unwrap(), DiskFormat::Qcow2);
        assert_eq!(found(at("a.img"), &image(0), Some(DiskFormat::Raw)).unwrap(), DiskFormat::Raw);
        assert_eq!(found(at("a.img"), &image(0), Some(DiskFormat::Qcow2)).unwrap(), DiskFormat::Qcow2);
        let refused =
            |name: &str, contents: &[u8], stated| found(at(name), contents, stated).unwrap_err().to_string();
        assert!(refused("a.img", &image(0), None).contains("begins like a qcow2 image"));
        assert!(refused("a.qcow2", b"", None).contains("is not a qcow2 image"));
        assert!(refused("a.qcow2", &image(1 << 2), None).contains("keeps its data in another file"));
    }

    #[test]
    fn a_pipe_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        let refusal = format(&Disk { path, is_shared: false, format: None }).unwrap_err().to_string();
        assert!(refusal.contains("neither a file nor a block device"), "{refusal}");
        let nowhere = Disk { path: "/nowhere/a.img".into(), is_shared: false, format: None };
        let refusal = format(&nowhere).unwrap_err().to_string();
        assert!(refusal.starts_with("/nowhere/a.img cannot be read and written"), "{refusal}");
    }
}
