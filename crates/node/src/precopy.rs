//! Pre-copy: sends the memory of an instance to its destination while it runs.
//!
//! Each round reads the memory, and sends the pages that the destination does not have. Rounds repeat until so few pages are new that
//! sending them in the blackout takes little time.

use std::io;
use std::sync::Arc;

use engine_api::{Channels, Driver, Error, Outgoing};
use fabric::Vid;
use moves::node::{Input, Outcome};
use moves::{HostName, MoveId};
use rpc::wire::Measurement;
use tokio::runtime::Handle;
use tokio::time::interval;

use self::looks::Looks;
use crate::cancel::Cancel;
use crate::channels::{ChannelSet, OutgoingChannels};
use crate::images::Courier;
use crate::node::Node;
use crate::operations::{PROGRESS, Reason, Result, watch};

mod looks;

impl Node {
    /// Opens the connection for the images, and sends the memory over it.
    pub async fn precopy(
        self: &Arc<Self>,
        vid: Vid,
        id: MoveId,
        (destination, post_copy): (HostName, bool),
        cancel: &Arc<Cancel>,
    ) -> Result<Outcome> {
        let opening = self.open_courier(vid, id, &destination);
        let opened = cancel.unless(opening).await.ok_or("cancelled")?;
        let courier = opened.map_err(|error| Reason(self.images_not_taken(&destination, &error)))?;
        if post_copy {
            courier.leave_changes();
        }
        let channels = self.open_channels(vid, id, &destination, &courier, cancel);
        let channels = channels.map_err(|error| Reason(self.images_not_taken(&destination, &error)))?;
        let driver = self.driver(vid)?;
        let mut looks = Looks::new(self.move_bandwidth);
        loop {
            let telling = (vid, id, &looks);
            self.precopy_look(telling, (&courier, &channels), &destination, cancel).await?;
            // Later changes are fetched by post-copy.
            if post_copy || driver == Driver::Engine || !looks.next(courier.meter().read()) {
                break;
            }
        }
        let bytes = courier.given();
        self.uplink.measured(id, Measurement::Precopied { bytes });
        Ok(Outcome::Copied { bytes })
    }

    /// Whether the node or the engine decides on the rounds.
    fn driver(&self, vid: Vid) -> Result<Driver> {
        let engine = self.engines.of(self.known(vid)?.kind).map_err(|error| self.in_words(&error))?;
        Ok(engine.capabilities().precopy)
    }

    /// The channels with which the engine can reach its counterpart.
    fn open_channels(
        &self,
        vid: Vid,
        id: MoveId,
        destination: &HostName,
        courier: &Courier,
        cancel: &Arc<Cancel>,
    ) -> io::Result<Arc<dyn Channels>> {
        let set = ChannelSet::new(courier.meter().clone(), self.move_bandwidth);
        self.sides.keep_channels(vid, set.clone());
        Ok(Arc::new(OutgoingChannels {
            set,
            endpoint: self.endpoint.clone(),
            host: destination.to_string(),
            address: self.address_of(destination)?,
            id,
            vid,
            cancel: cancel.clone(),
            runtime: Handle::current(),
        }))
    }

    async fn precopy_look(
        self: &Arc<Self>,
        telling: (Vid, MoveId, &Looks),
        (courier, channels): (&Arc<Courier>, &Arc<dyn Channels>),
        destination: &HostName,
        cancel: &Arc<Cancel>,
    ) -> Result<()> {
        let live = self.known(telling.0)?;
        let (cancelled, sink, channels) = (cancel.clone(), courier.sink(cancel), channels.clone());
        let looking = self.source(telling.0, &live, move |source| {
            let to = Outgoing { memory: &sink, channels: &channels };
            source.precopy(to, &watch(&|| cancelled.is_cancelled()))
        });
        let looked = self.telling_of(telling, courier, looking).await;
        let sent = match looked {
            Err(Error::NotTaken(error)) => Err(error),
            other => {
                other.map_err(|error| self.in_words(&error))?;
                let flushing = self.telling_of(telling, courier, courier.flush());
                cancel.unless(flushing).await.ok_or("cancelled")?
            }
        };
        match sent {
            Err(_) if cancel.is_cancelled() => Err("cancelled".into()),
            Err(_) => {
                let told = cancel.unless(self.why_not_taken(destination, courier)).await;
                Err(Reason(told.ok_or("cancelled")?))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Does `work`, and reports the progress of the pre-copy meanwhile.
    async fn telling_of<T>(
        self: &Arc<Self>,
        (vid, id, looks): (Vid, MoveId, &Looks),
        courier: &Courier,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        let mut again = interval(PROGRESS);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = again.tick() => {
                    let now = courier.meter().read();
                    self.uplink.measured(id, looks.measurement(now));
                    // This reports that it continues. The total is not known yet.
                    self.agent.input(Input::Progress { vid, bytes: now.sent, total: now.sent });
                }
            }
        }
    }
}
