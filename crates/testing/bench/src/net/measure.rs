//! The measurements of a path.

use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::program::Program;
use serde::Deserialize;

use super::awake::Awake;
use super::ground::Ground;
use super::ping::Ping;
use super::{Path, RECEIVER, SENDER};
use crate::report::median;

/// How long iperf3 may take in addition to the time that it measures: on a lossy path its first packets may have to be
/// repeated, and each time later.
const LIMIT: Duration = Duration::from_secs(30);

/// The port of iperf3, and that of the traffic beside it.
const PORT: u16 = 5201;
const PORT_BESIDE: u16 = 5202;

/// The quantity that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// So many TCP streams at once, with so many percent of their packets lost.
    Streams {
        /// How many.
        count: u8,
        /// Lost packets of a hundred, in each direction.
        loss: u8,
    },
    /// Datagrams of 64 bytes, as many as can be sent; counts the datagrams that arrive.
    Datagrams,
    /// Datagrams as long as the path carries, as many as can be sent, which are more than fit.
    Flood(Flood),
    /// Half a round trip of a small datagram, the median.
    Latency {
        /// Processors do not sleep meanwhile when they have nothing to do.
        awake: bool,
    },
}

/// The measurements of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// The datagrams that arrive.
    Received,
    /// The lost datagrams of a hundred.
    Lost,
    /// The rate of a TCP stream beside it.
    Beside,
}

/// All of them.
pub const QUANTITIES: [Quantity; 11] = [
    Quantity::Streams { count: 1, loss: 0 },
    Quantity::Streams { count: 16, loss: 0 },
    Quantity::Datagrams,
    Quantity::Latency { awake: false },
    Quantity::Latency { awake: true },
    Quantity::Streams { count: 1, loss: 1 },
    Quantity::Streams { count: 1, loss: 5 },
    Quantity::Streams { count: 16, loss: 1 },
    Quantity::Flood(Flood::Received),
    Quantity::Flood(Flood::Lost),
    Quantity::Flood(Flood::Beside),
];

/// The final report of iperf3's server.
#[derive(Deserialize)]
struct Said {
    end: Option<End>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct End {
    sum_received: Option<Received>,
}

/// The received bytes.
#[derive(Debug, PartialEq, Deserialize)]
struct Received {
    bytes: f64,
    seconds: f64,
    /// Of datagrams.
    lost_percent: Option<f64>,
}

/// The options for datagrams of a flood: iperf3 makes them as long as the path carries.
const FLOOD: [&str; 3] = ["--udp", "--bitrate", "0"];

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
            Self::Flood(Flood::Received) => "flood of datagrams".into(),
            Self::Flood(Flood::Lost) => "flood of datagrams, lost".into(),
            Self::Flood(Flood::Beside) => "one TCP stream beside a flood".into(),
            Self::Latency { awake: false } => "one-way latency added".into(),
            Self::Latency { awake: true } => "one-way latency added, all awake".into(),
        }
    }

    /// The unit of its figure.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Streams { .. } | Self::Flood(Flood::Received | Flood::Beside) => "Gbit/s",
            Self::Flood(Flood::Lost) => "%",
            Self::Datagrams => "1000/s",
            Self::Latency { .. } => "us",
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

    /// Whether it is one of a path that the bare one is a part of.
    #[must_use]
    pub fn is_latency(self) -> bool {
        matches!(self, Self::Latency { .. })
    }

    /// How many parts a run has: figures that are subtracted from each other must come from the same moment.
    #[must_use]
    pub fn parts(self) -> u16 {
        if self.is_latency() { 10 } else { 1 }
    }

    /// The figure of `path`, on a path with loss on purpose. iperf3 knows only whole seconds.
    ///
    /// # Errors
    /// If a program fails, or nothing comes through.
    pub fn measure(self, ground: &Ground, path: &Path, time: Duration) -> Result<f64> {
        match self {
            Self::Streams { count, .. } => {
                Ok(iperf3(ground, path, time, &["-P", &count.to_string()])?.gigabits())
            }
            Self::Datagrams => {
                let datagrams = ["--udp", "--length", &DATAGRAM.to_string(), "--bitrate", "0"];
                let received = iperf3(ground, path, time, &datagrams)?;
                Ok(received.bytes / f64::from(DATAGRAM) / received.seconds / 1e3)
            }
            Self::Flood(Flood::Received) => Ok(iperf3(ground, path, time, &FLOOD)?.gigabits()),
            Self::Flood(Flood::Lost) => {
                iperf3(ground, path, time, &FLOOD)?.lost_percent.context("iperf3 does not report losses")
            }
            Self::Flood(Flood::Beside) => {
                let flood = Transfer::start(ground, path, PORT_BESIDE, time, &FLOOD)?;
                let received = iperf3(ground, path, time, &[])?;
                flood.end(time)?;
                Ok(received.gigabits())
            }
            Self::Latency { awake } => {
                let _awake = awake.then(Awake::keep).transpose()?;
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

impl Received {
    /// Gbit/s.
    fn gigabits(&self) -> f64 {
        self.bytes * 8.0 / self.seconds / 1e9
    }
}

/// Sends for so long with these options.
fn iperf3(ground: &Ground, path: &Path, time: Duration, options: &[&str]) -> Result<Received> {
    Transfer::start(ground, path, PORT, time, options)?.end(time)
}

/// The traffic that iperf3 sends.
struct Transfer {
    server: Program,
    client: Program,
}

impl Transfer {
    fn start(ground: &Ground, path: &Path, port: u16, time: Duration, options: &[&str]) -> Result<Self> {
        let number = port.to_string();
        let mut server = ground.command(RECEIVER, "iperf3")?;
        let mut server = Program::start(server.args(["--server", "--one-off", "--json", "--port", &number]))?;
        server.wait_for_listener(port, LIMIT)?;
        let mut client = ground.command(SENDER, "iperf3")?;
        let (address, seconds) = (path.address.to_string(), time.as_secs().to_string());
        client.args(["--client", &address, "--port", &number, "--time", &seconds]).args(options);
        Ok(Self { server, client: Program::start(&mut client)? })
    }

    /// The received amount, at the end.
    fn end(self, time: Duration) -> Result<Received> {
        self.client.end(LIMIT + time)?.success()?;
        received(&self.server.end(LIMIT)?.lines.join("\n"))
    }
}

/// The received amount, as the server reports it: the client reports the sent amount.
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
    fn the_received_bytes_count_and_not_the_sent_ones() {
        let output = r#"{"start": {}, "intervals": [], "end": {"streams": [], "sum": {"bytes": 0, "seconds": 1.0},
            "sum_sent": {"bytes": 9999, "seconds": 1.0}, "sum_received": {"start": 0, "bytes": 6400, "seconds": 2.0}}}"#;
        let expected = Received { bytes: 6400.0, seconds: 2.0, lost_percent: None };
        assert_eq!(received(output).unwrap(), expected);
    }

    #[test]
    fn lost_datagrams_are_counted() {
        let output = r#"{"end": {"sum_received": {"bytes": 1e9, "seconds": 4.0, "lost_packets": 1, "lost_percent": 12.5}}}"#;
        let received = received(output).unwrap();
        assert_eq!((received.gigabits(), received.lost_percent), (2.0, Some(12.5)));
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
