//! Numbered requests to an address, each of which must be answered once.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::overlay::Where;
use crate::program::Program;
use crate::testlab::TestLab;

/// How long an answer may take: the one who answers may be stopped, and the machine busy.
const LIMIT: Duration = Duration::from_secs(30);

/// So many more answers show that they go on.
const MORE: usize = 20;

/// The program that asks, and the numbers that were answered.
pub struct Pings {
    program: Program,
    answered: BTreeSet<u64>,
}

impl Pings {
    /// Asks `address` a hundred times a second, from the program that these words start.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(lab: &TestLab, from: Where<'_>, address: &str) -> Result<Self> {
        let ping = ["ping", "-n", "-i", "0.01", "-s", "1000", address];
        let program = Program::start(&mut lab.command(&[from, &ping].concat()))?;
        Ok(Self { program, answered: BTreeSet::new() })
    }

    /// Waits for further answers.
    ///
    /// # Errors
    /// If none come, or one comes twice.
    pub fn go_on(&mut self) -> Result<()> {
        let enough = self.answered.len() + MORE;
        self.await_answers(|answered| answered.len() >= enough)
    }

    /// Waits until each request up to the last answered one has been answered. Returns their number.
    ///
    /// # Errors
    /// If one is not, or is answered twice.
    pub fn none_is_lost(&mut self) -> Result<u64> {
        let last = self.answered.last().copied().context("nothing was answered")?;
        let missing = |answered: &BTreeSet<u64>| (1..=last).find(|number| !answered.contains(number));
        let awaited = self.await_answers(|answered| missing(answered).is_none());
        awaited
            .with_context(|| format!("the answer to {:?} of {last} is missing", missing(&self.answered)))?;
        Ok(last)
    }

    fn await_answers(&mut self, are_enough: impl Fn(&BTreeSet<u64>) -> bool) -> Result<()> {
        let answered = &mut self.answered;
        if are_enough(answered) {
            return Ok(());
        }
        let mut is_twice = false;
        self.program.wait_for(LIMIT, |line| {
            let (_, rest) = line.split_once("icmp_seq=")?;
            is_twice |= !answered.insert(rest.split(' ').next()?.parse().ok()?);
            (is_twice || are_enough(answered)).then_some(())
        })?;
        ensure!(!is_twice, "a request was answered twice");
        Ok(())
    }
}
