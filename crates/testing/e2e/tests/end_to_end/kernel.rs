//! Links that are not sealed. The kernel carries the frames of one station to another on them.

use anyhow::{Context as _, Result, ensure};
use e2e::overlay::{Stream, await_kernel, joined, net, status, tunnel};
use e2e::program::Program;
use e2e::testlab::TestLab;
use lab::Place;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Frames, and segments, that the kernel has sent from one host to another.
fn sent(lab: &TestLab, from: &str, to: &str) -> Result<u64> {
    Ok(tunnel(lab, from, to)?.kernel_frames)
}

/// Waits until there are more, which the next look shows.
fn await_more(lab: &TestLab, from: &str, to: &str) -> Result<()> {
    let before = sent(lab, from, to)?;
    lab.eventually(&format!("the kernel sends from {from} to {to}"), || {
        Ok(sent(lab, from, to)? > before + 100)
    })
}

fn block(lab: &TestLab, host: &str, is_blocked: bool) -> Result<()> {
    let add = [
        "add table inet blocked".to_owned(),
        "add chain inet blocked input { type filter hook input priority 0; }".into(),
        format!("add rule inet blocked input udp dport {} drop", overlay_io::kernel::PORT),
    ];
    let remove = ["delete table inet blocked".to_owned()];
    for line in if is_blocked { &add[..] } else { &remove } {
        lab.transhume(&["lab", "exec", host, "--", "nft", line])?.success()?;
    }
    Ok(())
}

#[test]
fn a_stream_goes_on_while_the_kernel_carries_it_or_does_not() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(3)?;
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h2", "--"], "10.88.0.2")?;
    stream.goes_on().context("sealed")?;
    ensure!(
        !tunnel(&lab, "h1", "h2")?.by_kernel && sent(&lab, "h1", "h2")? == 0,
        "sealed frames are not for the kernel"
    );
    net(&lab, &["layout", "star", "--plain"])?;
    await_kernel(&lab, ["h1", "h2"], true)?;
    await_more(&lab, "h1", "h2")?;
    stream.goes_on().context("in the kernel")?;
    block(&lab, "h2", true)?;
    await_kernel(&lab, ["h1", "h2"], false)?;
    stream.goes_on().with_context(|| format!("by the plane\n{}", lab.logs()))?;
    block(&lab, "h2", false)?;
    await_kernel(&lab, ["h1", "h2"], true)?;
    await_more(&lab, "h1", "h2")?;
    // No link: over h3.
    net(&lab, &["layout", "star", "--center", "h3", "--plain"])?;
    stream.goes_on().context("over another host")?;
    await_kernel(&lab, ["h1", "h3"], true)?;
    net(&lab, &["layout", "mesh", "--plain"])?;
    await_kernel(&lab, ["h1", "h2"], true)?;
    await_more(&lab, "h1", "h2")?;
    for host in ["h1", "h2"] {
        let place: Place = host.parse()?;
        lab.lab.kill(place)?;
        lab.lab.start(place)?;
        await_kernel(&lab, ["h1", "h2"], true).with_context(|| format!("after {host} was killed"))?;
        stream.goes_on().with_context(|| format!("after {host} was killed\n{}", lab.logs()))?;
        await_more(&lab, "h1", "h2").with_context(|| format!("after {host} was killed"))?;
    }
    net(&lab, &["layout", "star"])?;
    stream.goes_on().context("sealed again")?;
    stream.end()
}

/// Starts a node for h2 that does not leave this to the kernel.
fn start_without(lab: &TestLab) -> Result<Program> {
    let layout = lab::layout::Layout::of(lab.name());
    let [pki, state] = [layout.pki(), layout.state("h2".parse()?)];
    let [pki, state] = [pki.to_str().context("a path")?, state.to_str().context("a path")?];
    let program = lab.program().to_str().context("a path")?;
    let line = [
        &["lab", "exec", "h2", "--", program, "node", "--name", "h2", "--listen", "10.77.0.2:7700"][..],
        &["--join", "10.77.255.254:7700", "--pki", pki, "--state", state, "--images", state],
        &["--without", "kernel"],
    ];
    Program::start(&mut lab.command(&line.concat()))
}

#[test]
fn a_node_without_kernel_programs_carries_its_links_in_the_plane() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(2)?;
    net(&lab, &["layout", "star", "--plain"])?;
    await_kernel(&lab, ["h1", "h2"], true)?;
    let uses = |host: &str| -> Result<Option<bool>> {
        let known = status(&lab)?.hosts.into_iter().find(|known| known.name == host);
        let state = known.and_then(|known| known.state);
        Ok(state.map(|state| state.offloads.iter().any(|offload| offload == "kernel")))
    };
    ensure!(uses("h2")? == Some(true));
    lab.lab.kill("h2".parse()?)?;
    let mut node = start_without(&lab)?;
    lab.eventually("h2 says that it does not use it", || Ok(uses("h2")? == Some(false)))?;
    await_kernel(&lab, ["h1", "h2"], false)?;
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h2", "--"], "10.88.0.2")?;
    stream.goes_on()?;
    ensure!(sent(&lab, "h1", "h2")? == 0);
    stream.end()?;
    node.signal(libc::SIGTERM)?;
    node.end(LIMIT)?.success()?;
    Ok(())
}
