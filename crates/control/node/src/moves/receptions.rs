//! The connections of moves that come to this host. A connection names its move, and is accepted only from the host that the
//! coordinator has named for that move.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use fabric::Vid;
use moves::{HostName, MoveId};
use rpc::Stream;
use tokio::sync::mpsc;

use super::channels::ChannelSet;
use crate::lock::lock;

/// The connections that this host expects from sources of moves.
#[derive(Default)]
pub struct Receptions {
    expected: Mutex<HashMap<MoveId, Expected>>,
}

struct Expected {
    vid: Vid,
    source: HostName,
    channels: Arc<ChannelSet>,
    arrived: mpsc::Sender<Stream>,
    arrival: Arc<tokio::sync::Mutex<mpsc::Receiver<Stream>>>,
}

impl Receptions {
    /// Expects images of `vid` from `source`, and channels.
    pub fn expect(&self, id: MoveId, vid: Vid, source: HostName, channels: Arc<ChannelSet>) {
        let (arrived, arrival) = mpsc::channel(1);
        let arrival = Arc::new(tokio::sync::Mutex::new(arrival));
        self.lock().insert(id, Expected { vid, source, channels, arrived, arrival });
    }

    /// Accepts the connection that `from` has opened for a move, if it is expected.
    pub fn arrive(&self, id: MoveId, vid: Vid, from: &str, stream: Stream) {
        let expected = self.lock();
        match expected.get(&id) {
            Some(expected) if expected.vid == vid && expected.source.as_str() == from => {
                // One connection is enough: a second one is closed.
                let _ = expected.arrived.try_send(stream);
            }
            _ => tracing::warn!("{from} offers unexpected images of instance {vid} for {id}"),
        }
    }

    /// Accepts a channel that `from` has opened for a move, if the move is expected.
    pub fn channel(
        &self,
        (id, vid): (MoveId, Vid),
        from: &str,
        name: &str,
        stream: Stream,
    ) -> io::Result<()> {
        let channels = match self.lock().get(&id) {
            Some(expected) if expected.vid == vid && expected.source.as_str() == from => {
                expected.channels.clone()
            }
            _ => {
                return Err(io::Error::other(format!(
                    "a channel of instance {vid} for {id} is not expected"
                )));
            }
        };
        channels.arrive(name, stream)
    }

    /// The connection for a move, when it arrives; `None` if none is expected.
    pub async fn stream(&self, id: MoveId) -> Option<Stream> {
        let arrival = self.lock().get(&id)?.arrival.clone();
        arrival.lock().await.recv().await
    }

    /// Stops expecting a connection for a move.
    pub fn close(&self, id: MoveId) {
        self.lock().remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MoveId, Expected>> {
        lock(&self.expected)
    }
}
