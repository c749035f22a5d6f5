//! Opens links for processes of this host.

use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;

use broker::{Passing, Peers, RemoteLink};
use fabric::attach::LinkRefusal;
use fabric::directory::{Member, Request};
use fabric::link::LinkRequest;
use fabric::session::{Server, Word};
use fabric::{InstanceId, Vid};
use moves::HostName;
use rpc::wire::{FromNode, LinkAnswer, LinkQuestion};

use super::data_port;
use super::linking::{self, Asker, Locator, Nonce, Unreachable};
use super::pool::Pool;
use crate::agent::{Agent, Unanswered};
use crate::directory::{Directory, Place};

/// Asks other nodes for links. Clones are the same.
#[derive(Clone)]
pub struct LinkAsker {
    host: HostName,
    agent: Arc<Agent>,
    directory: Arc<Directory>,
    pool: Arc<Pool>,
}

impl LinkAsker {
    pub fn new(host: HostName, agent: Arc<Agent>, directory: Arc<Directory>, pool: Arc<Pool>) -> Self {
        Self { host, agent, directory, pool }
    }

    async fn open(self, request: LinkRequest) -> Result<RemoteLink, LinkRefusal> {
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce).map_err(|_| LinkRefusal::Unreachable)?;
        let (epoch, socket) = linking::open(&self, request, nonce).await?;
        Ok(RemoteLink { epoch, socket })
    }
}

impl Locator for LinkAsker {
    fn directory(&self) -> &Directory {
        &self.directory
    }

    async fn ask_where(&self, vid: Vid) -> Result<Option<Place>, Unanswered> {
        self.agent.ask_where(vid).await
    }
}

impl Asker for LinkAsker {
    type Socket = StdStream;

    fn host(&self) -> &HostName {
        &self.host
    }

    async fn ask_node(&self, host: &HostName, question: LinkQuestion) -> Result<LinkAnswer, Unreachable> {
        self.pool.ask_node(host, question).await
    }

    async fn connect(&self, host: &HostName, data_port: u16, nonce: Nonce) -> Result<StdStream, Unreachable> {
        let address = self.directory.address(host).ok_or(Unreachable)?;
        let connecting = data_port::connect(SocketAddr::new(address.ip(), data_port), nonce);
        connecting.await.map_err(|_| Unreachable)
    }
}

/// The broker's interface to other hosts.
pub struct BrokerPeers(pub LinkAsker);

impl Peers for BrokerPeers {
    fn open(&self, request: LinkRequest) -> broker::Answer<RemoteLink> {
        Box::pin(self.0.clone().open(request))
    }

    fn nudge(&self, request: LinkRequest) -> broker::Answer<()> {
        let asker = self.0.clone();
        Box::pin(async move { linking::nudge(&asker, request).await })
    }

    fn ask_directory(&self, asker: Member, number: u64, request: Request) {
        self.0.agent.uplink().send(&FromNode::Directory { process: asker.process, number, request });
    }

    fn sessions_say(&self, instance: InstanceId, server: Server, word: Word) -> Passing {
        let coordinator = self.0.agent.uplink().connection();
        Box::pin(async move {
            if let Some(coordinator) = coordinator {
                // After a reconnect, the first process repeats the message.
                let message = FromNode::Sessions { vid: instance.vid, server, word };
                let _ = coordinator.send_in_turn(&message).await;
            }
        })
    }
}
