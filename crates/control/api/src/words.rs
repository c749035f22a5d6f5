/// A duration as text, rounded up to a sensible unit.
#[must_use]
pub fn in_words(seconds: u64) -> String {
    let minutes = seconds.div_ceil(60);
    match minutes {
        0..=2 => format!("{seconds} s"),
        3..=120 => format!("{minutes} min"),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_by_length() {
        let expected = [
            (0, "0 s"),
            (120, "120 s"),
            (121, "3 min"),
            (7200, "120 min"),
            (7201, "2 h 1 min"),
            (10_800, "3 h 0 min"),
        ];
        for (seconds, words) in expected {
            assert_eq!(in_words(seconds), words);
        }
    }
}
