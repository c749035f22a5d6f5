#![allow(missing_docs)]
use e2e::check::Check;
use e2e::pair::{FIRST, Pair, Place, command};
use std::time::Duration;
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let place = if args[0] == "one" { Place::OneHost } else { Place::TwoHosts };
    let options: Vec<&str> = args[1..].iter().map(|s| s.as_str()).collect();
    let pair = Pair::new(place).unwrap();
    let check = Check::start(
        |p| command(&pair.first, p),
        |p| command(&pair.second, p),
        || Ok(FIRST.into()),
        &options,
    )
    .unwrap();
    match check.end(Duration::from_secs(60)) {
        Ok(v) => println!("OK {v}"),
        Err(e) => {
            let t = format!("{e:#}");
            for l in t.lines().filter(|l| !l.contains("\"interval\"")) {
                println!("{l}");
            }
        }
    }
}
