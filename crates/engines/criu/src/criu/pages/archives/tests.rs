use std::env;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use tempfile::TempDir;

use super::*;
use crate::criu::pages::tar::provide;

/// A sink that writes into archives.
struct There(Mutex<Archives>);

impl MemorySink for There {
    fn begin(&self) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, _: Owner) -> io::Result<()> {
        Ok(())
    }

    fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        let Owner::Archive(number) = owner else { panic!("{owner:?}") };
        let mut archives = self.0.lock().unwrap();
        archives.write(number, address, pages)?;
        archives.keep(number, address, (pages.len() / PAGE) as u64)
    }

    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn archives_arrive_in_pages_and_keep_their_length() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let image = "tmpfs-dev-7.tar.gz.img";
    let mut archives = Archives::new(to.path());
    archives.write(7, 0, &vec![1; 3 * PART]).unwrap();
    archives.write(8, 0, &[1; PAGE]).unwrap();
    fs::write(from.path().join(image), vec![2; PART + 10]).unwrap();
    fs::write(from.path().join("tmpfs-7.img"), "no archive").unwrap();
    let there = There(Mutex::new(archives));
    tell(from.path(), &there).unwrap();
    there.0.into_inner().unwrap().finish().unwrap();
    let expected = [vec![2; PART + 10], vec![0; PAGE - 10]].concat();
    assert!(fs::read(to.path().join(image)).unwrap() == expected);
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
}

#[test]
fn too_many_or_too_long_archives_are_refused() {
    let to = tempfile::tempdir().unwrap();
    let mut archives = Archives::new(to.path());
    for number in 0..MOST as u32 {
        archives.keep(number, 0, 1).unwrap();
    }
    archives.keep(0, PAGE as u64, 1).unwrap();
    assert!(archives.keep(MOST as u32, 0, 1).is_err());
    assert!(archives.keep(0, u64::MAX, 1).is_err() && archives.keep(0, 0, u64::MAX).is_err());
}

#[test]
fn tmpfs_mounts_are_recognized_in_mountinfo() {
    let line =
        |root: &str, kind: &str| format!("36 35 0:98 {root} /dev/sh\\040m rw shared:1 - {kind} shm rw");
    let found = (Owner::Archive(98), PathBuf::from("/dev/sh m"));
    assert_eq!(in_memory(&line("/", "tmpfs")), Some(found));
    assert_eq!(in_memory(&line("/a", "tmpfs")), None);
    assert_eq!(in_memory(&line("/", "proc")), None);
    assert_eq!(in_memory("nonsense"), None);
}

fn tar(path: &OsString, words: &[&str], archive: &Path, is_made: bool) {
    let mut tar = Command::new("sh");
    // CRIU calls it by its name.
    tar.args(["-c", "exec tar \"$@\"", "sh"]).args(words).env("PATH", path);
    if is_made {
        tar.stdout(File::create(archive).unwrap());
    } else {
        tar.stdin(File::open(archive).unwrap());
    }
    assert!(tar.status().unwrap().success(), "{words:?}");
}

#[test]
fn archives_are_made_uncompressed_and_unpacked_even_if_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let (from, to, archive) = (place("a file's folder"), place("to"), place("archive"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), "words").unwrap();
    let usual = env::var_os("PATH").unwrap();
    let ours = provide(&place("tools")).unwrap();
    for (path, is_plain) in [(&ours, true), (&usual, false)] {
        fs::create_dir(&to).unwrap();
        tar(path, &["--create", "--gzip", "--directory", from.to_str().unwrap(), "."], &archive, true);
        let magic = fs::read(&archive).unwrap()[..2] == [0x1f, 0x8b];
        assert_eq!(magic, !is_plain);
        tar(&ours, &["--extract", "--gzip", "--directory", to.to_str().unwrap()], &archive, false);
        assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "words");
        fs::remove_dir_all(&to).unwrap();
    }
}

/// A sink for one archive.
#[derive(Default)]
struct Shown(Mutex<Vec<u8>>);

impl MemorySink for Shown {
    fn begin(&self) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, _: Owner) -> io::Result<()> {
        Ok(())
    }

    fn take(&self, _: Owner, _: u64, pages: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().extend(pages);
        Ok(())
    }

    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Holds as long as the file system does not change.
#[test]
fn the_present_contents_equal_the_later_archive_with_all_times() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let (from, to, archive) = (place("from"), place("to"), place("archive"));
    fs::create_dir(&from).and_then(|()| fs::create_dir(&to)).unwrap();
    let name =
        OsStr::from_bytes(b"no UTF-8 \xe4, and longer than other formats take it".repeat(3).as_slice())
            .to_owned();
    let time = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    let file = File::create(from.join(&name)).unwrap();
    // With a hole, which the archive records.
    file.write_all_at(b"words", 1 << 20).and_then(|()| file.set_modified(time)).unwrap();
    let search_path = provide(&place("tools")).unwrap();
    let file_system =
        FileSystem { owner: Owner::Archive(7), place: from.clone(), search_path: Some(search_path.clone()) };
    let shown = Shown::default();
    assert!(file_system.show(&shown, &|| true).unwrap());
    let words = ["--create", "--gzip"].iter().chain(&MAKE[1..]).copied();
    let words: Vec<&str> = words.chain([from.to_str().unwrap(), "."]).collect();
    tar(&search_path, &words, &archive, true);
    let mut made = fs::read(&archive).unwrap();
    made.resize(made.len().next_multiple_of(PAGE), 0);
    assert!(made == shown.0.into_inner().unwrap());
    tar(&search_path, &["--extract", "--gzip", "--directory", to.to_str().unwrap()], &archive, false);
    assert_eq!(fs::metadata(to.join(name)).unwrap().modified().unwrap(), time);
}

/// `user::rw-,user:1000:rw-,group::---,mask::rw-,other::---`, in the kernel's format.
const ACL: [u8; 44] = [
    2, 0, 0, 0, // version
    0x01, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, // user
    0x02, 0, 6, 0, 0xe8, 3, 0, 0, // user 1000
    0x04, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // group
    0x10, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, // mask
    0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // other
];
/// `cap_net_bind_service=ep`, in the kernel's format.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

const KEPT: [(&str, &[u8]); 3] =
    [("user.note", b"words"), ("security.capability", &CAPABILITY), ("system.posix_acl_access", &ACL)];

/// A folder on a file system that keeps all of these, with a file `from/file` that has them.
fn folder_with_attributes() -> TempDir {
    let places = [env::temp_dir(), "/dev/shm".into(), "/var/tmp".into(), env::current_dir().unwrap()];
    let made = |place: &PathBuf| {
        let folder = TempDir::new_in(place)?;
        let file = folder.path().join("from/file");
        fs::create_dir(folder.path().join("from")).and_then(|()| fs::write(&file, "words"))?;
        for (name, value) in KEPT {
            setxattr(&file, name, value, XattrFlags::empty())?;
        }
        io::Result::Ok(folder)
    };
    let found = places.iter().find_map(|place| made(place).ok());
    found.expect("root has a file system with attributes of users, capabilities and ACLs")
}

#[test]
fn attributes_capabilities_and_acls_are_kept() {
    let folder = folder_with_attributes();
    let place = |name: &str| folder.path().join(name);
    let (from, to, archive) = (place("from"), place("to"), place("archive"));
    fs::create_dir(&to).unwrap();
    let ours = provide(&place("tools")).unwrap();
    let words = ["--create", "--gzip"].iter().chain(&MAKE[1..]).copied();
    let words: Vec<&str> = words.chain([from.to_str().unwrap(), "."]).collect();
    tar(&ours, &words, &archive, true);
    tar(&ours, &["--extract", "--gzip", "--directory", to.to_str().unwrap()], &archive, false);
    for (name, expected) in KEPT {
        let mut value = [0; 64];
        let length = getxattr(to.join("file"), name, &mut value).expect(name);
        assert_eq!(&value[..length], expected, "{name}");
    }
}
