//! The sizes and names of images that both hosts accept.

use std::io;
use std::time::Duration;

use tokio::time::timeout;

/// The length limit of one frame of a file, in bytes.
pub const PART: usize = 1024 * 1024;

/// How long the destination may take for a part, and for its answer at the end.
pub const STALL: Duration = Duration::from_secs(4);

/// The limit of runs of pages in one message.
pub const LAYOUT: usize = 100_000;

/// The limit of files of one instance.
pub const MAX_IMAGES: usize = 100_000;

/// The result of `step`, if the destination accepts data in time: the instance is stopped meanwhile.
pub async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(STALL, step).await?
}

/// Whether an image can have this name: it is a file name.
pub fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0'])
}

/// The length of the next frame of a file of which `left` bytes are left.
pub fn part_of(left: u64) -> usize {
    usize::try_from(left).unwrap_or(PART).min(PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_not_plain() {
        assert!(is_plain("pages-1.img"));
        for name in ["", ".", "..", "../x", "a/b"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
