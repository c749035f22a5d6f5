//! Reads the reason of a failure from the log of CRIU.

/// The first meaningful errors of a log, in one line.
pub fn reason_in(log: &str) -> Option<String> {
    const MOST: usize = 3;
    let told = log.lines().filter_map(message_of).filter(|message| !is_noise(message));
    let mut told: Vec<&str> = told.take(MOST).collect();
    told.dedup();
    (!told.is_empty()).then(|| told.join("; "))
}

/// `(00.021342) Error (criu/kerndat.c:732): Unable …` → `Unable …`
fn message_of(line: &str) -> Option<&str> {
    line.split_once("Error (")?.1.split_once("): ").map(|(_, message)| message.trim())
}

/// Whether a message appears in every run, or only refers to earlier ones.
fn is_noise(message: &str) -> bool {
    message.starts_with("rlimit: Can't setup RLIMIT_NOFILE")
        || message.starts_with("Dumping FAILED")
        || message.starts_with("Restoring FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_first_error() {
        let log = "(00.1) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self\n\
                   (00.2) Warn  (criu/x.c:1): no matter\n\
                   (00.3) Error (criu/files.c:9): Can't dump file 5\n\
                   (00.4) Error (criu/cr-dump.c:9): Dumping FAILED.\n";
        assert_eq!(reason_in(log).unwrap(), "Can't dump file 5");
        assert_eq!(reason_in("(00.2) Warn  (criu/x.c:1): no matter"), None);
    }
}
