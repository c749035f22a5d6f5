//! The options of the demo, and the names of its instances and hosts.

use std::path::PathBuf;

use lab::LabName;

use super::traffic::Stream;

/// The instance that moves.
pub const TRAVELLER: &str = "traveller";
/// The instance that stays.
pub const HOME: &str = "home";
/// The host of the instance that stays.
pub const HOME_HOST: &str = "h2";
/// The first host of the traveller.
pub const START_HOST: &str = "h1";

/// Options of the demo.
pub struct Options {
    /// The lab to create.
    pub lab: LabName,
    /// The number of rounds.
    pub rounds: u16,
    /// The folder of a guest image, if a virtual machine travels.
    pub machine: Option<PathBuf>,
    /// Whether the result is JSON.
    pub json: bool,
    /// Whether to draw on standard output, a terminal.
    pub live: bool,
}

impl Options {
    /// The destinations of the traveller in a round.
    pub fn stops(&self) -> [&'static str; 3] {
        if self.machine.is_some() { [HOME_HOST, "h3", START_HOST] } else { ["h3", HOME_HOST, START_HOST] }
    }

    /// The program whose throughput is shown.
    pub fn stream(&self) -> Stream {
        if self.machine.is_some() { Stream::Iperf } else { Stream::WriteBandwidth }
    }
}
