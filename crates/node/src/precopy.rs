//! Pre-copy: sends the memory of an instance to its destination while it runs.
//!
//! Each round reads the memory, and sends the pages that the destination does not have. Rounds repeat until so few pages are new that
//! sending them in the blackout takes little time.

use std::sync::Arc;

use fabric::Vid;
use moves::node::{Input, Outcome};
use moves::{HostName, MoveId};
use rpc::wire::Measurement;
use tokio::time::interval;

use self::looks::Looks;
use crate::cancel::Cancel;
use crate::images::Courier;
use crate::node::Node;
use crate::operations::{PROGRESS, Reason, Result, watch};

mod looks;

impl Node {
    /// Opens the connection on which the images will go, and sends the memory over it.
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
        let mut looks = Looks::new(self.move_bandwidth);
        loop {
            let telling = (vid, id, &looks);
            self.precopy_look(telling, &courier, &destination, cancel).await?;
            // What changes from here on is fetched later.
            if post_copy || !looks.next(courier.meter().read()) {
                break;
            }
        }
        let bytes = courier.given();
        self.measured(id, Measurement::Precopied { bytes });
        Ok(Outcome::Copied { bytes })
    }

    async fn precopy_look(
        self: &Arc<Self>,
        telling: (Vid, MoveId, &Looks),
        courier: &Arc<Courier>,
        destination: &HostName,
        cancel: &Arc<Cancel>,
    ) -> Result<()> {
        let name = self.known(telling.0)?.name;
        let (cancelled, sink) = (cancel.clone(), courier.sink(cancel));
        let looking =
            self.engine(move |engine| engine.show_memory(&name, &sink, &watch(&|| cancelled.is_cancelled())));
        let looked = self.telling_of(telling, courier, looking).await;
        let sent = match looked {
            Err(engines::Error::NotTaken(error)) => Err(error),
            other => {
                other.map_err(|error| self.in_words(error))?;
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

    /// Does `work`, and tells meanwhile how far it all is.
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
                    self.measured(id, looks.measurement(now));
                    // That it goes on; what it comes to is said by that.
                    self.input(Input::Progress { vid, bytes: now.sent, total: now.sent });
                }
            }
        }
    }
}
