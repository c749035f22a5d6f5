//! Makes from the list of symbols the exports, the stubs and the linker's version map; links with
//! the SONAME that programs ask for; and names the library so that they find it.
//!
//! The exports are written in assembly because no Rust attribute gives a symbol a version: a
//! `#[no_mangle]` function lands in the unversioned base, where `dlvsym` does not look.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use verbs_abi::symbols::{Kind, OWN_NODE, PRIVATE_NUMBERS, PUBLIC_NODES, Symbol, exports};

fn main() {
    if let Err(error) = generate() {
        println!("cargo:error={error}");
    }
}

fn generate() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" {
        return Err("libibverbs is written for x86-64 only so far: its exports are jumps in assembly".into());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let exports = exports()?;
    fs::write(out.join("exports.rs"), assembly(&exports))?;
    let map = out.join("libibverbs.map");
    fs::write(&map, version_map(&exports))?;
    for argument in [
        format!("--version-script={}", map.display()),
        "--undefined-version".to_owned(),
        "-soname,libibverbs.so.1".to_owned(),
        "-z,nodelete".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
    name_the_library(&out)?;
    Ok(())
}

/// One `global_asm!` block: a jump for each function, and the hidden versions by `.symver`.
fn assembly(exports: &[Symbol]) -> String {
    let mut text = String::from("std::arch::global_asm!(\n    \".text\",\n");
    let mut operands = BTreeMap::new();
    for (number, symbol) in exports.iter().enumerate() {
        let label = if symbol.hidden { format!("transhume_hidden_{number}") } else { symbol.name.clone() };
        if symbol.kind == Kind::ZeroByte {
            data(&mut text, &label);
        } else {
            let target = target(symbol);
            operands.insert(target.clone(), path(symbol));
            function(&mut text, &label, &target);
        }
        if symbol.hidden {
            writeln!(text, "    \".symver {label}, {}@{}\",", symbol.name, symbol.node).unwrap();
        }
    }
    for (name, path) in operands {
        writeln!(text, "    {name} = sym {path},").unwrap();
    }
    text + ");\n"
}

fn function(text: &mut String, label: &str, target: &str) {
    for line in [
        format!(".globl {label}"),
        format!(".type {label}, @function"),
        format!("{label}: jmp {{{target}}}"),
        format!(".size {label}, . - {label}"),
    ] {
        writeln!(text, "    \"{line}\",").unwrap();
    }
}

fn data(text: &mut String, label: &str) {
    for line in [
        ".bss".to_owned(),
        format!(".globl {label}"),
        format!(".type {label}, @object"),
        format!("{label}: .zero 1"),
        format!(".size {label}, 1"),
        ".text".to_owned(),
    ] {
        writeln!(text, "    \"{line}\",").unwrap();
    }
}

/// The name of the assembly operand for the target of `symbol`.
fn target(symbol: &Symbol) -> String {
    match symbol.kind {
        Kind::Implemented => format!("f_{}", symbol.name),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn path(symbol: &Symbol) -> String {
    match symbol.kind {
        Kind::Implemented => format!("crate::c::{}", symbol.name),
        Kind::MinusOne => "crate::stubs::minus_one".to_owned(),
        other => format!("crate::stubs::{}", format!("{other:?}").to_lowercase()),
    }
}

/// Each public node includes the one before it, as in rdma-core. Unnamed symbols are hidden by the version
/// script that rustc passes beside this one; a `local: *` here would hide the `.symver`s of its node.
fn version_map(exports: &[Symbol]) -> String {
    let mut text = String::new();
    let mut before = String::new();
    for node in PUBLIC_NODES {
        let names = names(exports, &format!("IBVERBS_{node}"));
        writeln!(text, "IBVERBS_{node} {{\n  global:\n{names}}}{before};").unwrap();
        before = format!(" IBVERBS_{node}");
    }
    for number in PRIVATE_NUMBERS {
        let node = format!("IBVERBS_PRIVATE_{number}");
        writeln!(text, "{node} {{\n  global:\n{}}};", names(exports, &node)).unwrap();
    }
    writeln!(text, "{OWN_NODE} {{\n  global:\n{}}};", names(exports, OWN_NODE)).unwrap();
    text
}

/// Hidden versions reach their node by `.symver`; named here too, they would become defaults.
fn names(exports: &[Symbol], node: &str) -> String {
    let of_node = exports.iter().filter(|symbol| symbol.node == node && !symbol.hidden);
    of_node.fold(String::new(), |text, symbol| text + "    " + &symbol.name + ";\n")
}

/// `lib/libibverbs.so.1` beside the built library, which cargo can only call `libibverbs.so`, and
/// `lib/libibverbs.so` for programs that open that name. Links suffice, and they can be made before
/// the library is.
fn name_the_library(out: &Path) -> io::Result<()> {
    let Some(profile) = out.ancestors().nth(3) else { return Ok(()) };
    let folder = profile.join("lib");
    fs::create_dir_all(&folder)?;
    for name in ["libibverbs.so.1", "libibverbs.so"] {
        match symlink("../libibverbs.so", folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
