//! The built library's symbols: the listed ones, and all those of Debian's releases, under their version nodes.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::process::Command;

use verbs_abi::symbols::{RELEASES, exports};

#[test]
fn every_symbol_is_found_under_its_version() {
    let path = CString::new(
        test_support::libraries::folder().join("libibverbs.so.1").into_os_string().into_encoded_bytes(),
    )
    .unwrap();
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

/// The definitions of the built library: version node and name, with a `-` before it if it is hidden.
fn defined() -> BTreeSet<String> {
    let output = Command::new("readelf")
        .args(["--dyn-syms", "--wide"])
        .arg(test_support::libraries::folder().join("libibverbs.so.1"))
        .output();
    let output = output.expect("readelf, which comes with the C compiler");
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().filter_map(definition).collect()
}

/// A line of readelf's: `number: value size type binding visibility section name@@node`, or `@` if it is hidden.
fn definition(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().skip(6);
    let (section, name) = (words.next()?, words.next()?);
    let (name, node) = name.split_once('@')?;
    let is_ours = section != "UND" && section != "ABS" && node.contains("IBVERBS_");
    let dash = if node.starts_with('@') { "" } else { "-" };
    is_ours.then(|| format!("{} {dash}{name}", node.trim_start_matches('@')))
}

#[test]
fn exports_match_debians_releases_and_their_default_versions() {
    let defined = defined();
    for (release, list) in RELEASES {
        let lines = list.lines().filter(|line| !line.starts_with('#'));
        let missing: Vec<&str> = lines.filter(|line| !defined.contains(*line)).collect();
        assert!(missing.is_empty(), "{release} has {missing:?}");
    }
}

#[test]
fn no_symbol_is_exported_beyond_the_releases() {
    let known: BTreeSet<&str> = RELEASES.iter().flat_map(|(_, list)| list.lines()).collect();
    let public = |line: &&String| !line.contains("PRIVATE");
    let own: Vec<String> =
        defined().iter().filter(public).filter(|line| !known.contains(line.as_str())).cloned().collect();
    assert!(own.is_empty(), "{own:?}");
}
