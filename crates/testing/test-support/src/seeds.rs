//! How many seeds a simulation runs.

use std::env;

/// The variable for the part of all seeds that is run, in percent: `make check` runs fewer than `make test`.
const VARIABLE: &str = "TRANSHUME_SEEDS_PERCENT";

/// How many of `all` seeds to run: at least one, and all unless the environment asks for fewer.
///
/// # Panics
/// If its value is not a number of percent.
#[must_use]
pub fn seeds(all: u64) -> u64 {
    part_of(all, env::var(VARIABLE).ok().as_deref())
}

fn part_of(all: u64, percent: Option<&str>) -> u64 {
    let percent = percent
        .map_or(100, |text| text.parse::<u64>().unwrap_or_else(|error| panic!("{VARIABLE}={text}: {error}")));
    (all * percent).div_ceil(100).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_asks_for_a_part_of_all_seeds() {
        assert_eq!(part_of(10_000, None), 10_000);
        assert_eq!(part_of(10_000, Some("20")), 2000);
        assert_eq!(part_of(3, Some("20")), 1);
        assert_eq!(part_of(3, Some("0")), 1);
    }
}
