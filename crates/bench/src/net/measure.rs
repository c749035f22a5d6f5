//! What is measured of a path.

use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::program::{Program, run};
use serde::Deserialize;

use super::ground::Ground;
use super::ping::Ping;
use super::{Path, RECEIVER, SENDER};
use crate::report::median;

/// How long iperf3 may take in addition to the time that it measures: on a lossy path its first packets may have to be
/// repeated, and each time later.
const LIMIT: Duration = Duration::from_secs(30);

/// Where iperf3 listens.
const PORT: u16 = 5201;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// So many TCP streams at once, of whose packets so many percent are lost.
    Streams {
        /// How many.
        count: u8,
        /// Lost packets of a hundred, in each direction.
        loss: u8,
    },
    /// Datagrams of 64 bytes, as many as can be sent: those that arrive.
    Datagrams,
    /// Half a round trip of a small datagram, the median.
    Latency,
}

/// All of them.
pub const QUANTITIES: [Quantity; 6] = [
    Quantity::Streams { count: 1, loss: 0 },
    Quantity::Streams { count: 16, loss: 0 },
    Quantity::Datagrams,
    Quantity::Latency,
    Quantity::Streams { count: 1, loss: 1 },
    Quantity::Streams { count: 1, loss: 5 },
];

/// What iperf3's server says in the end.
#[derive(Deserialize)]
struct Said {
    end: Option<End>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct End {
    sum_received: Option<Received>,
}

/// What it has received.
#[derive(Debug, PartialEq, Deserialize)]
struct Received {
    bytes: f64,
    seconds: f64,
}

/// Bytes of one of [`Quantity::Datagrams`].
const DATAGRAM: u8 = 64;

impl Quantity {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> String {
        let streams =
            |count| if count == 1 { "one TCP stream".into() } else { format!("{count} TCP streams") };
        match self {
            Self::Streams { count, loss: 0 } => streams(count),
            Self::Streams { count, loss } => format!("{}, {loss} % loss", streams(count)),
            Self::Datagrams => format!("datagrams of {DATAGRAM} bytes"),
            Self::Latency => "one-way latency added".into(),
        }
    }

    /// The unit of its figure.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Streams { .. } => "Gbit/s",
            Self::Datagrams => "1000/s",
            Self::Latency => "us",
        }
    }

    /// So many lost packets of a hundred.
    #[must_use]
    pub fn loss(self) -> u8 {
        match self {
            Self::Streams { loss, .. } => loss,
            _ => 0,
        }
    }

    /// Into how many parts a run is divided: what is subtracted from each other has to see the same moment.
    #[must_use]
    pub fn parts(self) -> u16 {
        if self == Self::Latency { 10 } else { 1 }
    }

    /// The figure of `path`, on a path that loses what it should. iperf3 knows only whole seconds.
    ///
    /// # Errors
    /// If a program fails, or nothing comes through.
    pub fn measure(self, ground: &Ground, path: &Path, time: Duration) -> Result<f64> {
        match self {
            Self::Streams { count, .. } => {
                let received = iperf3(ground, path, time, &["-P", &count.to_string()])?;
                Ok(received.bytes * 8.0 / received.seconds / 1e9)
            }
            Self::Datagrams => {
                let datagrams = ["--udp", "--length", &DATAGRAM.to_string(), "--bitrate", "0"];
                let received = iperf3(ground, path, time, &datagrams)?;
                Ok(received.bytes / f64::from(DATAGRAM) / received.seconds / 1e3)
            }
            Self::Latency => {
                let times = ping(ground, path)?.round_trips(time)?;
                Ok(median(&times) / 2.0)
            }
        }
    }
}

/// Waits until something comes through `path`.
///
/// # Errors
/// If nothing does within `limit`.
pub fn wait(ground: &Ground, path: &Path, limit: Duration) -> Result<()> {
    ping(ground, path)?.wait(limit)
}

fn ping(ground: &Ground, path: &Path) -> Result<Ping> {
    Ok(Ping::new(&ground.namespace(SENDER)?, &ground.namespace(RECEIVER)?, path.address)?)
}

/// Sends for so long with these options.
fn iperf3(ground: &Ground, path: &Path, time: Duration, options: &[&str]) -> Result<Received> {
    let port = PORT.to_string();
    let mut server = ground.command(RECEIVER, "iperf3")?;
    let mut server = Program::start(server.args(["--server", "--one-off", "--json", "--port", &port]))?;
    server.wait_for_listener(PORT, LIMIT)?;
    let mut client = ground.command(SENDER, "iperf3")?;
    client.args([
        "--client",
        &path.address.to_string(),
        "--port",
        &port,
        "--time",
        &time.as_secs().to_string(),
    ]);
    run(client.args(options), LIMIT + time)?;
    received(&server.end(LIMIT)?.lines.join("\n"))
}

/// What the server has received, as it says itself: its client counts what it has sent.
fn received(output: &str) -> Result<Received> {
    let said: Said = serde_json::from_str(output).with_context(|| format!("iperf3 says `{output}`"))?;
    let received = said.end.and_then(|end| end.sum_received);
    received
        .filter(|it| it.seconds > 0.0)
        .with_context(|| said.error.unwrap_or("iperf3 has no figure".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_counts_and_not_what_was_sent() {
        let output = r#"{"start": {}, "intervals": [], "end": {"streams": [], "sum": {"bytes": 0, "seconds": 1.0},
            "sum_sent": {"bytes": 9999, "seconds": 1.0}, "sum_received": {"start": 0, "bytes": 6400, "seconds": 2.0}}}"#;
        assert_eq!(received(output).unwrap(), Received { bytes: 6400.0, seconds: 2.0 });
    }

    #[test]
    fn no_figure_is_an_error_that_says_why() {
        let failed = received(r#"{"end": {}, "error": "unable to receive control message"}"#).unwrap_err();
        assert!(failed.to_string().contains("control message"), "{failed}");
        assert!(received("").is_err());
        assert!(received(r#"{"end": {"sum_received": {"bytes": 0, "seconds": 0}}}"#).is_err());
    }

    #[test]
    fn no_two_quantities_have_one_name() {
        let names: std::collections::HashSet<_> = QUANTITIES.iter().map(|quantity| quantity.name()).collect();
        assert_eq!(names.len(), QUANTITIES.len());
    }
}
