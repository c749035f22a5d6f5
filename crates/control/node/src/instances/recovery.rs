//! Finds the instances of this host again after a restart of its node.

use std::collections::HashMap;

use engine_api::{Recovered, State};
use fabric::Vid;
use instance::Blueprint;
use moves::entry::Role;

use super::engines::{Engines, blocking};
use super::files::StateFiles;
use super::live::{Live, LiveInstances};
use crate::agent::Agent;

/// Matches the engines' instances with the node's records, and removes the others.
///
/// # Errors
/// If an engine cannot find its instances.
pub async fn recover(
    engines: &Engines,
    agent: &Agent,
    files: &StateFiles,
    live: &LiveInstances,
) -> engine_api::Result<()> {
    let mut found = HashMap::new();
    for engine in engines.all() {
        let here = engine.clone();
        for Recovered { spec, state, pid } in blocking(move || here.recover()).await? {
            found.insert(spec.name, (engine.clone(), state, pid));
        }
    }
    for vid in agent.here() {
        match read_blueprint(agent, files, vid) {
            Ok(blueprint) => {
                let here = found.remove(&blueprint.spec.name);
                let (state, first) = here.map_or((State::Ended, None), |(_, state, pid)| (state, pid));
                live.insert(vid, Live::new(&blueprint, state, first));
                if matches!(state, State::Running | State::Stopped)
                    && let Err(error) = files.note_death(vid)
                {
                    tracing::warn!("instance {vid}: recording that its output is incomplete failed: {error}");
                }
            }
            Err(error) => tracing::warn!("instance {vid}: its blueprint cannot be read: {error}"),
        }
    }
    for (name, (engine, ..)) in found {
        tracing::info!("removing instance {name}, which is no longer needed");
        if let Err(error) = blocking(move || engine.destroy(&name)).await {
            tracing::warn!("{error}");
        }
    }
    Ok(())
}

/// Reads the blueprint of an instance. The store of a destination has it as well.
fn read_blueprint(agent: &Agent, files: &StateFiles, vid: Vid) -> std::io::Result<Blueprint> {
    let read = |bytes: Vec<u8>| Blueprint::decode(&bytes).map_err(std::io::Error::other);
    match (files.blueprint(vid).and_then(read), agent.entry(vid).map(|entry| entry.role)) {
        (Err(_), Some(Role::Destination { spec, .. })) => read(spec),
        (kept, _) => kept,
    }
}
