//! Tells the coordinator how this host runs virtual machines.

use std::sync::Arc;

use api::Accelerator;
use engine_api::{Engine, MachineSupport};
use rpc::wire::FromNode;

use super::engines::Engines;
use crate::agent::Agent;

/// Tells it over the present connection, as soon as it is known.
pub fn report(engines: &Engines, agent: &Arc<Agent>) {
    for engine in engines.all() {
        let agent = agent.clone();
        tokio::task::spawn_blocking(move || tell(engine.as_ref(), &agent));
    }
}

fn tell(engine: &dyn Engine, agent: &Agent) {
    if let Some(support) = engine.machines() {
        agent.uplink().send(&FromNode::Machines(in_words(support)));
    }
}

fn in_words(support: MachineSupport) -> api::MachineSupport {
    let displays = support.displays.display().to_string();
    let (emulator, accelerator, reason) = match (support.emulator, support.kvm) {
        (Err(reason), _) => (None, None, Some(reason)),
        (Ok(emulator), Ok(())) => (Some(emulator), Some(Accelerator::Kvm), None),
        (Ok(emulator), Err(reason)) => (Some(emulator), Some(Accelerator::Tcg), Some(reason)),
    };
    api::MachineSupport { emulator, accelerator, reason, displays }
}
