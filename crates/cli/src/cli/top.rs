//! `transhume top`

mod live;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use api::{Event, Request, Top, TopHost, TopInstance, TopLink, TopTalk};
use clap::Args;

use self::live::Live;
use super::target::Target;
use crate::failure::{Result, unexpected};
use crate::figures::{mebibytes, rate};
use crate::{output, table};

/// The time between two looks.
const REFRESH: Duration = Duration::from_secs(2);

/// The pairs that are shown at most.
const PAIRS: usize = 20;

/// The directions of links that are shown at most.
const LINKS: usize = 20;

const TALK_TITLES: [&str; 7] = ["ONE", "OTHER", "OVERLAY", "FRAMES", "RDMA", "MESSAGES", "RDMA IN ALL"];

/// Shows what hosts and instances use, and which instances talk
///
/// On a terminal the figures are shown again every 2 s, until `q` or Ctrl-C. Nodes sample every 10 s (`node --sample-interval`), so a new instance
/// has figures after 20 s. Traffic is the mean of the last minute, in both directions: frames on the overlay, and messages by RDMA.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume top\n  transhume top --once\n  transhume top --json | jq -r '.talks[0].ends[]'"
)]
pub struct Arguments {
    /// Shows the figures once
    #[arg(long)]
    once: bool,
    /// Prints JSON, once
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let top = ask(target)?;
        if self.json {
            output::json(&top)?;
        } else if self.once || !io::stdout().is_terminal() {
            output::write(text(&top))?;
        } else {
            show(target, top)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Shows the figures until the user ends that.
fn show(target: &Target, mut top: Top) -> Result<()> {
    let live = Live::begin()?;
    loop {
        live.draw(&text(&top))?;
        if live.is_ended_within(REFRESH) {
            return Ok(());
        }
        top = ask(target)?;
    }
}

fn ask(target: &Target) -> Result<Top> {
    match target.ask(&Request::Top)? {
        Event::Top(top) => Ok(top),
        event => Err(unexpected(&event)),
    }
}

fn text(top: &Top) -> String {
    let hosts: Vec<_> = top.hosts.iter().map(host).collect();
    let instances: Vec<_> = top.instances.iter().map(instance).collect();
    let talks: Vec<_> = top.talks.iter().take(PAIRS).map(talk).collect();
    let links: Vec<_> = top.links.iter().take(LINKS).map(link).collect();
    let mut text = table::render(
        ["HOST", "CPU", "PROCESSORS", "MEMORY", "OF", "WAITS CPU/MEM/IO", "NETWORK", "INSTANCES"],
        &hosts,
    );
    text += "\n";
    text += &table::render(["INSTANCE", "HOST", "CPU", "PEAK", "MEMORY", "DISK", "NETWORK"], &instances);
    if !talks.is_empty() {
        text += "\n";
        text += &table::render(TALK_TITLES, &talks);
    }
    if !links.is_empty() {
        text += "\n";
        text += &table::render(["FROM", "TO", "ROUND TRIP", "LOST", "AVAILABLE"], &links);
    }
    text
}

fn host(host: &TopHost) -> [String; 8] {
    let waits = host.pressure_permille.map(|waits| waits.map(percent).join(" "));
    [
        host.name.clone(),
        cpu(host.cpu_milli),
        host.processors.to_string(),
        mebibytes(host.memory_used_bytes),
        mebibytes(host.memory_bytes),
        waits.unwrap_or_else(|| "-".into()),
        host.network_bytes_per_second.map_or_else(|| "-".into(), rate),
        host.instances.to_string(),
    ]
}

fn instance(instance: &TopInstance) -> [String; 7] {
    [
        instance.name.clone(),
        instance.host.clone(),
        cpu(instance.cpu_milli),
        cpu(instance.cpu_peak_milli),
        instance.memory_bytes.map_or_else(|| "-".into(), mebibytes),
        instance.disk_bytes_per_second.map_or_else(|| "-".into(), rate),
        instance.network_bytes_per_second.map_or_else(|| "-".into(), rate),
    ]
}

fn talk(talk: &TopTalk) -> [String; 7] {
    let [one, other] = talk.ends.clone();
    let [overlay, rdma] = [&talk.overlay, &talk.rdma]
        .map(|network| (rate(network.bytes_per_second), format!("{}/s", network.messages_per_second)));
    [one, other, overlay.0, overlay.1, rdma.0, rdma.1, mebibytes(talk.rdma_bytes)]
}

fn link(link: &TopLink) -> [String; 5] {
    let lost = (link.sent > 0).then(|| format!("{:.3} %", link.lost as f64 / link.sent as f64 * 100.0));
    let known = |figure: Option<String>| figure.unwrap_or_else(|| "-".into());
    [
        link.from.clone(),
        link.to.clone(),
        known(link.round_trip_us.map(|us| format!("{:.2} ms", us as f64 / 1e3))),
        known(lost),
        known(link.available_bits_per_second.map(|bits| format!("{:.0} Mbit/s", bits as f64 / 1e6))),
    ]
}

/// A share of one processor.
fn cpu(milli: Option<u32>) -> String {
    milli.map_or_else(|| "-".into(), |milli| format!("{} %", milli / 10))
}

fn percent(permille: u16) -> String {
    format!("{} %", permille / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_are_not_known_yet_are_dashes() {
        let instance = TopInstance {
            name: "job".into(),
            host: "h1".into(),
            cpu_milli: None,
            cpu_peak_milli: Some(1500),
            memory_bytes: Some(3 << 20),
            disk_bytes_per_second: None,
            network_bytes_per_second: Some(1 << 19),
        };
        let shown = text(&Top { instances: vec![instance], ..Top::default() });
        let row = shown.lines().find(|line| line.starts_with("job")).unwrap();
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!(words, ["job", "h1", "-", "150", "%", "3.0", "MiB", "-", "0.5", "MiB/s"]);
        assert!(!shown.contains("OVERLAY") && !shown.contains("AVAILABLE"));
    }

    #[test]
    fn a_link_shows_the_share_of_lost_datagrams() {
        let link = TopLink {
            from: "h1".into(),
            to: "h2".into(),
            round_trip_us: Some(250),
            sent: 1000,
            lost: 3,
            available_bits_per_second: None,
        };
        let shown = text(&Top { links: vec![link], ..Top::default() });
        let words: Vec<_> = shown.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words, ["h1", "h2", "0.25", "ms", "0.300", "%", "-"]);
    }
}
