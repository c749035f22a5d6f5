//! Debian's perftest: each of its programs with connections, with each of its options.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::pair::{FIRST, Pair, command};
use crate::program::{Ended, Program};

/// The programs.
pub const PROGRAMS: [&str; 8] = [
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
];

/// Where a server of perftest, or of libibverbs' examples, waits for its client.
pub const PORT: u16 = 18515;

/// How long one run may take. For each size most measure the processor's clock for 0.2 s of its time.
const LIMIT: Duration = Duration::from_secs(120);

/// A way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The tested operation.
    pub name: &'static str,
    /// The option without which a program does not have it, as its help spells it.
    option: Option<&'static str>,
    arguments: &'static [&'static str],
}

/// All ways. Few iterations: the test is that they end well.
pub const VARIANTS: [Variant; 13] = [
    Variant { name: "plain", option: None, arguments: &["-n", "200"] },
    Variant { name: "events", option: Some("--events"), arguments: &["-n", "200", "-e"] },
    Variant { name: "16 queue pairs", option: Some("--qp="), arguments: &["-n", "100", "-q", "16"] },
    Variant {
        name: "inline",
        option: Some("--inline_size="),
        arguments: &["-n", "200", "-s", "32", "-I", "32"],
    },
    Variant { name: "all sizes", option: Some("--all"), arguments: &["-n", "10", "-a"] },
    Variant {
        name: "shared receive queue",
        option: Some("--use-srq"),
        arguments: &["-n", "200", "--use-srq"],
    },
    Variant {
        name: "classic posting",
        option: Some("--use_old_post_send"),
        arguments: &["-n", "200", "--use_old_post_send"],
    },
    Variant {
        name: "unreliable connection",
        option: Some("<RC/XRC/UC/"),
        arguments: &["-n", "200", "-c", "UC"],
    },
    Variant { name: "datagrams", option: Some("UC/UD"), arguments: &["-n", "1000", "-c", "UD"] },
    Variant { name: "datagrams, events", option: Some("UC/UD"), arguments: &["-n", "200", "-c", "UD", "-e"] },
    Variant {
        name: "datagrams, all sizes",
        option: Some("UC/UD"),
        arguments: &["-n", "10", "-c", "UD", "-a"],
    },
    Variant {
        name: "datagrams, classic posting",
        option: Some("UC/UD"),
        arguments: &["-n", "200", "-c", "UD", "--use_old_post_send"],
    },
    Variant {
        name: "extended reliable connection",
        option: Some("XRC/"),
        arguments: &["-n", "200", "-c", "XRC"],
    },
];

/// The variants that `program` has.
///
/// # Errors
/// If it is not installed.
pub fn variants(program: &str) -> Result<impl Iterator<Item = Variant>> {
    let help = Command::new(program).arg("--help").output();
    let help = help.with_context(|| format!("{program} is missing: install perftest"))?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    ensure!(help.contains("--iters"), "`{program} --help` says nothing");
    let has = move |variant: &Variant| variant.option.is_none_or(|option| help.contains(option));
    Ok(VARIANTS.into_iter().filter(has))
}

/// Runs `program` between the two instances; its server is in the first.
///
/// # Errors
/// If either side fails, takes too long, or reports nothing.
pub fn exchange(pair: &Pair, program: &str, variant: Variant) -> Result<()> {
    let arguments = [variant.arguments, unit(program)].concat();
    let mut server = command(&pair.first, program)?;
    let mut server = Program::start(server.args(&arguments).arg("-F"))?;
    server.wait_for_listener(PORT, LIMIT)?;
    let mut client = command(&pair.second, program)?;
    let client = Program::start(client.args(&arguments).args(["-F", FIRST]))?;
    let client = client.end(LIMIT);
    let server = if client.is_ok() { server.end(LIMIT) } else { server.end(Duration::ZERO) };
    let client = both(client, server)?;
    ensure!(has_results(&client.lines), "{program} reports nothing:\n{}", client.lines.join("\n"));
    Ok(())
}

/// Latencies in cycles of the processor: for others perftest measures its clock for 0.2 s of its time, for each size.
fn unit(program: &str) -> &'static [&'static str] {
    if program.ends_with("_lat") { &["-C"] } else { &[] }
}

/// The client's output, if both sides ended well; otherwise the output of both.
fn both(client: Result<Ended>, server: Result<Ended>) -> Result<Ended> {
    match (client.and_then(Ended::success), server.and_then(Ended::success)) {
        (Ok(client), Ok(_)) => Ok(client),
        (Err(client), Err(server)) => Err(client.context(format!("the server: {server:#}"))),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
    }
}

/// A result is a line of numbers below the heading.
fn has_results(lines: &[String]) -> bool {
    let heading = lines.iter().position(|line| line.contains("#bytes"));
    let number =
        |line: &String| line.split_whitespace().next().is_some_and(|word| word.parse::<u64>().is_ok());
    heading.is_some_and(|heading| lines[heading..].iter().any(number))
}
