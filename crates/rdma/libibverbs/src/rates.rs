//! `enum ibv_rate` as multiples of 2.5 Gbit/s and as Mbit/s.

use libc::c_int;

/// (`enum ibv_rate`, multiple of 2.5 Gbit/s, Mbit/s). 14 and 28 Gbit/s and their kin have no exact multiple.
const RATES: [(u32, c_int, c_int); 23] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 6, 14_062),
    (12, 22, 56_250),
    (13, 45, 112_500),
    (14, 67, 168_750),
    (15, 10, 25_781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `IBV_RATE_MAX`.
const MAX: u32 = 0;

/// -1 for a rate that is none.
pub(crate) extern "C" fn ibv_rate_to_mult(rate: u32) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.1)
}

pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> u32 {
    RATES.iter().find(|known| known.1 == multiple).map_or(MAX, |known| known.0)
}

/// -1 for a rate that is none.
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: u32) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> u32 {
    RATES.iter().find(|known| known.2 == mbps).map_or(MAX, |known| known.0)
}
