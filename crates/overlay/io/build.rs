//! Compiles the overlay's programs for the kernel (`src/kernel/programs.c`), if clang is installed. Without it nothing
//! is missing but speed: the object is empty then.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

const SOURCE: &str = "src/kernel/programs.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    let folder = env::var("OUT_DIR").expect("cargo says where");
    let object = Path::new(&folder).join("programs.o");
    if let Err(reason) = compile(&object) {
        println!("cargo::warning=links that are not sealed will be slower: {reason}");
        // A file that there is not lets cargo try it each time, until there is a clang.
        println!("cargo::rerun-if-changed={folder}/none");
        fs::write(&object, []).expect("the folder can be written to");
    }
}

fn compile(object: &Path) -> Result<(), String> {
    // The folder of Debian's <asm/types.h>: clang searches only the folder of its target, which is no
    // machine.
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo says which");
    let includes = format!("/usr/include/{machine}-linux-gnu");
    let mut clang = Command::new("clang");
    clang.args(["--target=bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra"]);
    clang.args(["-idirafter", &includes, "-c", SOURCE, "-o"]).arg(object);
    let compiled = clang.output().map_err(|error| format!("clang cannot be run: {error}"))?;
    if compiled.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&compiled.stderr);
    Err(format!("clang does not compile {SOURCE}: {}", said.lines().take(3).collect::<Vec<_>>().join(" ")))
}
