//! Instances whose remains are being removed.

use std::collections::HashSet;

use instance::InstanceName;
use tokio::sync::watch;

/// Instances whose remains are being removed. A new instance of the same name, or a restored one of the same VID, must wait for that.
#[derive(Debug, Default)]
pub struct Departing(watch::Sender<HashSet<InstanceName>>);

impl Departing {
    pub fn begin(&self, name: InstanceName) {
        self.0.send_modify(|names| {
            names.insert(name);
        });
    }

    pub fn end(&self, name: &InstanceName) {
        self.0.send_modify(|names| {
            names.remove(name);
        });
    }

    /// Waits until all remains of an instance called `name` are removed.
    pub async fn wait_for(&self, name: &InstanceName) {
        // The channel is never closed while a task waits.
        let _ = self.0.subscribe().wait_for(|names| !names.contains(name)).await;
    }
}
