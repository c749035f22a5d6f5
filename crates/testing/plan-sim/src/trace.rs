//! Recorded loads as CSV: `seconds,kind,of,value`, in the order of time.
//!
//! `cpu` tells thousandths of a processor of the instance `of`, and `traffic` bytes a second of the flow `of`; both are numbers, beginning
//! with 0. A value holds until the next one, and is 0 before the first. Empty lines and those that begin with `#` count as comments.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;

use crate::cluster::Cluster;

/// Values with the times in seconds from which they hold.
type Series = Vec<(u64, u64)>;

/// A recorded load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    cpu: Vec<Series>,
    traffic: Vec<Series>,
}

impl Trace {
    /// Reads a trace of `cluster`.
    ///
    /// # Errors
    /// If a line is no value, or not of this cluster.
    pub fn parse(text: &str, cluster: &Cluster) -> Result<Self> {
        let mut trace = Self {
            cpu: vec![Series::new(); cluster.instances.len()],
            traffic: vec![Series::new(); cluster.flows.len()],
        };
        let lines = text.lines().zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        for (line, number) in lines {
            trace.add(line).with_context(|| format!("line {number}: {line:?}"))?;
        }
        Ok(trace)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let parts: Vec<&str> = line.split(',').collect();
        let [seconds, kind, of, value] = parts[..] else { bail!("use seconds,kind,of,value") };
        let all = match kind {
            "cpu" => &mut self.cpu,
            "traffic" => &mut self.traffic,
            _ => bail!("the kind is cpu or traffic"),
        };
        let series = all.get_mut(of.parse::<usize>()?).with_context(|| format!("there is no number {of}"))?;
        let seconds = seconds.parse()?;
        ensure!(
            series.last().is_none_or(|(last, _)| *last <= seconds),
            "it is earlier than the line before it"
        );
        series.push((seconds, value.parse()?));
        Ok(())
    }

    /// A generated example: loads follow the hours of the day, and now and then an application begins or ends.
    #[must_use]
    pub fn example(cluster: &Cluster, hours: u64, seed: u64) -> String {
        const EVERY: u64 = 900;
        let mut rng = Rng::with_seed(seed);
        let mut text = String::from("# seconds,kind,of,value\n");
        for seconds in (0..hours * 3600).step_by(EVERY as usize) {
            // In permille: the night has a third of the noon.
            let day = 667 + (333.0 * (seconds as f64 / 86_400.0 * std::f64::consts::TAU).sin()) as u64;
            let mut add = |kind, of, usual: u64, share: u64| {
                // Most values hold for hours.
                if seconds == 0 || rng.u64(..100) < share {
                    let value = if rng.u8(..20) == 0 { 0 } else { usual * day / 1000 };
                    writeln!(text, "{seconds},{kind},{of},{value}").expect("memory takes everything");
                }
            };
            cluster.needs.iter().enumerate().for_each(|(of, need)| add("cpu", of, need.cpu, 20));
            cluster.flows.iter().enumerate().for_each(|(of, flow)| add("traffic", of, flow.rate, 5));
        }
        text
    }

    /// Thousandths of a processor of an instance.
    #[must_use]
    pub fn cpu(&self, instance: usize, seconds: u64) -> u64 {
        value(&self.cpu[instance], seconds)
    }

    /// Bytes a second of a flow.
    #[must_use]
    pub fn rate(&self, flow: usize, seconds: u64) -> u64 {
        value(&self.traffic[flow], seconds)
    }
}

fn value(series: &Series, seconds: u64) -> u64 {
    let later = series.partition_point(|(from, _)| *from <= seconds);
    later.checked_sub(1).map_or(0, |last| series[last].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_hold_until_the_next_one_and_wrong_lines_are_named() {
        let cluster = Cluster::generate(2, 4, 1).unwrap();
        let trace =
            Trace::parse("# a comment\n10,cpu,1,500\n20,cpu,1,0\n10,traffic,0,7\n", &cluster).unwrap();
        let cpu = [9, 10, 19, 20].map(|seconds| trace.cpu(1, seconds));
        assert_eq!((cpu, trace.cpu(0, 99), trace.rate(0, 99)), ([0, 500, 500, 0], 0, 7));
        for (wrong, why) in [
            ("1,cpu,0", "use seconds,kind,of,value"),
            ("1,disk,0,1", "cpu or traffic"),
            ("1,cpu,9,1", "no number 9"),
            ("2,cpu,0,1\n1,cpu,0,1", "line 2"),
            ("x,cpu,0,1", "invalid digit"),
        ] {
            let error = format!("{:#}", Trace::parse(wrong, &cluster).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_example_can_be_read() {
        let cluster = Cluster::generate(4, 20, 1).unwrap();
        let trace = Trace::parse(&Trace::example(&cluster, 3, 1), &cluster).unwrap();
        assert!((0..20).any(|instance| trace.cpu(instance, 0) > 0));
    }
}
