//! Parsers of option values that several commands share.

use std::time::Duration;

/// `NAME=VALUE`
pub fn variable(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("use NAME=VALUE".to_owned()),
    }
}

/// A host in a comma-separated list.
pub fn host(text: &str) -> std::result::Result<String, String> {
    match text {
        "" => Err("a host name is missing next to a comma".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// `UID` or `UID:GID`
pub fn user(text: &str) -> std::result::Result<(u32, u32), String> {
    let (user, group) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| match text.parse() {
        Err(_) => Err("use numbers: UID or UID:GID".to_owned()),
        Ok(u32::MAX) => Err(format!("{text} is reserved: use a lower number")),
        Ok(number) => Ok(number),
    };
    Ok((number(user)?, number(group)?))
}

/// Parses a duration with its unit; returns seconds.
pub fn seconds(text: &str) -> std::result::Result<u64, String> {
    let unit = |letter| match letter {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(60 * 60),
        'd' => Some(24 * 60 * 60),
        _ => None,
    };
    let mut rest = text.chars();
    let found = rest.next_back().and_then(unit).zip(rest.as_str().parse::<u64>().ok());
    let found = found.and_then(|(unit, number)| number.checked_mul(unit));
    found.ok_or_else(|| "use a duration such as 90s, 15m, 24h or 7d".into())
}

/// Parses the time between two samples: a duration with its unit, which may be milliseconds.
pub fn interval(text: &str) -> std::result::Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(100);
    let milliseconds = text.strip_suffix("ms").and_then(|number| number.parse().ok());
    let found =
        milliseconds.map(Duration::from_millis).or_else(|| seconds(text).ok().map(Duration::from_secs));
    found
        .filter(|found| *found >= LEAST)
        .ok_or_else(|| "use a duration of at least 100ms, such as 500ms, 10s or 1m".into())
}

/// `NAME=RATE`: bytes a second, with a unit.
pub fn rate_to(text: &str) -> std::result::Result<(String, u64), String> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    amount_to(text, &units).ok_or_else(|| "use NAME=RATE, such as db=50M for 50 MiB a second".into())
}

/// `NAME=TIME`: microseconds, with a unit.
pub fn time_to(text: &str) -> std::result::Result<(String, u64), String> {
    let units = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
    amount_to(text, &units).ok_or_else(|| "use NAME=TIME, such as db=200us or db=2ms".into())
}

/// A name and a number of some units; the first unit that the text ends with counts.
fn amount_to(text: &str, units: &[(&str, u64)]) -> Option<(String, u64)> {
    let (name, amount) = text.split_once('=').filter(|(name, _)| !name.is_empty())?;
    let (number, unit) = units.iter().find_map(|(unit, size)| Some((amount.strip_suffix(unit)?, size)))?;
    let amount = number.parse::<u64>().ok()?.checked_mul(*unit).filter(|amount| *amount > 0)?;
    Some((name.to_owned(), amount))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_values_completely_or_fails() {
        assert_eq!(variable("A=b=c").unwrap(), ("A".to_owned(), "b=c".to_owned()));
        assert_eq!(variable("A=").unwrap().1, "");
        assert!(variable("A").is_err() && variable("=b").is_err());
        assert!(host("h1").is_ok() && host("").is_err());
        assert_eq!((user("7").unwrap(), user("7:8").unwrap()), ((7, 7), (7, 8)));
        assert!(user("root").is_err() && user("7:").is_err());
        assert!(user("4294967295").unwrap_err().contains("reserved") && user("0:4294967295").is_err());
    }

    #[test]
    fn an_interval_may_be_shorter_than_a_second_but_not_none() {
        let known = [("500ms", 500), ("10s", 10_000), ("1m", 60_000)];
        for (text, expected) in known {
            assert_eq!(interval(text), Ok(Duration::from_millis(expected)));
        }
        for wrong in ["0s", "99ms", "ms", "500", "-1ms"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_has_a_unit() {
        let times = [("0s", 0), ("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800)];
        for (text, expected) in times {
            assert_eq!(seconds(text), Ok(expected));
        }
        for wrong in ["", "s", "24", "-1h", "1.5h", "h24", "18446744073709551615d", "1ä"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_and_times_to_an_instance_have_a_unit() {
        let to = |amount| Ok(("db".to_owned(), amount));
        assert_eq!((rate_to("db=50M"), rate_to("db=1K")), (to(50 << 20), to(1 << 10)));
        assert_eq!(
            (time_to("db=200us"), time_to("db=2ms"), time_to("db=1s")),
            (to(200), to(2000), to(1_000_000))
        );
        for wrong in ["db", "=1M", "db=", "db=5", "db=0M", "db=-1M", "db=1.5G", "db=99999999999999999G"] {
            assert!(rate_to(wrong).is_err() && time_to(wrong).is_err(), "{wrong}");
        }
    }
}
