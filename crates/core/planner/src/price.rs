//! The prices of loads on processors, in KiB that are copied or cross the network within the horizon.

use solver::problem::Cost;

/// The cost of each thousandth of a processor beyond the average of all hosts: a whole processor is worth copying 10 GiB.
pub const IMBALANCE: Cost = 10 * 1024;

/// The cost of each thousandth of a processor that a host lacks: no traffic that a host could save outweighs it.
pub const OVERLOAD: Cost = 1024 * 1024;

/// The share of a host's processors, in percent, above which it is overloaded.
pub const FULL: u64 = 90;

/// What a host may have above the average without being out of balance, in percent of that.
pub const SLACK: u64 = 5;
