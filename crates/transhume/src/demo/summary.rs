//! What stands at the end.

use api::{MoveReport, Phase};
use serde::Serialize;

use super::tour::Seen;
use super::traffic::Verdict;
use crate::cli::{milliseconds, print_json};
use crate::failure::Result;
use crate::table;

/// The demo's result.
#[derive(Serialize)]
pub struct Summary {
    ok: bool,
    moves: Vec<Seen>,
    verdicts: Vec<Verdict>,
}

impl Summary {
    /// The result of these moves under these verdicts.
    pub fn new(moves: Vec<Seen>, verdicts: Vec<Verdict>) -> Self {
        Self { ok: verdicts.len() == 2 && verdicts.iter().all(|verdict| verdict.ok), moves, verdicts }
    }

    /// Whether nothing was lost, doubled, reordered or wrong.
    pub fn ok(&self) -> bool {
        self.ok
    }

    /// Writes the result to standard output.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            return print_json(self);
        }
        print!("\n{}\n{}", self.moves_table(), self.checked());
        Ok(())
    }

    fn moves_table(&self) -> String {
        let titles = [
            "MOVE",
            "PATH",
            "PROBER",
            "WORKLOAD",
            "NODES",
            "NETWORK PART",
            "SUSPEND",
            "DUMP",
            "TRANSFER",
            "RESTORE",
            "COMMIT",
            "RESUME",
            "TOTAL",
        ];
        let rows: Vec<_> = self.moves.iter().map(row).collect();
        let explained = "Blackout as seen by the prober outside, by the workload, and by the nodes:\n\n";
        format!("{explained}{}", table::render(titles, &rows))
    }

    fn checked(&self) -> String {
        let sum = |count: fn(&Verdict) -> u64| self.verdicts.iter().map(count).sum::<u64>();
        let completions = sum(|verdict| verdict.counts.completions);
        let bytes = sum(|verdict| verdict.counts.bytes);
        let wrong: Vec<_> = self.verdicts.iter().filter_map(|verdict| verdict.reason.as_deref()).collect();
        let verdict =
            if self.ok { "nothing lost, doubled, reordered or wrong".into() } else { wrong.join("; ") };
        format!("{completions} completions checked, {} MiB verified: {verdict}\n", bytes >> 20)
    }
}

fn row(seen: &Seen) -> [String; 13] {
    let report = &seen.report;
    let phase = |phase| phase_time(report, phase);
    [
        format!("{} → {}", report.from, report.to),
        seen.path.to_owned(),
        milliseconds(seen.probe_us),
        milliseconds(seen.workload_us),
        milliseconds(report.blackout_us),
        milliseconds(report.network.total_us()),
        phase(Phase::Suspend),
        phase(Phase::Dump),
        phase(Phase::Transfer),
        phase(Phase::Restore),
        phase(Phase::Commit),
        phase(Phase::Resume),
        milliseconds(report.total_us),
    ]
}

fn phase_time(report: &MoveReport, phase: Phase) -> String {
    let time = report.phases.iter().find(|time| time.phase == phase);
    time.map_or_else(|| "–".into(), |time| milliseconds(time.elapsed_us))
}
