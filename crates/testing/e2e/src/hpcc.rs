//! HPC Challenge, with one problem of each kind.

use anyhow::{Result, ensure};

/// Its input file, in its working directory.
pub const INPUT: &str = "hpccinf.txt";

/// Its output file.
pub const OUTPUT: &str = "hpccoutf.txt";

/// The input for two by two ranks; `size` is that of the largest matrix.
#[must_use]
pub fn input(size: u32) -> String {
    let head = "HPL\nTranshume\nHPL.out output\n8 device\n1 sizes\n";
    let middle = "1 blocks\n40 block\n0 mapping\n1 grids\n2 P\n2 Q\n16.0 threshold\n1 factorizations\n1 right\n1 criteria\n\
                  4 least\n1 panels\n2 divisions\n1 recursive\n1 recursion\n1 broadcasts\n1 ring\n1 depths\n1 depth\n2 swap\n64 threshold\n\
                  0 transposed\n0 transposed\n1 equilibration\n8 alignment\n";
    let transpose = "ignored\n0 more sizes\n1200 size\n0 more blocks\n40 block\n";
    format!("{head}{size} N\n{middle}{transpose}")
}

/// Whether all its own checks have passed, by its output. It reports success, too, if a matrix is not transposed at all.
///
/// # Errors
/// If one has not, or is missing.
pub fn check(output: &str) -> Result<()> {
    let is_right = output.contains("\nSuccess=1\n") && output.contains("End of HPC Challenge tests");
    let is_right = is_right && output.contains("PASSED") && !output.contains("PTRANS_n=-1");
    ensure!(is_right && !output.contains("FAILED"), "the checks of HPC Challenge failed:\n{output}");
    Ok(())
}

/// The lines in which it tells what it has checked.
pub fn checks(output: &str) -> impl Iterator<Item = &str> {
    let words = ["PASSED", "Found", "Success=", "Scaled residual:"];
    output.lines().filter(move |line| words.iter().any(|word| line.contains(word)))
}
