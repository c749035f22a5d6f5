//! Every symbol of the list is found by name and version, as `dlvsym` finds it, and the library has no other versions.

use std::ffi::CString;

/// Names with their version nodes.
fn symbols() -> Vec<(String, String)> {
    let mut node = String::new();
    let mut symbols = Vec::new();
    for line in include_str!("../symbols.list").lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(name) => node = format!("RDMACM_{name}"),
            None if line.is_empty() => {}
            None => symbols.push((line.split(' ').next().unwrap().to_owned(), node.clone())),
        }
    }
    symbols
}

#[test]
fn every_symbol_is_found_under_its_version() {
    let path = CString::new(
        test_support::libraries::folder().join("librdmacm.so.1").into_os_string().into_encoded_bytes(),
    )
    .unwrap();
    // SAFETY: opening the library runs no code of its own.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{path:?}");
    for (name, node) in symbols() {
        let (name, node) = (CString::new(name).unwrap(), CString::new(node).unwrap());
        // SAFETY: the handle is open, and both are strings.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), node.as_ptr()) };
        assert!(!found.is_null(), "{name:?} {node:?}");
        // SAFETY: as above.
        assert_eq!(unsafe { libc::dlsym(handle, name.as_ptr()) }, found, "{name:?}");
    }
}

#[test]
fn the_list_holds_the_exports_of_rdma_core_44() {
    let symbols = symbols();
    let of = |node: &str| symbols.iter().filter(|(_, of)| of == node).count();
    assert_eq!(["RDMACM_1.0", "RDMACM_1.1", "RDMACM_1.2", "RDMACM_1.3"].map(of), [62, 1, 2, 3]);
}
