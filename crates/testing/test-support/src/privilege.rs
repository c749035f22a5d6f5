//! Tests that need a privilege, or a feature of the kernel.

use std::env;

/// Whether this process may do everything.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Tells why a test returns without having tested anything. Only an ordinary user may skip a test.
///
/// # Panics
/// As root and in CI: a test that does not run there runs nowhere.
pub fn skip(reason: &str) {
    if let Some(place) = where_every_test_runs(is_root(), env::var("CI").ok().as_deref()) {
        panic!("this test does not run here: {reason} ({place})");
    }
    eprintln!("skipped: {reason}");
}

fn where_every_test_runs(root: bool, ci: Option<&str>) -> Option<&'static str> {
    if !matches!(ci, None | Some("" | "false")) {
        return Some("CI skips no test");
    }
    root.then_some("root skips no test")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ordinary_user_outside_ci_skips_a_test() {
        assert_eq!(where_every_test_runs(false, None), None);
        assert_eq!(where_every_test_runs(false, Some("false")), None);
        assert!(where_every_test_runs(false, Some("true")).is_some());
        assert!(where_every_test_runs(true, None).is_some());
        assert!(where_every_test_runs(true, Some("false")).is_some());
    }
}
