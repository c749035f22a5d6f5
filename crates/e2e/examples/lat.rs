#![allow(missing_docs)]
use e2e::pair::{FIRST, Pair, Place, command};
use e2e::program::Program;
use std::time::{Duration, Instant};
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let place = if args[0] == "one" { Place::OneHost } else { Place::TwoHosts };
    let pair = Pair::new(place).unwrap();
    let mut s = command(&pair.first, &args[1]).unwrap();
    let mut s = Program::start(s.args(&args[2..])).unwrap();
    s.wait_for_listener(18515, Duration::from_secs(5)).unwrap();
    let mut c = command(&pair.second, &args[1]).unwrap();
    let t = Instant::now();
    let c = Program::start(c.args(&args[2..]).arg(FIRST)).unwrap();
    let limit: u64 = std::env::var("LIMIT").ok().and_then(|t| t.parse().ok()).unwrap_or(8);
    match c.end(Duration::from_secs(limit)) {
        Ok(e) => {
            println!("{} {:?}", e.status, t.elapsed());
            for l in e
                .lines
                .iter()
                .filter(|l| l.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '#'))
            {
                println!("{l}");
            }
            print!("{}", e.errors);
        }
        Err(e) => println!("{e:#}"),
    }
}
