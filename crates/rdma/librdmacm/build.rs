//! Makes from `symbols.list` the exports and the linker's version map, links with the SONAME that programs ask for, and
//! names the library so that they find it. The build script of `libibverbs` says why the exports are assembly.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// A version node and its symbols.
type Node<'a> = (&'a str, Vec<&'a str>);

fn main() {
    if let Err(error) = generate() {
        println!("cargo:error={error}");
    }
}

fn generate() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=symbols.list");
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" {
        return Err("librdmacm is written for x86-64 only so far: its exports are jumps in assembly".into());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let list = fs::read_to_string("symbols.list")?;
    let nodes = parse(&list)?;
    fs::write(out.join("exports.rs"), assembly(&nodes))?;
    let map = out.join("librdmacm.map");
    fs::write(&map, version_map(&nodes))?;
    for argument in [
        format!("--version-script={}", map.display()),
        "--undefined-version".to_owned(),
        "-soname,librdmacm.so.1".to_owned(),
        "-z,nodelete".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
    name_the_library(&out)?;
    Ok(())
}

fn parse(list: &str) -> Result<Vec<Node<'_>>, String> {
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(node) => nodes.push((node, Vec::new())),
            None => nodes.last_mut().ok_or("the list does not begin with a node")?.1.push(line),
        }
    }
    Ok(nodes)
}

/// One `global_asm!` block: a jump for each function.
fn assembly(nodes: &[Node<'_>]) -> String {
    let mut text = String::from("std::arch::global_asm!(\n    \".text\",\n");
    let names = || nodes.iter().flat_map(|(_, names)| names);
    for name in names() {
        for line in [
            format!(".globl {name}"),
            format!(".type {name}, @function"),
            format!("{name}: jmp {{f_{name}}}"),
            format!(".size {name}, . - {name}"),
        ] {
            writeln!(text, "    \"{line}\",").unwrap();
        }
    }
    for name in names() {
        writeln!(text, "    f_{name} = sym crate::c::{name},").unwrap();
    }
    text + ");\n"
}

/// Each node includes the one before it, as in rdma-core.
fn version_map(nodes: &[Node<'_>]) -> String {
    let mut text = String::new();
    let mut before = String::new();
    for (node, names) in nodes {
        let names = names.iter().fold(String::new(), |text, name| text + "    " + name + ";\n");
        writeln!(text, "RDMACM_{node} {{\n  global:\n{names}}}{before};").unwrap();
        before = format!(" RDMACM_{node}");
    }
    text
}

/// `lib/librdmacm.so.1` and `lib/librdmacm.so` beside the built library.
fn name_the_library(out: &Path) -> io::Result<()> {
    let Some(profile) = out.ancestors().nth(3) else { return Ok(()) };
    let folder = profile.join("lib");
    fs::create_dir_all(&folder)?;
    for name in ["librdmacm.so.1", "librdmacm.so"] {
        match symlink("../librdmacm.so", folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
