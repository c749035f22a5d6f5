//! The connection to the coordinator, which is re-established whenever it is lost.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fabric::directory::{Due, Member};
use moves::node::Input;
use moves::protocol::{Directive, Report, ToCoordinator, ToNode};
use rpc::wire::{FromCoordinator, FromNode, Moved, VERSION};
use rpc::{COORDINATOR, Outbox, channel};
use tokio::time::sleep;

use crate::directory::Place;
use crate::error::NodeError;
use crate::node::Node;
use crate::progress::Progress;

/// The pause before the first attempt to reconnect to the coordinator, and the longest pause between two attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The limit of hosts that the node connects to in advance. In a larger cluster most hosts never communicate with each other, and
/// connections among all would exceed a machine's neighbour table.
const MAX_WARM: usize = 16;

/// Keeps a connection to the coordinator at `join`, and announces `address` to it as the address of this node.
/// Returns only if the coordinator refuses the node.
pub async fn stay_connected(node: Arc<Node>, join: SocketAddr, address: SocketAddr) -> NodeError {
    let mut back_off = BACK_OFF.0;
    loop {
        match converse(&node, join, address).await {
            Ok(End::Unwanted(error)) => return error,
            Ok(End::Lost) => {
                (node.progress)(Progress::Lost);
                back_off = BACK_OFF.0;
            }
            Err(error) => {
                tracing::info!("the coordinator at {join} cannot be reached: {error}");
                (node.progress)(Progress::Unreachable(error.to_string()));
                back_off = (back_off * 2).min(BACK_OFF.1);
            }
        }
        node.agent.set_coordinator(None);
        sleep(back_off).await;
    }
}

enum End {
    Lost,
    Unwanted(NodeError),
}

async fn converse(node: &Arc<Node>, join: SocketAddr, address: SocketAddr) -> io::Result<End> {
    let stream = node.endpoint.connect(join, COORDINATOR).await?;
    let (outbox, mut inbox) = channel::open::<FromNode, FromCoordinator>(stream);
    let (here, runs_instances) = (node.agent.here(), !node.engines.is_empty());
    let hello = FromNode::Hello { version: VERSION, address, here, runs_instances };
    outbox.send(&hello).map_err(io::Error::other)?;
    let mut welcome = false;
    loop {
        let received = tokio::select! {
            received = inbox.receive() => received,
            () = node.network.needs_renewal() => return Ok(End::Lost),
        };
        match received {
            Ok(Some(FromCoordinator::Refused { reason })) => {
                return Ok(End::Unwanted(NodeError::Refused(reason)));
            }
            Ok(Some(FromCoordinator::Dismissed { reason })) => {
                return Ok(End::Unwanted(NodeError::Removed(reason)));
            }
            Ok(Some(message)) => {
                handle(node, message, &outbox);
                if !welcome {
                    welcome = true;
                    tracing::info!("connected to the coordinator at {join}");
                    node.agent.set_coordinator(Some(outbox.clone()));
                    (node.progress)(Progress::Connected);
                    if let Some(request) = node.network.own_device_request() {
                        node.uplink.send(&FromNode::Net(request));
                    }
                    refresh_directory(node);
                }
            }
            Ok(None) => return Ok(End::Lost),
            Err(error) if welcome => {
                tracing::info!("the connection to the coordinator is lost: {error}");
                return Ok(End::Lost);
            }
            Err(error) => return Err(error),
        }
    }
}

/// The coordinator keeps the directory only in memory, from the nodes' reports.
fn refresh_directory(node: &Node) {
    for (instance, roster) in node.broker.rosters() {
        node.uplink.send(&FromNode::Processes { vid: instance.vid, indexes: roster.indexes() });
    }
    node.broker.ask_again();
}

fn handle(node: &Arc<Node>, message: FromCoordinator, outbox: &Outbox<FromNode>) {
    match message {
        FromCoordinator::Refused { .. } | FromCoordinator::Dismissed { .. } => {}
        FromCoordinator::Removed { number, removed } => node.believe(removed, number, outbox.clone()),
        FromCoordinator::Hosts(hosts) => {
            let others = hosts.iter().map(|(host, _)| host.clone()).filter(|host| *host != node.host);
            let others: Vec<_> = others.collect();
            node.directory.set_hosts(hosts);
            if others.len() <= MAX_WARM {
                for host in others {
                    tokio::spawn(node.clone().warm(host));
                }
            }
        }
        FromCoordinator::Moves(message) => match refusal(node, &message) {
            Some(refusal) => node.uplink.send(&FromNode::Moves(refusal)),
            None => node.agent.input(Input::Message(message)),
        },
        FromCoordinator::Moved(moved) => {
            for Moved { vid, host, epoch } in moved {
                node.directory.note(vid, Place { host, epoch });
            }
        }
        FromCoordinator::Names(change) => node.names.change(change),
        FromCoordinator::Directory { process, number, answer } => {
            let fabric = node.live(process.vid).map(|live| live.fabric);
            if let Some(fabric) = fabric {
                node.broker.answer(Due { asker: Member { fabric, process }, number, answer });
            }
        }
        FromCoordinator::Session { vid, id, message } => {
            // One that is on its way to another host hears it there.
            if let Some(live) = node.live(vid) {
                node.broker.tell_session(live.id(vid), id, message);
            }
        }
        FromCoordinator::Net(order) => node.network.take_order(order),
        FromCoordinator::AskNet { number, question } => {
            node.network.take_question(number, question, outbox.clone())
        }
        FromCoordinator::Ask { number, question } => {
            let (node, outbox) = (node.clone(), outbox.clone());
            tokio::spawn(async move {
                let answer = node.answer(question).await;
                let _ = outbox.send(&FromNode::Answer { number, answer });
            });
        }
    }
}

/// The refusal of an arrival whose record has no room: the record precedes everything else.
fn refusal(node: &Node, message: &ToNode) -> Option<ToCoordinator> {
    let ToNode::Move { id, vid, directive: Directive::Prepare { .. } } = message else { return None };
    if node.agent.entry(*vid).is_some() {
        return None;
    }
    let reason = node.agent.ready().err()?;
    let report = Report::Refused { reasons: vec![node.at_home(&reason)] };
    Some(ToCoordinator::Move { id: *id, vid: *vid, report })
}
