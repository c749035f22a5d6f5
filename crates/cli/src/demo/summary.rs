//! The final report.

use api::{MoveReport, Phase};
use serde::Serialize;

use super::measured::{MachineFigures, MeasuredMove};
use super::traffic::{GAVE_UP, Known, Verdict};
use crate::failure::Result;
use crate::figures::milliseconds;
use crate::{output, table};

/// The demo's result.
#[derive(Serialize)]
pub struct Summary {
    ok: bool,
    moves: Vec<MeasuredMove>,
    verdicts: Vec<Verdict>,
    /// How often ib_write_bw failed to calibrate its clock and was restarted.
    write_restarts: u32,
    /// More, if a virtual machine has travelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<MachineResult>,
}

/// What was checked of a virtual machine besides the RDMA traffic. The demo fails before the report if anything of it was lost.
#[derive(Serialize)]
pub struct MachineResult {
    /// The requests over one connection, each answered once.
    pub replies: u64,
    /// The blocks of the disk that were read as they had been written.
    pub blocks: u64,
}

impl Summary {
    /// The result of these moves, after the end of the traffic.
    pub fn new(moves: Vec<MeasuredMove>, known: &Known, machine: Option<MachineResult>) -> Self {
        let verdicts = known.verdicts.clone();
        let ok = verdicts.len() == 2 && verdicts.iter().all(|verdict| verdict.ok);
        Self { ok, moves, verdicts, write_restarts: known.write_restarts, machine }
    }

    /// Whether nothing was lost, duplicated, reordered or corrupted.
    pub fn ok(&self) -> bool {
        self.ok
    }

    /// Writes the result to standard output.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            return output::json(self);
        }
        let (blackouts, phases, checked) = (self.blackouts(), self.phases(), self.checked());
        output::write(format!("\n{blackouts}\n{phases}\n{checked}{}", self.restarts()))
    }

    fn blackouts(&self) -> String {
        if self.machine.is_some() {
            return self.pauses();
        }
        let titles = ["MOVE", "PATH AFTERWARDS", "PROBER", "WORKLOAD", "NODES", "NETWORK PART"];
        let rows: Vec<_> = self.moves.iter().map(blackout_row).collect();
        format!(
            "Blackout as measured by an external prober, the workload and the nodes:\n\n{}",
            table::render(titles, &rows)
        )
    }

    fn pauses(&self) -> String {
        let titles = [
            "MOVE",
            "VCPU PAUSE",
            "NETWORK GAP BEYOND IT",
            "LONGEST GAP",
            "SLOWEST REQUEST",
            "RDMA WORKLOAD",
        ];
        let rows: Vec<_> = self.moves.iter().filter_map(pause_row).collect();
        let table = table::render(titles, &rows);
        format!(
            "The pause as measured by the nodes, all else by an external prober, a client and the workload, during the whole move:\n\n{table}"
        )
    }

    fn phases(&self) -> String {
        let titles = [
            "MOVE", "PREPARE", "PRE-COPY", "SUSPEND", "DUMP", "TRANSFER", "RESTORE", "COMMIT", "RESUME",
            "IN ALL",
        ];
        let rows: Vec<_> = self.moves.iter().map(phase_row).collect();
        format!("Time per phase; the transfer overlaps other phases:\n\n{}", table::render(titles, &rows))
    }

    fn checked(&self) -> String {
        let sum = |count: fn(&Verdict) -> u64| self.verdicts.iter().map(count).sum::<u64>();
        let completions = sum(|verdict| verdict.counts.completions);
        let bytes = sum(|verdict| verdict.counts.bytes);
        let wrong: Vec<_> = self.verdicts.iter().filter_map(|verdict| verdict.reason.as_deref()).collect();
        let verdict = if self.ok {
            "nothing lost, duplicated, reordered or corrupted".into()
        } else {
            wrong.join("; ")
        };
        let machine = self.machine.as_ref().map_or_else(String::new, |machine| {
            let MachineResult { replies, blocks } = machine;
            format!("{replies} requests answered over one connection, {blocks} blocks of the disk verified, ")
        });
        format!("{machine}{completions} completions checked, {} MiB verified: {verdict}\n", bytes >> 20)
    }

    fn restarts(&self) -> String {
        match self.write_restarts {
            0 => String::new(),
            times => format!(
                "ib_write_bw was restarted ({times} ×), because it was preempted while it calibrated its clock \
                 (\"{GAVE_UP}\")\n"
            ),
        }
    }
}

fn blackout_row(seen: &MeasuredMove) -> [String; 6] {
    [
        name(&seen.report),
        seen.path.to_owned(),
        milliseconds(seen.probe_us),
        milliseconds(seen.workload_us),
        milliseconds(seen.report.blackout_us),
        milliseconds(seen.report.network.total_us()),
    ]
}

fn pause_row(seen: &MeasuredMove) -> Option<[String; 6]> {
    let MachineFigures { pause_us, gap_us, request_us } = seen.machine?;
    let times = [pause_us, gap_us, seen.probe_us, request_us, seen.workload_us].map(milliseconds);
    let [pause, gap, longest, request, workload] = times;
    Some([name(&seen.report), pause, gap, longest, request, workload])
}

fn phase_row(seen: &MeasuredMove) -> [String; 10] {
    let phase = |phase| phase_time(&seen.report, phase);
    [
        name(&seen.report),
        phase(Phase::Prepare),
        phase(Phase::Precopy),
        phase(Phase::Suspend),
        phase(Phase::Dump),
        phase(Phase::Transfer),
        phase(Phase::Restore),
        phase(Phase::Commit),
        phase(Phase::Resume),
        milliseconds(seen.report.total_us),
    ]
}

fn name(report: &MoveReport) -> String {
    format!("{} → {}", report.from, report.to)
}

fn phase_time(report: &MoveReport, phase: Phase) -> String {
    let time = report.phases.iter().find(|time| time.phase == phase);
    time.map_or_else(|| "–".into(), |time| milliseconds(time.elapsed_us))
}
