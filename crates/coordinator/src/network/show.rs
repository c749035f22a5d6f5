//! How the overlay is, for the command line. What many hosts say is longer than a line may be: each is told by itself.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::{Event, NetHost, NetHostState, NetLink, Network};
use moves::HostName;
use rpc::net::Question;
use rpc::wire::{Answer, split_reason};
use tokio::task::JoinSet;

use super::plan::{Plan, Terms};
use crate::cluster::Cluster;
use crate::server::Client;

/// How long a node may take to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Links, or the like, in one event.
const AT_ONCE: usize = 1000;

/// Tells how all is.
///
/// # Errors
/// If the client cannot be told.
pub async fn state(cluster: &Arc<Cluster>, client: &mut Client) -> io::Result<()> {
    let (network, plan) = overview(cluster);
    client.say(&Event::Network(network)).await?;
    let failed = cluster.lock().network.failed().clone();
    let states = states(ask_all(cluster, &plan, &Question::State).await);
    let links = links(&plan, &states);
    for (host, state) in states {
        let failure = failed.get(&host).map(|reason| split_reason(reason).0.to_owned());
        client.say(&Event::NetHost(Box::new(NetHost { name: host.to_string(), state, failure }))).await?;
    }
    for links in links.chunks(AT_ONCE) {
        client.say(&Event::NetLinks(links.to_vec())).await?;
    }
    client.say(&Event::Done).await
}

/// Tells where MACs are.
///
/// # Errors
/// If the client cannot be told.
pub async fn macs(cluster: &Arc<Cluster>, client: &mut Client) -> io::Result<()> {
    let (_, plan) = overview(cluster);
    for host in plan.members() {
        let mut first = 0;
        loop {
            let answer = cluster.ask_net(host, Question::Macs { first }, LIMIT).await;
            let Ok(Answer::Macs(macs)) = answer else { break };
            for macs in macs.chunks(AT_ONCE) {
                client.say(&Event::NetMacs { host: host.to_string(), macs: macs.to_vec() }).await?;
            }
            first += macs.len();
            if macs.len() < Question::MOST_MACS {
                break;
            }
        }
    }
    client.say(&Event::Done).await
}

/// Tells who has sent how much to whom.
///
/// # Errors
/// If the client cannot be told.
pub async fn matrix(cluster: &Arc<Cluster>, window_s: u64, client: &mut Client) -> io::Result<()> {
    let (_, plan) = overview(cluster);
    for (host, answer) in ask_all(cluster, &plan, &Question::Matrix { window_s }).await {
        let Some(Answer::Flows(flows)) = answer else { continue };
        for flows in flows.chunks(AT_ONCE) {
            client.say(&Event::NetFlows { host: host.to_string(), flows: flows.to_vec() }).await?;
        }
    }
    client.say(&Event::Done).await
}

fn overview(cluster: &Cluster) -> (Network, Plan) {
    let inner = cluster.lock();
    let plan = inner.network.plan().clone();
    let network = Network {
        version: plan.version().0,
        awaited: inner.network.awaited().map(HostName::to_string).collect(),
        center: plan.center().map(HostName::to_string),
    };
    (network, plan)
}

/// How it is on each host that has said it.
type States = BTreeMap<HostName, Option<NetHostState>>;

fn states(answers: BTreeMap<HostName, Option<Answer>>) -> States {
    let state = |answer| match answer {
        Some(Answer::Net(state)) => Some(*state),
        _ => None,
    };
    answers.into_iter().map(|(host, answer)| (host, state(answer))).collect()
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

/// What each host of the plan answers, if it does.
async fn ask_all(
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
