//! Connections from other nodes.

use std::sync::Arc;
use std::time::Duration;

use moves::HostName;
use rpc::wire::Opening;
use rpc::{call, frame};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::node::Node;

/// How long a node may take to say what its connection is for.
const OPENING_LIMIT: Duration = Duration::from_secs(5);

/// The most connections that have not yet said who they are.
const MAX_STRANGERS: usize = 256;

impl Node {
    /// Accepts other nodes' connections for as long as it is polled.
    pub async fn accept(self: Arc<Self>, listener: TcpListener) {
        let strangers = Arc::new(Semaphore::new(MAX_STRANGERS));
        loop {
            let Ok(permit) = strangers.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((tcp, address)) => {
                    let node = self.clone();
                    tokio::spawn(async move {
                        if let Err(error) = node.welcome(tcp, permit).await {
                            tracing::debug!("{address} is cut off: {error}");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!("no connection accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn welcome(self: Arc<Self>, tcp: TcpStream, permit: impl Send) -> std::io::Result<()> {
        let (mut stream, name) = self.endpoint.accept(tcp).await?;
        let opening = timeout(OPENING_LIMIT, frame::receive(&mut stream)).await??;
        drop(permit);
        let host = HostName::new(&name).map_err(std::io::Error::other)?;
        match opening {
            Opening::Links => {
                let answer = move |question| self.clone().answer_link(host.clone(), question);
                call::serve(stream, answer).await;
            }
            Opening::Images { id, vid } => self.receptions.arrive(id, vid, host.as_str(), stream),
        }
        Ok(())
    }
}
