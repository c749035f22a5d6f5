//! The processor of this host, as far as a guest can see it that has the CPU model `host`.

use std::fs;
use std::io;

/// Lines of `/proc/cpuinfo` that say what a processor can do.
const FIELDS: [&str; 5] = ["vendor_id", "cpu family", "model", "model name", "flags"];

/// The identity of a processor: equal on two hosts if a guest can move between them with all the features of the one.
pub fn identity() -> io::Result<Vec<String>> {
    Ok(parse(&fs::read_to_string("/proc/cpuinfo")?))
}

fn parse(text: &str) -> Vec<String> {
    let first = text.lines().take_while(|line| !line.is_empty());
    let fields =
        first.filter_map(|line| line.split_once(':')).map(|(name, value)| (name.trim(), value.trim()));
    fields.filter(|(name, _)| FIELDS.contains(name)).map(|(_, value)| value.to_owned()).collect()
}

/// Whether a CPU model stands for whatever the host has.
pub fn is_hosts_own(cpu_model: &str) -> bool {
    let name = cpu_model.split(',').next().unwrap_or_default();
    matches!(name, "host" | "max")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_differ_by_a_feature_and_not_by_their_speed() {
        let text = |flags: &str, mhz: &str| {
            format!(
                "processor : 0\nmodel\t: 6\nmodel name : X\ncpu MHz : {mhz}\nflags : {flags}\n\nflags : other\n"
            )
        };
        assert_eq!(parse(&text("sse avx", "1000")), parse(&text("sse avx", "2000")));
        assert_ne!(parse(&text("sse avx", "1000")), parse(&text("sse", "1000")));
        assert_eq!(parse(&text("sse", "1")), ["6", "X", "sse"]);
    }

    #[test]
    fn models_of_the_host_are_recognized_with_features() {
        assert!(is_hosts_own("host") && is_hosts_own("host,-avx") && !is_hosts_own("Nehalem"));
    }
}
