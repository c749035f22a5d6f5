//! The output of instances: the broker keeps it while they are here, and the node keeps the output of the last ones that have
//! ended.

use std::sync::Arc;

use broker::Broker;
use engine_api::State;
use fabric::Vid;
use instance::Follower;
use rpc::wire::{Answer, Question, reason};
use tokio::time::timeout;

use super::ended::Ended;
use super::live::LiveInstances;

/// The length limit of output in one answer, in bytes: a slow follower must still be served in time.
const LIMIT: usize = 64 * 1024;

/// The output of the instances of this host, and of the last ones that have ended here.
pub struct Outputs {
    live: Arc<LiveInstances>,
    broker: Broker,
    ended: Arc<Ended>,
}

impl Outputs {
    pub fn new(live: Arc<LiveInstances>, broker: Broker, ended: Arc<Ended>) -> Self {
        Self { live, broker, ended }
    }

    /// Removes `follower` of an instance's output.
    pub fn unfollow(&self, vid: Vid, follower: Follower) {
        if let Some(live) = self.live.get(vid) {
            self.broker.unfollow(live.id(vid), follower);
        }
    }

    /// The output of an instance from position `from` on. For a `follower`, waits until there is some.
    pub async fn read(&self, vid: Vid, from: u64, follower: Option<Follower>) -> Result<Answer, String> {
        let Some(live) = self.live.get(vid) else { return self.output_of_ended(vid, from) };
        if let Some(follower) = follower {
            self.broker.follow(live.id(vid), follower, from);
            let arrival = self.broker.output_after(live.id(vid), from);
            // An empty output after the timeout is an answer as well.
            let _ = timeout(Question::OUTPUT_PATIENCE, arrival).await;
        }
        match self.broker.output(live.id(vid), from, LIMIT) {
            Some((chunks, next, exit)) => Ok(Answer::Output { chunks, next, exit }),
            None => self.output_without_broker(vid, from),
        }
    }

    /// The broker forgets an instance that has ended before this node does, but after its output is stored. For an instance that
    /// will run here, stored output of another instance with its VID does not count.
    fn output_without_broker(&self, vid: Vid, from: u64) -> Result<Answer, String> {
        let not_yet = || "the instance is not running here yet".to_owned();
        match self.live.get(vid).map(|live| live.state) {
            None | Some(State::Ended) => self.output_of_ended(vid, from),
            Some(State::Running) => self.output_of_ended(vid, from).map_err(|_| not_yet()),
            Some(State::Prepared | State::Stopped | State::Held) => Err(not_yet()),
        }
    }

    fn output_of_ended(&self, vid: Vid, from: u64) -> Result<Answer, String> {
        let kept = self.ended.read(vid, from, LIMIT);
        let (chunks, next, exit) = kept.ok_or_else(|| {
            reason(
                "the node no longer keeps the instance's output: it was restarted, or many other instances have ended since",
                "have the command write important output to a file",
            )
        })?;
        Ok(Answer::Output { chunks, next, exit })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use broker::{NoObserver, NoPeers};
    use fabric::attach::OutputStream::Stdout;
    use fabric::{FabricId, NetworkKind};
    use instance::{Blueprint, Carried, Chunk, InstanceName, InstanceSpec, Network, Program, Workload};

    use super::*;
    use crate::instances::live::Live;

    fn live(state: State) -> Live {
        let spec = InstanceSpec {
            name: InstanceName::new("job").unwrap(),
            network: Network { mac: [2; 6], address: Ipv4Addr::LOCALHOST, prefix: 8, mtu: 1500 },
            network_kind: NetworkKind::Bridge,
            workload: Workload::Process(Program::new(["true"])),
        };
        Live::new(&Blueprint { fabric: FabricId(1), spec }, state, None)
    }

    #[tokio::test]
    async fn output_of_a_just_ended_instance_is_always_available() {
        let vid = Vid::new(1).unwrap();
        let (here, ended) = (Arc::<LiveInstances>::default(), Arc::<Ended>::default());
        let outputs = Outputs::new(here.clone(), Broker::new(NoPeers, NoObserver), ended.clone());
        let chunk = Chunk { stream: Stdout, bytes: b"last words".to_vec() };
        let mut carried = Carried { exit: Some(0), ..Carried::default() };
        carried.output.push(chunk.clone());
        here.insert(vid, live(State::Running));
        assert!(outputs.read(vid, 0, None).await.unwrap_err().contains("is not running here yet"));
        ended.keep(vid, carried);
        let whole = Ok(Answer::Output { chunks: vec![chunk], next: 1, exit: Some(0) });
        assert_eq!(outputs.read(vid, 0, None).await, whole, "the broker has forgotten it");
        here.remove(vid);
        assert_eq!(outputs.read(vid, 0, None).await, whole, "the node, too");
        here.insert(vid, live(State::Prepared));
        assert!(outputs.read(vid, 0, None).await.is_err(), "another instance with its VID will come");
    }
}
