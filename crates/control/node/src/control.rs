//! The connection to the coordinator, which is re-established whenever it is lost.
//!
//! * [`messages`]: passes the coordinator's messages on. [`hosts`]: what it says about hosts and places. [`processes`]: what it sends to
//!   processes of instances. [`questions`]: answers its questions about instances.

mod hosts;
mod messages;
mod processes;
mod questions;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc::wire::{FromCoordinator, FromNode, VERSION};
use rpc::{COORDINATOR, Endpoint, channel};
use tokio::time::sleep;

use crate::agent::Agent;
use crate::error::NodeError;
use crate::network::Network;
use crate::progress::{Progress, ProgressSink};

pub use self::hosts::Hosts;
pub use self::messages::Messages;
pub use self::processes::Processes;
pub use self::questions::Questions;

/// The pause before the first attempt to reconnect to the coordinator, and the longest pause between two attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Connects to the coordinator.
pub struct Control {
    endpoint: Endpoint,
    agent: Arc<Agent>,
    network: Arc<Network>,
    messages: Messages,
    /// Whether this host runs instances, or only joins the overlay.
    runs_instances: bool,
    progress: ProgressSink,
}

enum End {
    Lost,
    Unwanted(NodeError),
}

impl Control {
    pub fn new(
        endpoint: Endpoint,
        agent: Arc<Agent>,
        network: Arc<Network>,
        messages: Messages,
        runs_instances: bool,
        progress: ProgressSink,
    ) -> Self {
        Self { endpoint, agent, network, messages, runs_instances, progress }
    }

    /// Keeps a connection to the coordinator at `join`, and announces `address` to it as the address of this node.
    /// Returns only if the coordinator refuses the node.
    pub async fn stay_connected(&self, join: SocketAddr, address: SocketAddr) -> NodeError {
        let mut back_off = BACK_OFF.0;
        loop {
            match self.converse(join, address).await {
                Ok(End::Unwanted(error)) => return error,
                Ok(End::Lost) => {
                    (self.progress)(Progress::Lost);
                    back_off = BACK_OFF.0;
                }
                Err(error) => {
                    tracing::info!("the coordinator at {join} cannot be reached: {error}");
                    (self.progress)(Progress::Unreachable(error.to_string()));
                    back_off = (back_off * 2).min(BACK_OFF.1);
                }
            }
            self.agent.set_coordinator(None);
            sleep(back_off).await;
        }
    }

    async fn converse(&self, join: SocketAddr, address: SocketAddr) -> io::Result<End> {
        let stream = self.endpoint.connect(join, COORDINATOR).await?;
        let (outbox, mut inbox) = channel::open::<FromNode, FromCoordinator>(stream);
        let (here, runs_instances) = (self.agent.here(), self.runs_instances);
        let hello = FromNode::Hello { version: VERSION, address, here, runs_instances };
        outbox.send(&hello).map_err(io::Error::other)?;
        let mut welcome = false;
        loop {
            let received = tokio::select! {
                received = inbox.receive() => received,
                () = self.network.needs_renewal() => return Ok(End::Lost),
            };
            match received {
                Ok(Some(FromCoordinator::Refused { reason })) => {
                    return Ok(End::Unwanted(NodeError::Refused(reason)));
                }
                Ok(Some(FromCoordinator::Dismissed { reason })) => {
                    return Ok(End::Unwanted(NodeError::Removed(reason)));
                }
                Ok(Some(message)) => {
                    self.messages.take(message, &outbox);
                    if !welcome {
                        welcome = true;
                        tracing::info!("connected to the coordinator at {join}");
                        self.agent.set_coordinator(Some(outbox.clone()));
                        self.begin();
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

    /// Tells the coordinator what it has to know from this node.
    fn begin(&self) {
        (self.progress)(Progress::Connected);
        if let Some(request) = self.network.own_device_request() {
            self.agent.uplink().send(&FromNode::Net(request));
        }
        self.messages.report_again();
    }
}
