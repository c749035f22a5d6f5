//! The host's wish to be emptied: a file that an operator or a script makes, for a maintenance, a failing disk or a pre-emption.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The longest reason, in bytes.
const MAX_REASON: u64 = 200;

/// The first line of the file, if it exists.
pub fn reason(file: &Path) -> Option<String> {
    let file = File::open(file).ok()?;
    let mut text = Vec::new();
    file.take(MAX_REASON).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    match text.lines().next().map(str::trim) {
        None | Some("") => Some("no reason is given".into()),
        Some(line) => Some(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_line_is_the_reason_and_without_the_file_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("leave");
        assert_eq!(reason(&file), None);
        fs::write(&file, "").unwrap();
        assert_eq!(reason(&file).unwrap(), "no reason is given");
        fs::write(&file, format!("  a disk fails {}\nmore", "x".repeat(300))).unwrap();
        let found = reason(&file).unwrap();
        assert!(found.starts_with("a disk fails x") && found.len() == MAX_REASON as usize - 2, "{found}");
    }
}
