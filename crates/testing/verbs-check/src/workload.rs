//! The workload of both sides. The client decides it and sends it to the server.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The operations that a workload mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// RDMA WRITE, verified by the receiver at the next operation that takes a receive.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ of constant bytes.
    Read,
    /// RDMA READ of the last WRITE's bytes on the same QP.
    ReadBack,
    /// Compare-and-swap on the QP's own counter.
    CompareSwap,
    /// Fetch-and-add on the QP's own counter.
    FetchAdd,
    /// Fetch-and-add on the counter that all QPs share.
    SharedAdd,
}

impl Kind {
    /// Each kind, in the order of [`Mix`]'s weights.
    pub const ALL: [Self; 9] = [
        Self::Send,
        Self::SendImm,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::ReadBack,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SharedAdd,
    ];

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send-imm",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::ReadBack => "read-back",
            Self::CompareSwap => "cmp-swp",
            Self::FetchAdd => "fetch-add",
            Self::SharedAdd => "shared-add",
        }
    }

    /// Whether it takes a receive at the other side.
    #[must_use]
    pub fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Whether it carries immediate data.
    #[must_use]
    pub fn has_immediate(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// Whether it leaves bytes in the other side's write slots.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm)
    }

    /// Whether its data flows to the initiator.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadBack)
    }

    /// Whether it is executed on one 8-byte word.
    #[must_use]
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd | Self::SharedAdd)
    }
}

/// How often each operation comes, relative to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix([u8; Kind::ALL.len()]);

impl Mix {
    /// The kind that `number` picks, when it is equally distributed.
    #[must_use]
    pub fn pick(&self, number: u64) -> Kind {
        let mut rest = number % self.total();
        for (kind, weight) in Kind::ALL.into_iter().zip(self.0) {
            match rest.checked_sub(u64::from(weight)) {
                Some(left) => rest = left,
                None => return kind,
            }
        }
        Kind::Send
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|weight| u64::from(*weight)).sum::<u64>().max(1)
    }
}

impl Default for Mix {
    fn default() -> Self {
        Self([1; Kind::ALL.len()])
    }
}

impl FromStr for Mix {
    type Err = String;

    /// Reads `all`, or names with optional weights: `send,write=3`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::default());
        }
        let mut mix = Self([0; Kind::ALL.len()]);
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let at = Kind::ALL.iter().position(|kind| kind.name() == name).ok_or_else(|| unknown(name))?;
            mix.0[at] = weight.parse().map_err(|_| format!("`{weight}` is not a weight from 0 to 255"))?;
        }
        if mix.0.iter().all(|weight| *weight == 0) {
            return Err("no operation has a weight above 0".into());
        }
        Ok(mix)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (kind, weight) in Kind::ALL.into_iter().zip(self.0).filter(|(_, weight)| *weight > 0) {
            write!(f, "{separator}{}={weight}", kind.name())?;
            separator = ",";
        }
        Ok(())
    }
}

fn unknown(name: &str) -> String {
    let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    format!("unknown operation `{name}`; choose from all, {}", names.join(", "))
}

/// The parameters that both sides must share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Everything random follows from it.
    pub seed: u64,
    /// QPs, each with traffic in both directions.
    pub queue_pairs: u16,
    /// Which operations.
    pub mix: Mix,
    /// The shortest message, in bytes.
    pub min_size: u32,
    /// The longest message, in bytes.
    pub max_size: u32,
    /// Work requests outstanding per QP and direction.
    pub depth: u16,
    /// Messages up to this many bytes may be sent inline.
    pub inline_size: u32,
    /// Whether receives come from one shared receive queue per side.
    pub shared_receives: bool,
    /// The number of operations per QP and direction after which a side stops.
    pub count: Option<u64>,
}

/// Which side started a stream of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The one that waits for the other.
    Server,
    /// The one that connects.
    Client,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_picks_by_weight() {
        let mix: Mix = "send,write=3".parse().unwrap();
        let picked: Vec<_> = (0..4).map(|number| mix.pick(number)).collect();
        assert_eq!(picked, [Kind::Send, Kind::Write, Kind::Write, Kind::Write]);
        assert_eq!(mix.to_string(), "send=1,write=3");
    }

    #[test]
    fn a_wrong_mix_is_refused_in_words() {
        assert!("rend".parse::<Mix>().unwrap_err().contains("rend"));
        assert!("send=0".parse::<Mix>().is_err());
        assert!("send=300".parse::<Mix>().is_err());
    }
}
