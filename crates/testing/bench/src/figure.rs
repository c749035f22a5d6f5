//! Parses the output of perftest, UCX's benchmark and `fabric_perf`: the median one-way latency in microseconds,
//! the average bandwidth in MiB/s, or millions of messages per second.

use anyhow::{Context as _, Result};

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Half a round trip, the median.
    Latency,
    /// One direction, the average.
    Bandwidth,
    /// Messages in one direction, the average.
    Rate,
}

impl Quantity {
    /// The unit of its figure.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Latency => "us",
            Self::Bandwidth => "MiB/s",
            Self::Rate => "M/s",
        }
    }
}

/// The figure in perftest's output.
///
/// # Errors
/// If it is missing.
pub fn of_perftest(lines: &[String], quantity: Quantity) -> Result<f64> {
    let column = match quantity {
        Quantity::Latency => "t_typical[usec]",
        Quantity::Bandwidth => "BW average[MB/sec]",
        Quantity::Rate => "MsgRate[Mpps]",
    };
    let headings = |line: &&String| line.contains(column);
    let heading = lines.iter().find(headings).with_context(|| format!("no column {column} in {lines:?}"))?;
    let at = columns(heading).iter().position(|name| name == column).context("no such column")?;
    let values = lines.iter().skip_while(|line| !line.contains(column)).skip(1);
    let row = values.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut row = row.filter(|words| words.first().is_some_and(|word| word.parse::<u64>().is_ok()));
    let row = row.next().with_context(|| format!("no result in {lines:?}"))?;
    row.get(at).and_then(|word| word.parse().ok()).with_context(|| format!("no {column} in {row:?}"))
}

/// The column names of a heading. They are separated by two spaces, or by one after a unit.
fn columns(heading: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut open = false;
    for word in heading.split_whitespace() {
        match names.last_mut() {
            Some(last) if open => *last = format!("{last} {word}"),
            _ => names.push(word.to_owned()),
        }
        // The first word of `BW peak[MB/sec]` or `BW average[MB/sec]`.
        open = word == "BW";
    }
    names
}

/// The figure in the output of `ucx_perftest -f -v`.
///
/// # Errors
/// If it is missing.
pub fn of_ucx(lines: &[String], quantity: Quantity) -> Result<f64> {
    let (column, scale) = match quantity {
        Quantity::Latency => ("50.0_percentile_lat", 1.0),
        Quantity::Bandwidth => ("overall_bw", 1.0),
        Quantity::Rate => ("overall_mr", 1e6),
    };
    let heading = lines.iter().position(|line| line.contains(column));
    let heading = heading.with_context(|| format!("no column {column} in {lines:?}"))?;
    let at = lines[heading].split(',').position(|name| name.trim() == column).context("no such column")?;
    let row = lines.get(heading + 1).with_context(|| format!("no result in {lines:?}"))?;
    let figure: Option<f64> = row.split(',').nth(at).and_then(|word| word.trim().parse().ok());
    figure.map(|figure| figure / scale).with_context(|| format!("no {column} in {row}"))
}

/// The figure in the output of `fabric_perf`.
///
/// # Errors
/// If it is missing.
pub fn of_fabric_perf(lines: &[String], quantity: Quantity) -> Result<f64> {
    let name = match quantity {
        Quantity::Latency => "latency_us",
        Quantity::Bandwidth => "bandwidth_mib_s",
        Quantity::Rate => "rate_m_s",
    };
    let words = lines.iter().flat_map(|line| line.split_whitespace());
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.next().and_then(|value| value.parse().ok()).with_context(|| format!("no {name} in {lines:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn perftest_latency_and_bandwidth_are_found() {
        let latency = lines(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
             99% percentile[usec]   99.9% percentile[usec] \n 2       1000          0.80           3.40         \
             0.84     \t       0.86        \t0.10\t\t1.18\t\t3.40   ",
        );
        assert!((of_perftest(&latency, Quantity::Latency).unwrap() - 0.84).abs() < 1e-9);
        let bandwidth = lines(
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      1000   \
             11000.50           10999.25		   0.175988",
        );
        assert!((of_perftest(&bandwidth, Quantity::Bandwidth).unwrap() - 10999.25).abs() < 1e-9);
        assert!((of_perftest(&bandwidth, Quantity::Rate).unwrap() - 0.175_988).abs() < 1e-9);
    }

    #[test]
    fn ucx_latency_and_bandwidth_are_found() {
        let output = lines(
            "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
             5000,0.030,73.148,73.148,854.43,855.50,13671,13671",
        );
        assert!((of_ucx(&output, Quantity::Latency).unwrap() - 0.03).abs() < 1e-9);
        assert!((of_ucx(&output, Quantity::Bandwidth).unwrap() - 855.5).abs() < 1e-9);
        assert!((of_ucx(&output, Quantity::Rate).unwrap() - 0.013_671).abs() < 1e-9);
    }

    #[test]
    fn libfabric_latency_and_bandwidth_are_found() {
        let latency = of_fabric_perf(&lines("latency_us=8.3601"), Quantity::Latency).unwrap();
        assert!((latency - 8.3601).abs() < 1e-9);
        let output = lines("bandwidth_mib_s=450.1250 rate_m_s=0.007202");
        assert!((of_fabric_perf(&output, Quantity::Bandwidth).unwrap() - 450.125).abs() < 1e-9);
        assert!((of_fabric_perf(&output, Quantity::Rate).unwrap() - 0.007_202).abs() < 1e-9);
        assert!(of_fabric_perf(&output, Quantity::Latency).is_err());
    }

    #[test]
    fn output_without_a_figure_is_an_error() {
        assert!(of_perftest(&lines("nothing"), Quantity::Latency).is_err());
        assert!(of_ucx(&lines("overall_bw"), Quantity::Bandwidth).is_err());
        assert!(of_fabric_perf(&lines("rate_m_s="), Quantity::Rate).is_err());
    }
}
