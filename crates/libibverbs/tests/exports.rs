//! Every symbol of the list is found by name and version, as `dlvsym` finds it.

mod library;

use std::ffi::CString;

use verbs_abi::symbols::exports;

#[test]
fn every_symbol_is_found_under_its_version() {
    let path = CString::new(library::path().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: opening the library runs no code of its own.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{path:?}");
    for symbol in exports().unwrap() {
        let (name, node) = (CString::new(symbol.name).unwrap(), CString::new(symbol.node).unwrap());
        // SAFETY: the handle is open, and both are strings.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), node.as_ptr()) };
        assert!(!found.is_null(), "{name:?} {node:?}");
        if !symbol.hidden {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::dlsym(handle, name.as_ptr()) }, found, "{name:?}");
        }
    }
}
