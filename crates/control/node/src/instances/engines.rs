//! The engines of this host, by the kinds of workload that they run.

use std::sync::Arc;

use engine_api::{Engine, Error, Intent, Local, Report, Result, Shortage};
use instance::Kind;

use super::live::Live;

/// The list of engines.
pub struct Engines(Vec<Arc<dyn Engine>>);

impl Engines {
    /// A list of engines; empty if the host has only joined the overlay. The first engine for a kind of workload is used.
    pub fn new(engines: Vec<Arc<dyn Engine>>) -> Self {
        Self(engines)
    }

    /// Whether the host runs instances at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<dyn Engine>> {
        self.0.clone()
    }

    /// The engine that runs this kind of workload.
    ///
    /// # Errors
    /// If there is none.
    pub fn of(&self, kind: Kind) -> Result<Arc<dyn Engine>> {
        let mut engines = self.0.iter();
        let found = engines.find(|engine| engine.capabilities().kinds.contains(&kind)).cloned();
        found.ok_or_else(|| match self.is_empty() {
            true => Error::unusable(
                "this host runs no instances: it has joined only the overlay, with `transhume net up`",
                "choose a host that runs `transhume node`",
            ),
            false => Error::unusable(
                format!("this host has no engine for instances of the kind {kind}"),
                "choose another host",
            ),
        })
    }

    /// The result of `work` with the engine that runs this kind of workload. `work` may block.
    pub async fn run<T: Send + 'static>(
        &self,
        kind: Kind,
        work: impl FnOnce(Arc<dyn Engine>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let engine = self.of(kind)?;
        blocking(move || work(engine)).await
    }

    /// The result of `work` with an instance of this host. `work` may block.
    pub async fn local<T: Send + 'static>(
        &self,
        live: &Live,
        work: impl FnOnce(&dyn Local) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let name = live.name.clone();
        self.run(live.kind, move |engine| work(&*engine.local(&name)?)).await
    }

    /// Checks an instance without further consequences.
    pub async fn look(&self, live: &Live, intent: Intent) -> Result<Report> {
        let name = live.name.clone();
        self.run(live.kind, move |engine| engine.source(&name)?.check(intent)).await
    }

    /// Whether the kernel has killed processes of an instance for lack of memory.
    pub fn shortage(&self, live: &Live) -> Shortage {
        let local = self.of(live.kind).and_then(|engine| engine.local(&live.name));
        local.map_or_else(|_| Shortage::default(), |local| local.shortage())
    }

    /// Ends an instance and removes its remains in the engine. A host without an engine for it has no remains.
    pub async fn destroy(&self, live: &Live) -> Result<()> {
        if self.of(live.kind).is_err() {
            return Ok(());
        }
        let name = live.name.clone();
        self.run(live.kind, move |engine| engine.destroy(&name)).await
    }
}

/// The result of `work`, which may block.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let worked = tokio::task::spawn_blocking(work).await;
    worked.unwrap_or_else(|_| Err(Error::unusable("the engine panicked", "see the node's log")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_engines_refuses_every_kind_of_workload() {
        let engines = Engines::new(Vec::new());
        for kind in [Kind::Process, Kind::Container, Kind::Vm] {
            let Err(refusal) = engines.of(kind) else { panic!("{kind} has an engine") };
            assert!(refusal.to_string().starts_with("this host runs no instances"), "{refusal}");
        }
    }
}
