//! Reads `/proc/PID/maps`.

/// The address range and the path of a line of `/proc/PID/maps` that maps a file by path.
pub fn range_and_path(line: &str) -> Option<(&str, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let path = rest.splitn(5, ' ').nth(4)?.trim_start();
    path.starts_with('/').then_some((range, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_hold_blanks() {
        let line = "7f00-7f10 r-xp 00000000 fe:00 123                        /opt/my lib.so";
        assert_eq!(range_and_path(line), Some(("7f00-7f10", "/opt/my lib.so")));
        assert_eq!(range_and_path("7f00-7f10 rw-p 00000000 00:00 0 "), None);
        assert_eq!(range_and_path("7f00-7f10 rw-p 00000000 00:00 0      [heap]"), None);
    }
}
