//! The state of the overlay for the command line. The state of many hosts would exceed the length of a line, so each host gets its own event.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::{Event, NetHost, NetHostState, NetLink, Network};
use moves::HostName;
use rpc::net::Question;
use rpc::wire::{Answer, split_reason};
use tokio::task::JoinSet;

use super::devices::Devices;
use super::nics;
use super::plan::{Plan, Terms};
use super::rollout::Rollout;
use crate::client::Client;
use crate::core::Cluster;

/// Time limit for a node's answer.
const LIMIT: Duration = Duration::from_secs(2);

/// The limit of links, or similar entries, in one event.
const AT_ONCE: usize = 1000;

/// Sends the state of all hosts and links.
///
/// # Errors
/// If sending to the client fails.
pub async fn state(cluster: &Arc<Cluster>, client: &mut Client) -> io::Result<()> {
    let (network, plan) = overview(cluster);
    client.say(&Event::Network(network)).await?;
    let states = states(ask_all(cluster, &plan, &Question::State).await);
    let links = links(&plan, &states);
    for host in hosts(cluster, states) {
        client.say(&Event::NetHost(Box::new(host))).await?;
    }
    for links in links.chunks(AT_ONCE) {
        client.say(&Event::NetLinks(links.to_vec())).await?;
    }
    client.say(&Event::Done).await
}

/// Sends the locations of MACs.
///
/// # Errors
/// If sending to the client fails.
pub async fn macs(cluster: &Arc<Cluster>, client: &mut Client) -> io::Result<()> {
    let (_, plan) = overview(cluster);
    let mut unanswered = Vec::new();
    for host in plan.members() {
        let mut first = 0;
        loop {
            let answer = cluster.ask_net(host, Question::Macs { first }, LIMIT).await;
            let Ok(Answer::Macs(macs)) = answer else {
                unanswered.push(host.to_string());
                break;
            };
            for macs in macs.chunks(AT_ONCE) {
                client.say(&Event::NetMacs { host: host.to_string(), macs: macs.to_vec() }).await?;
            }
            first += macs.len();
            if macs.len() < Question::MOST_MACS {
                break;
            }
        }
    }
    end_without(unanswered, client).await
}

/// Sends the traffic matrix.
///
/// # Errors
/// If sending to the client fails.
pub async fn matrix(cluster: &Arc<Cluster>, window_s: u64, client: &mut Client) -> io::Result<()> {
    let (_, plan) = overview(cluster);
    let mut unanswered = Vec::new();
    for (host, answer) in ask_all(cluster, &plan, &Question::Matrix { window_s }).await {
        let Some(Answer::Flows(flows)) = answer else {
            unanswered.push(host.to_string());
            continue;
        };
        for flows in flows.chunks(AT_ONCE) {
            client.say(&Event::NetFlows { host: host.to_string(), flows: flows.to_vec() }).await?;
        }
    }
    end_without(unanswered, client).await
}

/// Sends the devices of each host that can be attached.
///
/// # Errors
/// If sending to the client fails.
pub async fn available(cluster: &Arc<Cluster>, client: &mut Client) -> io::Result<()> {
    let (_, plan) = overview(cluster);
    let mut unanswered = Vec::new();
    for (host, answer) in ask_all(cluster, &plan, &Question::Available).await {
        match answer {
            Some(Answer::Available(devices)) => {
                client.say(&Event::NetAvailable { host: host.to_string(), devices }).await?;
            }
            _ => unanswered.push(host.to_string()),
        }
    }
    end_without(unanswered, client).await
}

/// Sends the last event, with the hosts that have not answered.
async fn end_without(hosts: Vec<String>, client: &mut Client) -> io::Result<()> {
    if !hosts.is_empty() {
        client.say(&Event::NetUnanswered { hosts }).await?;
    }
    client.say(&Event::Done).await
}

fn overview(cluster: &Cluster) -> (Network, Plan) {
    let state = cluster.view();
    let plan = state.get::<Rollout>().plan().clone();
    let network = Network {
        version: plan.version().0,
        awaited: state.get::<Rollout>().awaited().map(HostName::to_string).collect(),
        center: plan.center().map(HostName::to_string),
    };
    (network, plan)
}

/// The state of each host that has answered.
type States = BTreeMap<HostName, Option<NetHostState>>;

fn states(answers: BTreeMap<HostName, Option<Answer>>) -> States {
    let state = |answer| match answer {
        Some(Answer::Net(state)) => Some(*state),
        _ => None,
    };
    answers.into_iter().map(|(host, answer)| (host, state(answer))).collect()
}

/// The hosts of the plan with their state, if they answered, and hosts outside the plan that have devices or instances on the overlay: they were
/// disconnected when it was laid out again.
fn hosts(cluster: &Cluster, mut states: States) -> Vec<NetHost> {
    let view = cluster.view();
    for host in view.get::<Devices>().hosts().into_iter().chain(nics::hosts(&view)) {
        states.entry(host).or_default();
    }
    let noted = |host: &HostName| [view.get::<Devices>().noted(host), nics::noted(&view, host)].concat();
    let describe = |(host, state): (HostName, Option<NetHostState>)| NetHost {
        name: host.to_string(),
        connected: view.links().is_up(&host),
        noted: if state.is_none() { noted(&host) } else { Vec::new() },
        failure: view.get::<Rollout>().failed().get(&host).map(|reason| split_reason(reason).0.to_owned()),
        state,
    };
    states.into_iter().map(describe).collect()
}

fn links(plan: &Plan, states: &States) -> Vec<NetLink> {
    let carrier = |from: &HostName, to: &HostName| {
        let tunnels = &states.get(from)?.as_ref()?.tunnels;
        let tunnel = tunnels.iter().find(|tunnel| tunnel.host == to.as_str() && tunnel.connected);
        tunnel?.carrier
    };
    let link = |((a, b), Terms { cost, plain }): (&(HostName, HostName), Terms)| {
        let carrier = carrier(a, b).zip(carrier(b, a)).map(|(there, back)| there.max(back));
        NetLink { ends: [a.to_string(), b.to_string()], cost, plain, up: carrier.is_some(), carrier }
    };
    plan.links().map(link).collect()
}

/// The answers of the hosts of the plan; `None` for a host that did not answer.
pub(super) async fn ask_all(
    cluster: &Arc<Cluster>,
    plan: &Plan,
    question: &Question,
) -> BTreeMap<HostName, Option<Answer>> {
    let mut asking = JoinSet::new();
    for host in plan.members().cloned() {
        let (cluster, question) = (cluster.clone(), question.clone());
        asking.spawn(async move {
            let answer = cluster.ask_net(&host, question, LIMIT).await.ok();
            (host, answer)
        });
    }
    asking.join_all().await.into_iter().collect()
}

#[cfg(test)]
mod tests;
