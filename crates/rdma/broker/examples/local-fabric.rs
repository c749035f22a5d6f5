//! Runs brokers for existing network namespaces until standard input ends:
//! `local-fabric /run/netns/a=0 /run/netns/b=1` makes the first an instance of host 0 and the second one of
//! host 1. A line `0 1` on standard input moves the first instance to host 1.

use std::fs::File;
use std::io::{self, BufRead};

use broker::local::LocalFabric;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let placed: Vec<(&str, usize)> =
        arguments.iter().map(|argument| parse(argument)).collect::<Result<_, _>>()?;
    let hosts = placed.iter().map(|(_, host)| host + 1).max().unwrap_or(1);
    let fabric = LocalFabric::new(hosts)?;
    let mut instances = Vec::new();
    for (path, host) in placed {
        let instance = fabric.adopt(host, File::open(path)?.into())?;
        println!("{path}: LID {} on host {host}", instance.id().vid.lid());
        instances.push(instance);
    }
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace().map(str::parse::<usize>);
        let (Some(Ok(which)), Some(Ok(host))) = (words.next(), words.next()) else {
            return Err(io::Error::other("a line is: INSTANCE HOST"));
        };
        let instance = instances.get(which).ok_or_else(|| io::Error::other("no such instance"))?;
        let suspended = fabric.suspend(instance).map_err(io::Error::other)?;
        let resumed = fabric.resume(instance, host)?;
        println!("{suspended:?}\n{resumed:?}");
    }
    Ok(())
}

fn parse(argument: &str) -> io::Result<(&str, usize)> {
    let parsed = argument.rsplit_once('=').and_then(|(path, host)| Some((path, host.parse().ok()?)));
    parsed.ok_or_else(|| io::Error::other(format!("{argument} is not NETNS=HOST")))
}
