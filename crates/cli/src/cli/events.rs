//! `transhume events`

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{Client, Event, LoggedEvent, MoveFigures, Occurrence, Request};
use clap::Args;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::lasting;
use super::target::Target;
use super::transfer::sent;
use crate::failure::{Result, unexpected};
use crate::figures::{mebibytes, milliseconds, rate};
use crate::{output, table};

/// Prints the event log of instances, moves, drains and hosts
///
/// The coordinator stores the last 10,000 events, at most 4 MiB. Events have consecutive numbers:
/// `--after` resumes after the last event seen, and a gap means that older events were dropped. Times
/// are UTC, from the coordinator's clock. With `--follow`, the command survives a restart of the
/// coordinator without missing events.
///
/// With --json, each event is one object per line with `number`, `time_ms` (since 1970), `event` and its
/// fields. Standard error gets `waiting` while the coordinator is unreachable, and `failed`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume events --since 10m\n  transhume events --follow --since 0s\n  \
                        transhume events --json --after 4711\n  \
                        transhume events --json | jq 'select(.event == \"moved\") | .figures.blackout_us'"
)]
pub struct Arguments {
    /// Also prints new events as they happen
    #[arg(short, long)]
    follow: bool,
    /// Only events since then: an age such as 30s, 10m, 2h or 1d, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<SystemTime>,
    /// Only events with a higher number
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    after: u64,
    /// Prints each event as a JSON object
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let json = self.json;
        self.tell(target).map_err(|failure| if json { failure.in_json() } else { failure })
    }

    fn tell(mut self, target: &Target) -> Result<ExitCode> {
        let mut events = target.send(&self.request())?;
        if !self.json {
            output::line(&line(["NUMBER", "TIME", "EVENT", "OF"]))?;
        }
        loop {
            match events.next_event() {
                Ok(Event::Logged(event)) => {
                    if self.json {
                        output::json(&event)?
                    } else {
                        output::line(&in_words(&event))?
                    }
                    self.after = event.number;
                }
                Ok(Event::Done) => return Ok(ExitCode::SUCCESS),
                Ok(Event::Failed(failure)) => return Err(failure.into()),
                Ok(event) => return Err(unexpected(&event)),
                Err(error) if self.follow && error.is_loss() => events = self.again(target)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn request(&self) -> Request {
        let since = self.since.and_then(|since| since.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Request::Events { after: self.after, since_ms, follow: self.follow }
    }

    /// Resumes after the last event, with the restarted coordinator.
    fn again(&self, target: &Target) -> Result<Client> {
        let outlook = "missed events follow when it is back";
        lasting::send_again_as(self.json, &target.socket(), &self.request(), "to read events", outlook)
    }
}

/// Parses a time or an age.
fn since(text: &str) -> std::result::Result<SystemTime, String> {
    let ago = text.strip_suffix(['s', 'm', 'h', 'd']).and_then(|number| number.parse::<u64>().ok());
    let Some(number) = ago else {
        let time = OffsetDateTime::parse(text, &Rfc3339);
        return time.map(SystemTime::from).map_err(|_| {
            "use an age such as 30s, 10m, 2h or 1d, or a time such as 2026-01-31T12:00:00Z".into()
        });
    };
    let unit = match text.as_bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 60 * 60,
        _ => 24 * 60 * 60,
    };
    let ago = Duration::from_secs(number.saturating_mul(unit));
    // The clock's range may be shorter.
    Ok(SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH))
}

/// An event on one line. All columns but the last have a fixed width, so that later lines stay aligned.
fn in_words(event: &LoggedEvent) -> String {
    let (kind, of) = of(&event.what);
    line([&event.number.to_string(), &time(event.time_ms), kind, &table::printable(of)])
}

fn line([number, time, kind, of]: [&str; 4]) -> String {
    format!("{number:>6}  {time:<23}  {kind:<19}  {of}").trim_end().to_owned()
}

/// The kind of an event and its details.
fn of(what: &Occurrence) -> (&'static str, String) {
    match what {
        Occurrence::CoordinatorStarted => ("coordinator started", String::new()),
        Occurrence::HostConnected { host, address } => ("host connected", format!("{host} at {address}")),
        Occurrence::HostLost { host } => ("host lost", host.clone()),
        Occurrence::HostRemoved { host } => ("host removed", host.clone()),
        Occurrence::OffloadSwitchedOff { host, off } => {
            ("offload off", format!("{host}: {}", off.in_words()))
        }
        Occurrence::DrainBegan { host, instances } => ("drain began", format!("{host}: {instances} to move")),
        Occurrence::Drained { host, moved, stayed } => {
            ("drained", format!("{host}: {moved} moved, {stayed} stayed"))
        }
        Occurrence::DrainEnded { host, moved } => ("drain ended", format!("{host}: {moved} moved before")),
        Occurrence::Undrained { host } => ("undrained", host.clone()),
        Occurrence::AutoSwitched { is_on } => {
            ("auto plan", if *is_on { "switched on".into() } else { "switched off".into() })
        }
        Occurrence::PlanBegan { moves, reason } => {
            let reason = reason.as_ref().map(|reason| format!(", because {reason}")).unwrap_or_default();
            ("plan began", format!("{moves} moves{reason}"))
        }
        Occurrence::PlanEnded { moved, failed, given_up } => {
            let given_up = given_up.as_ref().map(|why| format!("; given up: {why}")).unwrap_or_default();
            ("plan ended", format!("{moved} moved, {failed} failed{given_up}"))
        }
        Occurrence::PlanMeasured { predicted, measured } => {
            ("plan measured", format!("{} gained, {} predicted", rate(*measured), rate(*predicted)))
        }
        Occurrence::AutoStopped { reason } => ("auto plan stopped", reason.clone()),
        Occurrence::HostLeaves { host, reason } => ("host leaves", format!("{host}: {reason}")),
        Occurrence::Started { instance, host, group } => {
            ("started", format!("{instance} on {host}{}", in_group(group.as_ref())))
        }
        Occurrence::NotStarted { instance, host } => ("not started", format!("{instance} on {host}")),
        Occurrence::Exited { instance, host, code } => ("exited", format!("{instance} on {host}: {code}")),
        Occurrence::OutOfMemory { instance, host, processes, limit_bytes } => {
            ("out of memory", format!("{instance} on {host}: {}", short_of_memory(*processes, *limit_bytes)))
        }
        Occurrence::Lost { instance, host, reason } => ("lost", format!("{instance} on {host}: {reason}")),
        Occurrence::MoveBegan { instance, from, to, group, .. } => {
            ("move began", format!("{instance} {from} → {to}{}", in_group(group.as_ref())))
        }
        Occurrence::Moved { instance, from, to, figures, .. } => {
            ("moved", format!("{instance} {from} → {to}{}", measured(figures.as_ref())))
        }
        Occurrence::Saved { instance, host, directory, figures, .. } => {
            ("saved", format!("{instance} on {host}, in {directory}{}", measured(figures.as_ref())))
        }
        Occurrence::Restored { instance, directory, host, figures, .. } => {
            ("restored", format!("{instance} on {host}, from {directory}{}", took(figures.as_ref())))
        }
        Occurrence::EndedInMove { instance, from, to, reason, .. } => {
            ("ended in move", format!("{instance} {from} → {to}: {reason}"))
        }
        Occurrence::MoveRolledBack { instance, from, to, reason, figures, .. } => {
            ("move rolled back", format!("{instance} {from} → {to}: {reason}{}", measured(figures.as_ref())))
        }
    }
}

fn in_group(group: Option<&String>) -> String {
    group.map(|group| format!(", group {group}")).unwrap_or_default()
}

fn short_of_memory(processes: u64, limit_bytes: Option<u64>) -> String {
    let ended = match processes {
        1 => "the kernel ended 1 process".to_owned(),
        count => format!("the kernel ended {count} processes"),
    };
    match limit_bytes {
        Some(bytes) => format!("{ended}: the memory limit is {}", mebibytes(bytes)),
        None => format!("{ended}: the host is out of memory"),
    }
}

fn measured(figures: Option<&MoveFigures>) -> String {
    let Some(figures) = figures else { return String::new() };
    let MoveFigures { total_us, blackout_us, image_bytes, precopied_bytes, fetched_bytes } = *figures;
    let (total, blackout) = (milliseconds(total_us), milliseconds(blackout_us));
    let after = match fetched_bytes {
        0 => String::new(),
        bytes => format!(", {} after it", mebibytes(bytes)),
    };
    format!("; {total} in all, blackout {blackout}, {}{after}", sent(image_bytes, precopied_bytes))
}

/// Figures of a restore, which suspends and sends nothing.
fn took(figures: Option<&MoveFigures>) -> String {
    figures.map(|figures| format!("; {} in all", milliseconds(figures.total_us))).unwrap_or_default()
}

/// A time in UTC, in milliseconds.
pub fn time(ms: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000);
    let Ok(at) = at else { return ms.to_string() };
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second, ms) = at.to_hms_milli();
    format!("{year:04}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{ms:03}", u8::from(month))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_times_and_ages() {
        let at = since("2026-01-31T12:00:00.5Z").unwrap().duration_since(UNIX_EPOCH).unwrap();
        assert_eq!(time(at.as_millis() as u64), "2026-01-31 12:00:00.500");
        assert_eq!(time(u64::MAX), u64::MAX.to_string());
        for (text, seconds) in [("0s", 0), ("7s", 7), ("2m", 120), ("3h", 10_800), ("1d", 86_400)] {
            let ago = since(text).unwrap().elapsed().unwrap().as_secs();
            assert!((seconds..seconds + 60).contains(&ago), "{text}: {ago}");
        }
        assert_eq!(since(&format!("{}d", u64::MAX)).unwrap(), UNIX_EPOCH);
        for wrong in ["", "s", "10", "-1s", "1w", "yesterday", "2026-01-31"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_stay_on_their_line_and_are_aligned() {
        let lost = Occurrence::Lost { instance: "a".into(), host: "h1".into(), reason: "no\nroom".into() };
        let event = |number, what| in_words(&LoggedEvent { number, time_ms: 0, what });
        let expected = "     7  1970-01-01 00:00:00.000  lost                 a on h1: no\\nroom";
        assert_eq!(event(7, lost), expected);
        let started = "     8  1970-01-01 00:00:00.000  coordinator started";
        assert_eq!(event(8, Occurrence::CoordinatorStarted), started);
    }
}
