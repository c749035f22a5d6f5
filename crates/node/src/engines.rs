//! The engines of this host, by the kinds of workload that they run.

use std::sync::Arc;

use engine_api::{Destination, Engine, Error, Local, Result, Source};
use fabric::Vid;
use instance::Kind;

use crate::instances::Live;
use crate::node::Node;

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
}

impl Node {
    /// The result of `work` with the engine that runs this kind of workload. `work` may block.
    pub async fn engine<T: Send + 'static>(
        &self,
        kind: Kind,
        work: impl FnOnce(Arc<dyn Engine>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let engine = self.engines.of(kind)?;
        blocking(move || work(engine)).await
    }

    /// The result of `work` with an instance of this host. `work` may block.
    pub async fn local<T: Send + 'static>(
        &self,
        live: &Live,
        work: impl FnOnce(&dyn Local) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let name = live.name.clone();
        self.engine(live.kind, move |engine| work(&*engine.local(&name)?)).await
    }

    /// The result of `work` with the source side of a move of the instance, which is opened if it is not open. `work` may block.
    pub async fn source<T: Send + 'static>(
        &self,
        vid: Vid,
        live: &Live,
        work: impl FnOnce(&dyn Source) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sides, name) = (self.sides.clone(), live.name.clone());
        self.engine(live.kind, move |engine| work(&*sides.source(vid, || engine.source(&name))?)).await
    }

    /// The result of `work` with the destination side of a move of the instance, which is opened if it is not open. `work` may block.
    pub async fn destination<T: Send + 'static>(
        &self,
        vid: Vid,
        live: &Live,
        work: impl FnOnce(&dyn Destination) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sides, name) = (self.sides.clone(), live.name.clone());
        self.engine(live.kind, move |engine| work(&*sides.destination(vid, || engine.destination(&name))?))
            .await
    }

    /// Ends an instance and removes its remains in the engine. A host without an engine for it has no remains.
    pub async fn destroy_instance(&self, live: &Live) -> Result<()> {
        if self.engines.of(live.kind).is_err() {
            return Ok(());
        }
        let name = live.name.clone();
        self.engine(live.kind, move |engine| engine.destroy(&name)).await
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
