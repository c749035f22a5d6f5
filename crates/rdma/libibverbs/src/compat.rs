//! Historical functions that programs still call: sysfs.

use std::ffi::{CStr, OsStr, c_char};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::c_int;

pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    fabric::device_file::sysfs().as_ptr()
}

/// The bytes read into `buffer`, without a newline at the end, or -1.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the contract of verbs: two strings, and `size` bytes that can be written once they are zeroed.
    let (folder, file, buffer) = unsafe {
        buffer.write_bytes(0, size);
        let bytes = std::slice::from_raw_parts_mut(buffer.cast::<u8>(), size);
        (CStr::from_ptr(folder), CStr::from_ptr(file), bytes)
    };
    let path = Path::new(OsStr::from_bytes(folder.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    let Ok(mut length) = File::open(path).and_then(|mut file| file.read(buffer)) else { return -1 };
    if length > 0 && (buffer[length - 1] == b'\n' || length == size) {
        length -= 1;
        buffer[length] = 0;
    }
    c_int::try_from(length).unwrap_or(-1)
}
