//! An instance with many active peers moves, in virtual time: how long it takes until it is suspended, and until it has its links
//! again.
//!
//! The machines are the daemons' own: `moves::Coordinator`, a `moves::NodeAgent` and a `Directory` for each host, and a node's
//! decisions about links (`linking`). The network between them is simulated: a hop takes [`HOP`], and the sender and receiver of a message
//! are busy for as long as that took on loopback, one message after the other ([`cost`]). If no party were ever busy, a run would take
//! the time of its hops.
//!
//! It leaves out connections among nodes, which are made during the transfer ([`crate::links`]), and all of a move between the
//! suspension and the commit. ADR 0033 has the measurements.

mod party;
mod world;

use world::{Figures, Layout, World};

/// The delay from one host to another, in microseconds.
const HOP: f64 = 100.0;

/// The time for which a party is busy with a task, in microseconds: processor time on loopback, where the sender also does the
/// kernel's work of receiving.
mod cost {
    /// A message over TLS, at either end.
    pub const MESSAGE: f64 = 5.5;
    /// An instance in a question for its location, or in the answer.
    pub const ENTRY: f64 = 0.1;
    /// A packet from a process to its node, or back, at the node's end; and a request for a link, at the process's end.
    pub const PACKET: f64 = 2.0;
    pub const SAY: f64 = 0.7;
    /// A connection to another host's data port; and one from there.
    pub const CONNECT: f64 = 26.0;
    pub const ACCEPT: f64 = 19.0;
    /// A new link, in its process: the packet with its descriptor, and both greetings.
    pub const LINK: f64 = 11.0;
    /// A link that a turn of the process's thread checks.
    pub const LOOK: f64 = 1.2;
    /// A link that is closed, after its last message.
    pub const CLOSE: f64 = 7.0;
}

fn run(layout: Layout, busy: bool) -> Figures {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { World::new(layout, busy).move_once().await })
}

/// The length of the longest chain of messages that wait for each other.
fn hops(layout: Layout) -> f64 {
    let figures = run(layout, false);
    (figures.suspended + figures.last) / HOP
}

#[test]
fn a_thousand_peers_learn_the_location_in_as_many_hops_as_one_and_within_forty_milliseconds() {
    println!(
        "peers  hosts  hops  suspended  told  first  half  last link  in all (ms)  coordinator's messages"
    );
    let one = hops(Layout { peers: 1, hosts: 1 });
    for (peers, hosts) in [(1, 1), (10, 10), (100, 100), (1000, 1000), (1000, 50)] {
        let layout = Layout { peers, hosts };
        let (hops, figures) = (hops(layout), run(layout, true));
        let Figures { suspended, told, first, half, last, messages } = figures;
        let [suspended, told, first, half, last] = [suspended, told, first, half, last].map(|us| us / 1000.0);
        let all = suspended + last;
        println!(
            "{peers:5}  {hosts:5}  {hops:4}  {suspended:9.2}  {told:4.2}  {first:5.2}  {half:4.2}  {last:9.2}  {all:11.2}  {messages}",
            hosts = layout.hosts
        );
        assert!(
            hops <= one + f64::from(peers).log2().ceil(),
            "{peers} peers take {hops} hops, one takes {one}"
        );
        assert!(all < 40.0, "{peers} peers take {all} ms");
    }
}

#[test]
fn the_simulation_is_deterministic() {
    let layout = Layout { peers: 100, hosts: 7 };
    assert_eq!(run(layout, true), run(layout, true));
}
