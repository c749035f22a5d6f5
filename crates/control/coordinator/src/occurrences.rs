//! The events that the coordinator writes into the event log.

use api::{MoveFigures, MoveReport, Occurrence, Outcome, Phase};
use moves::MoveId;
use moves::journal::{Exit, Instance, MoveRecord};

/// The longest reason that is stored, in bytes.
const MAX_REASON: usize = 1000;

/// The event of an instance that runs.
pub fn started(instance: &Instance) -> Occurrence {
    let (host, group) = (instance.host.to_string(), instance.group.clone());
    Occurrence::Started { instance: instance.name.clone(), host, group }
}

/// The event of an instance that has ended.
pub fn ended(instance: &Instance, exit: &Exit) -> Occurrence {
    let (instance, host) = (instance.name.clone(), instance.host.to_string());
    match exit {
        Exit::Code(code) => Occurrence::Exited { instance, host, code: *code },
        Exit::Lost { reason } => Occurrence::Lost { instance, host, reason: cut(reason) },
        Exit::NotStarted => Occurrence::NotStarted { instance, host },
    }
}

/// The event of a move that has begun, of the instance `name` and possibly in a `group`.
pub fn move_began(name: &str, id: MoveId, record: &MoveRecord, group: Option<&str>) -> Occurrence {
    Occurrence::MoveBegan {
        instance: name.into(),
        from: record.source.to_string(),
        to: record.destination.to_string(),
        id: id.0,
        group: group.map(Into::into),
    }
}

/// The event of a move that is over.
pub fn move_over(id: MoveId, report: &MoveReport) -> Occurrence {
    let MoveReport { name, from, to, .. } = report;
    let (instance, from, to, id) = (name.clone(), from.clone(), to.clone(), id.0);
    let figures = (!report.restarted).then_some(MoveFigures {
        total_us: report.total_us,
        blackout_us: report.blackout_us,
        image_bytes: report.engine.image_bytes,
        precopied_bytes: report.engine.precopied_bytes,
        fetched_bytes: report.engine.demanded_bytes + report.engine.pushed_bytes,
    });
    match &report.outcome {
        Outcome::Ended(why) if report.phases.iter().any(|time| time.phase == Phase::Fetch) => {
            Occurrence::EndedInMove { instance, from, to, id, reason: cut(&why.message) }
        }
        Outcome::Moved => Occurrence::Moved { instance, from, to, id, epoch: report.epoch, figures },
        Outcome::Saved => Occurrence::Saved { instance, host: from, directory: to, id, figures },
        Outcome::Restored => Occurrence::Restored { instance, directory: from, host: to, id, figures },
        Outcome::RolledBack(why) | Outcome::Ended(why) => {
            let reason = cut(&why.message);
            Occurrence::MoveRolledBack { instance, from, to, id, reason, figures }
        }
    }
}

fn cut(reason: &str) -> String {
    reason[..reason.floor_char_boundary(MAX_REASON)].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(MAX_REASON)).chars().count(), MAX_REASON / 2);
    }
}
