//! Numbered requests to an address, each of which must be answered once.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::overlay::Where;
use crate::program::Program;
use crate::testlab::TestLab;

/// How long an answer may take: the one who answers may be stopped or a guest that boots, and the machine busy.
const LIMIT: Duration = Duration::from_secs(90);

/// So many more answers show that they go on.
const MORE: usize = 20;

/// Asks the address in its argument a hundred times a second, and prints the number of each answer.
///
/// `ping` at this rate calls `sched_yield` in a loop between late answers. Processes in other groups stand still for seconds then (ADR
/// 0013), and moves of other tests reach their time limits.
const ASKER: &str = "import itertools, os, select, socket, struct, sys, time
wire = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
own = os.getpid() & 0xffff

def request(number):
    words = (0x0800, 0, own, number & 0xffff) + 500 * (0x7478,)
    total = sum(words)
    total = (total >> 16) + (total & 0xffff)
    total = (total >> 16) + (total & 0xffff)
    return struct.pack('!504H', words[0], ~total & 0xffff, *words[2:])

begin = time.monotonic()
for number in itertools.count(1):
    wire.sendto(request(number), (sys.argv[1], 0))
    while (left := begin + number / 100 - time.monotonic()) > 0:
        if not select.select([wire], [], [], left)[0]: break
        kind, _, asker, answered = struct.unpack('!BxHHH', wire.recv(2000)[20:28])
        if (kind, asker) == (0, own): print(f'icmp_seq={answered} ', flush=True)";

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
        let ask = ["/usr/bin/python3", "-c", ASKER, address];
        let program = Program::start(&mut lab.command(&[from, &ask].concat()))?;
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
