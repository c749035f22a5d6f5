//! The options of the demo, and the names of its instances and hosts.

use lab::LabName;

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
    /// Whether the result is JSON.
    pub json: bool,
    /// Whether to draw on standard output, a terminal.
    pub live: bool,
}
