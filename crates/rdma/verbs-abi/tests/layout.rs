//! Holds every structure against the C compiler and the installed `verbs.h`.
//!
//! Newer headers append to structures, and put new functions before [`verbs_abi::verbs_context`];
//! its fields are therefore measured from its end.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use verbs_abi::{LAYOUTS, Layout};

/// Fields of C's anonymous unions and structures, which Rust has to name.
const RENAMED: [(&str, &str, &str); 2] = [
    ("ibv_odp_caps", "per_transport_caps", "per_transport_caps.rc_odp_caps"),
    ("rdma_addr", "ibaddr", "addr.ibaddr"),
];

fn c_field<'a>(layout: &Layout, field: &'a str) -> &'a str {
    let renamed = RENAMED.iter().find(|(of, name, _)| *of == layout.name && *name == field);
    let field = field.strip_prefix("r#").unwrap_or(field);
    renamed.map_or(field, |(_, _, c)| c)
}

fn c_program() -> String {
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for layout in LAYOUTS.iter().copied().flatten() {
        let name = layout.name;
        writeln!(text, "printf(\"{name} %zu %zu\\n\", sizeof(struct {name}), _Alignof(struct {name}));")
            .unwrap();
        for field in layout.fields {
            let c = c_field(layout, field.name);
            writeln!(text, "printf(\"{name}.{} %zu\\n\", offsetof(struct {name}, {c}));", field.name)
                .unwrap();
        }
    }
    text + "}\n"
}

fn c_numbers() -> HashMap<String, Vec<usize>> {
    let folder = std::env::temp_dir().join(format!("verbs-abi-layout-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    fs::write(&source, c_program()).unwrap();
    let built = Command::new("cc").arg("-o").arg(&program).arg(&source).status().expect("a C compiler");
    assert!(built.success(), "are libibverbs-dev and librdmacm-dev installed?");
    let output = Command::new(&program).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(parse).collect()
}

fn parse(line: &str) -> (String, Vec<usize>) {
    let mut words = line.split(' ');
    let name = words.next().unwrap().to_owned();
    (name, words.map(|number| number.parse().unwrap()).collect())
}

#[test]
fn every_structure_is_laid_out_as_in_c() {
    let c = c_numbers();
    for layout in LAYOUTS.iter().copied().flatten() {
        let [size, align] = c[layout.name][..] else { panic!("{}", layout.name) };
        assert!(size >= layout.size, "sizeof {}: C {size}, Rust {}", layout.name, layout.size);
        assert_eq!(align, layout.align, "alignof {}", layout.name);
        let grows_up = if layout.name == "verbs_context" { size - layout.size } else { 0 };
        for field in layout.fields {
            let offset = c[&format!("{}.{}", layout.name, field.name)][0];
            assert_eq!(offset, field.offset + grows_up, "offsetof {}.{}", layout.name, field.name);
        }
    }
}
