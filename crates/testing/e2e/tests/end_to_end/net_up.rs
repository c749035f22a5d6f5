//! `transhume net up` on machines that have nothing but an address.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{NetLink, NetStatus};
use e2e::machines::{COORDINATOR_PORT, FIRST, LIMIT, Machine, NODE_PORT, World, kill, token_in, words};

#[test]
fn machines_are_on_one_ethernet_after_two_commands_and_again_after_they_were_killed() -> Result<()> {
    let _shared = e2e::shared();
    let world = World::new(3)?;
    let (first, join) = world.first()?;
    ensure!(join.ends_with(" --address 10.88.0.2/24"), "{join}");
    let second = world.up(1, &words(&join))?;
    world.stream(1, 0).context("to the first machine")?;
    let third = world.up(2, &["--join", token_in(&join)?, "--address", "10.88.0.3/24"])?;
    world.stream(2, 1).context("from the third to the second")?;
    let certificate = fs::read(world.state(1).join("pki/b.pem"))?;
    kill(second)?;
    let second = world.up(1, &[])?;
    ensure!(fs::read(world.state(1).join("pki/b.pem"))? == certificate);
    world.stream(2, 1).context("to the second, which was killed")?;
    kill(first)?;
    let mut first = world.start(0, &[])?;
    world.eventually("all are back", || Ok(world.hosts().is_ok_and(|hosts| hosts == ["a", "b", "c"])))?;
    world.eventually("all links are up", || {
        let links = world.ask(&["net", "links", "--json"])?.success()?.lines.join("\n");
        let links: Vec<NetLink> = serde_json::from_str(&links)?;
        Ok(links.len() == 2 && links.iter().all(|link| link.up))
    })?;
    world.stream(1, 2).context("through the first, which was killed")?;
    ensure!(!first.take_lines().iter().any(|line| line.contains("--join")), "a token once");
    for mut program in [second, third, first] {
        program.signal(libc::SIGTERM)?;
        program.end(LIMIT)?.success()?;
    }
    // Only the machines' own records are left of it.
    for machine in &world.machines {
        ensure!(machine.network.ip("link show dev transhume0").is_err());
    }
    Ok(())
}

#[test]
fn useless_tokens_are_refused_with_the_remedy() -> Result<()> {
    let _shared = e2e::shared();
    let world = World::new(3)?;
    let (first, join) = world.first()?;
    let token = token_in(&join)?;
    let refused = world.refused(1, &["--join", &token[1..]])?;
    ensure!(refused.contains("not a valid join token"), "{refused}");
    let refused = world.ask(&["net", "token", "--lifetime", "0s"])?.errors;
    ensure!(refused.contains("the lifetime is zero"), "{refused}");
    const LIFETIME: Duration = Duration::from_secs(1);
    let expired = world.ask(&["net", "token", "--lifetime", "1s"])?.success()?.lines.concat();
    sleep(2 * LIFETIME);
    let refused = world.refused(1, &["--join", &expired])?;
    ensure!(
        refused
            .contains("the token has expired\n  create a new token with `transhume net token` on 192.0.2.1"),
        "{refused}"
    );
    // A name that another machine has, and then one's own.
    let state = world.state(1);
    let state = state.to_str().context("a path")?;
    let taken = ["net", "up", "--join", token, "--name", "a", "--state", state];
    let taken = world.transhume(1, &taken)?.end(LIMIT)?;
    ensure!(
        taken.errors.contains("a host `a` already exists") && taken.errors.contains("--name"),
        "{taken:?}"
    );
    let mut second = world.up(1, &["--join", token])?;
    let running = world.refused(1, &["--json"])?;
    ensure!(running.starts_with("{") && running.contains("another `transhume net up` uses"), "{running}");
    // It may say the same again, as a service does, but keeps its settings.
    second.signal(libc::SIGTERM)?;
    second.end(LIMIT)?.success()?;
    let second = world.up(1, &["--join", token])?;
    ensure!(world.hosts()? == ["a", "b"]);
    let refused = world.ask(&["run", "--host", "b", "--", "true"])?.errors;
    ensure!(
        refused.contains("host b cannot run instances") && refused.contains("`transhume node`"),
        "{refused}"
    );
    let refused = world.ask(&["run", "--", "true"])?.errors;
    ensure!(refused.contains("no host can take instances"), "{refused}");
    kill(second)?;
    // Another network in the same place.
    kill(first)?;
    let refused = world.refused(2, &["--join", token])?;
    ensure!(refused.contains("192.0.2.1:7700 does not answer"), "{refused}");
    fs::remove_dir_all(world.state(0))?;
    let (_other, other) = world.first()?;
    let refused = world.refused(2, &["--join", token])?;
    ensure!(refused.contains("is not the coordinator of this token"), "{refused}");
    let refused = world.refused(1, &words(&other))?;
    ensure!(refused.contains("this machine has already joined another network, as `b`"), "{refused}");
    Ok(())
}

#[test]
fn connections_without_a_certificate_are_refused_and_block_no_others() -> Result<()> {
    let _shared = e2e::shared();
    let world = World::new(3)?;
    let (_first, join) = world.first()?;
    // A node's first message, more than anybody may say, and nothing that means anything.
    let hello = [10, 0, 0, 0, 0, 9, 0, 10, 0, 0, 1, 1, 0, 1];
    let long = [0xff, 0xff, 0x3f, 0];
    for said in [&hello[..], &long, &[2, 0, 0, 0, 1, 1]] {
        let said: String = said.iter().map(|byte| format!("{byte:02x}")).collect();
        for port in [COORDINATOR_PORT, NODE_PORT] {
            let guest = world.guest(1, &["say", "192.0.2.1", port, &said])?.end(LIMIT)?.success()?;
            ensure!(guest.lines == ["cut off"], "{said} to {port}: {guest:?}");
        }
    }
    ensure!(world.hosts()? == ["a"]);
    let mut crowd = world.guest(2, &["crowd", "192.0.2.1", COORDINATOR_PORT])?;
    crowd.wait_for(LIMIT, |line| line.starts_with("held").then_some(()))?;
    let _second = world.up(1, &words(&join))?;
    crowd.require_running()?;
    ensure!(world.hosts()? == ["a", "b"]);
    Ok(())
}

#[test]
fn obstacles_to_net_up_are_named() -> Result<()> {
    let _shared = e2e::shared();
    let world = World::new(1)?;
    let says = |arguments: &[&str], expected: &[&str]| -> Result<()> {
        let refused = world.refused(0, arguments)?;
        let all = expected.iter().all(|expected| refused.contains(expected));
        ensure!(all, "{arguments:?} failed with {refused}, not with {expected:?}");
        Ok(())
    };
    says(&[], &["neither `--listen` nor `--join`", "--listen", "--join"])?;
    says(
        &["--listen", "0.0.0.0:7700"],
        &["others cannot reach this machine at 0.0.0.0:7700", "`ip -brief address`"],
    )?;
    says(&["--listen", "192.0.2.1:65535"], &["and on the next port"])?;
    says(&["--listen", "192.0.2.9:7700"], &["192.0.2.9", "`ip address` lists them"])?;
    let network = &world.machines[0].network;
    network.ip("link add name transhume0 type bridge")?;
    says(&["--listen", FIRST], &["transhume0", "choose another name"])?;
    // The port is another program's.
    let listener = network.enter(|| std::net::TcpListener::bind(FIRST))??;
    says(&["--device", "up0"], &[FIRST, "use another port"])?;
    drop(listener);
    // Others have not heard of it yet, so there is a token although it is not the first attempt.
    let mut first = world.up(0, &["--device", "up0"])?;
    first.wait_for(LIMIT, |line| line.contains("--join").then_some(()))?;
    first.signal(libc::SIGINT)?;
    first.end(LIMIT)?.success().map(drop)
}

/// A machine's metrics at this address; an error if they cannot be read.
fn metrics(machine: &Machine, address: &str) -> Result<String> {
    const READ: &str =
        "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", READ, &format!("http://{address}/metrics")]);
    Ok(machine.network.start(&mut command)?.end(LIMIT)?.success()?.lines.join("\n"))
}

#[test]
fn mtu_offloads_and_metrics_keep_their_settings_until_they_are_changed() -> Result<()> {
    const METRICS: &str = "192.0.2.2:9464";
    let _shared = e2e::shared();
    let world = World::new(2)?;
    let (_first, join) = world.first()?;
    let offloads = || -> Result<Vec<String>> {
        let status = world.ask(&["net", "status", "--json"])?.success()?.lines.concat();
        let status: NetStatus = serde_json::from_str(&status)?;
        let found = status.hosts.into_iter().find(|host| host.name == "b").and_then(|host| host.state);
        Ok(found.context("b does not answer")?.offloads)
    };
    let has_mtu = |mtu: u32| -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["link", "show", "dev", "transhume0"]);
        let about = world.machines[1].network.start(&mut command)?.end(LIMIT)?.success()?.lines.concat();
        ensure!(about.contains(&format!(" mtu {mtu} ")), "{about}");
        Ok(())
    };
    let options = ["--mtu", "1300", "--without", "udp-gro,udp-segment", "--metrics", METRICS];
    let second = world.up(1, &[&words(&join)[..], &options].concat())?;
    let mut running = second;
    for _ in 0..2 {
        has_mtu(1300)?;
        let left = offloads()?;
        ensure!(!left.iter().any(|name| name.starts_with("udp-g") || name == "udp-segment"), "{left:?}");
        ensure!(metrics(&world.machines[1], METRICS)?.contains("transhume_overlay_device_up"));
        kill(running)?;
        running = world.up(1, &[])?;
    }
    kill(running)?;
    let _running = world.up(1, &["--mtu", "1350", "--without", "none", "--metrics", "none"])?;
    has_mtu(1350)?;
    ensure!(offloads()?.iter().any(|name| name == "udp-segment"), "{:?}", offloads()?);
    ensure!(metrics(&world.machines[1], METRICS).is_err());
    Ok(())
}

#[test]
fn another_device_or_address_replaces_the_former_one() -> Result<()> {
    let _shared = e2e::shared();
    let world = World::new(2)?;
    let (_first, join) = world.first()?;
    let devices = || -> Result<Vec<String>> {
        let lines = world.ask(&["net", "devices"])?.success()?.lines;
        let of_second = lines.iter().filter(|line| line.starts_with("b ")).map(|line| words(line));
        Ok(of_second
            .filter_map(|words| words.into_iter().filter(|word| !word.is_empty()).nth(1))
            .map(str::to_owned)
            .collect())
    };
    let second = world.up(1, &words(&join))?;
    ensure!(devices()? == ["transhume0"]);
    kill(second)?;
    let address = |device: &str| {
        let mut command = Command::new("ip");
        command.args(["-4", "-oneline", "address", "show", "dev", device]);
        anyhow::Ok(world.machines[1].network.start(&mut command)?.end(LIMIT)?.success()?.lines.concat())
    };
    let second = world.up(1, &["--device", "lan0"])?;
    ensure!(address("lan0")?.contains("10.88.0.2/24") && address("transhume0").is_err());
    ensure!(devices()? == ["lan0"]);
    kill(second)?;
    let _second = world.up(1, &["--address", "10.88.0.7/24"])?;
    let addresses = address("lan0")?;
    ensure!(addresses.contains("10.88.0.7/24") && !addresses.contains("10.88.0.2/24"), "{addresses}");
    ensure!(devices()? == ["lan0"]);
    Ok(())
}
