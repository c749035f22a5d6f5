//! The symbols of `libibverbs.so.1`: one list, from which everything about them is generated.

/// The list; its head explains the format.
pub const LIST: &str = include_str!("../symbols.list");

/// The exports of Debian's releases: lines of version node and name, the latter after a `-` if it is
/// hidden behind a default version. A test compares the built library with them.
pub const RELEASES: [(&str, &str); 2] = [
    ("Debian 12", include_str!("../releases/debian12.list")),
    ("Debian 13", include_str!("../releases/debian13.list")),
];

/// The numbers `n` of the nodes `IBVERBS_PRIVATE_n` that releases of rdma-core have used since 2021.
/// Debian 12 and 13 have the first.
pub const PRIVATE_NUMBERS: [u32; 5] = [34, 57, 59, 64, 65];

/// The version node of what this project's own `librdmacm.so.1` needs beside verbs. Its number is raised when a
/// function changes.
pub const OWN_NODE: &str = "TRANSHUME_PRIVATE_1";

/// The public version nodes, each of which includes those before it.
pub const PUBLIC_NODES: [&str; 12] =
    ["1.0", "1.1", "1.5", "1.6", "1.7", "1.8", "1.9", "1.10", "1.11", "1.12", "1.13", "1.14"];

/// The implementation of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The Rust function of the same name.
    Implemented,
    /// Does nothing.
    Nothing,
    /// Returns NULL or 0, and sets errno to `ENOSYS`.
    Null,
    /// Returns `ENOSYS`.
    Enosys,
    /// Returns -1, and sets errno to `ENOSYS`.
    MinusOne,
    /// A byte of zero.
    ZeroByte,
}

/// One export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// Its version node: one of [`PUBLIC_NODES`] or a private one, with the prefix `IBVERBS_`, or [`OWN_NODE`].
    pub node: String,
    /// The implementation.
    pub kind: Kind,
    /// Programs that ask for the name without a version get another one.
    pub hidden: bool,
}

/// Every export of [`LIST`]; a private one once for each of [`PRIVATE_NUMBERS`].
///
/// # Errors
/// The line that is not understood.
pub fn exports() -> Result<Vec<Symbol>, String> {
    let mut node = "";
    let mut found = Vec::new();
    for line in LIST.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            node = name;
        } else if node == "PRIVATE" {
            found.extend(PRIVATE_NUMBERS.map(|number| private(line, number)));
        } else if node == OWN_NODE {
            found.push(symbol(line, node.to_owned()));
        } else {
            found.push(symbol(line, format!("IBVERBS_{node}")));
        }
    }
    found.into_iter().collect()
}

/// As many of a private symbol as there are numbers: the first is what a link editor finds.
fn private(line: &str, number: u32) -> Result<Symbol, String> {
    let line = line.replace('%', &number.to_string());
    let symbol = symbol(&line, format!("IBVERBS_PRIVATE_{number}"))?;
    Ok(Symbol { hidden: number != PRIVATE_NUMBERS[0] && !line.contains(&number.to_string()), ..symbol })
}

fn symbol(line: &str, node: String) -> Result<Symbol, String> {
    let (name, kind) = match line.split_once('=') {
        Some((name, kind)) => (name.trim(), stub(kind.trim()).ok_or(line)?),
        None => (line, Kind::Implemented),
    };
    let (name, hidden) = name.strip_prefix('-').map_or((name, false), |name| (name, true));
    Ok(Symbol { name: name.to_owned(), node, kind, hidden })
}

fn stub(kind: &str) -> Option<Kind> {
    Some(match kind {
        "nothing" => Kind::Nothing,
        "null" => Kind::Null,
        "enosys" => Kind::Enosys,
        "minus_one" => Kind::MinusOne,
        "zero_byte" => Kind::ZeroByte,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_list_holds_what_rdma_core_44_exports() {
        let exports = exports().unwrap();
        let public = exports.iter().filter(|symbol| !symbol.node.contains("PRIVATE")).count();
        assert_eq!(public, 109);
        assert!(exports.iter().any(|symbol| symbol.name == "verbs_register_driver_59"));
    }

    #[test]
    fn a_name_has_one_default_version_and_each_version_once() {
        let exports = exports().unwrap();
        let mut versions = HashSet::new();
        let mut defaults = HashSet::new();
        for symbol in exports {
            assert!(versions.insert((symbol.name.clone(), symbol.node)), "{}", symbol.name);
            assert!(symbol.hidden || defaults.insert(symbol.name.clone()), "{}", symbol.name);
        }
    }
}
