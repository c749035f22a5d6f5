//! Builds the cluster from the store.

use std::path::Path;
use std::sync::Arc;

use store::{Journal, Store, StoreError, StoreJournal};

use crate::admission::Enrolled;
use crate::auto::Loop;
use crate::checkpoint::Checkpoints;
use crate::cooling::Cooling;
use crate::core::{Cluster, Log, State};
use crate::directory::Directories;
use crate::drains::Drains;
use crate::events;
use crate::exec::Sessions;
use crate::follows::Follows;
use crate::lifecycle::Lifecycle;
use crate::members::Members;
use crate::names::Names;
use crate::network::devices::Devices;
use crate::network::misbehaviour::Misbehaviour;
use crate::network::own::Wishes;
use crate::network::rollout::Rollout;
use crate::plans::Plans;
use crate::telemetry::Telemetry;

/// Builds the cluster from the store at `path`. Undecided moves are rolled back. The owner runs on the current runtime.
///
/// # Errors
/// If the store cannot be read.
pub fn open(path: &Path) -> Result<Arc<Cluster>, StoreError> {
    open_with(path, StoreJournal::start)
}

/// The same with another `journal` from now on.
pub fn open_with<J: Journal>(
    path: &Path,
    journal: impl FnOnce(Store) -> Result<J, StoreError>,
) -> Result<Arc<Cluster>, StoreError> {
    let store = Store::open(path)?;
    let log = Log::open(&path.with_file_name("events.redb"))?;
    let snapshot = store.load()?;
    let (members, drains) = (Members::load(&store)?, Drains::load(store.drained_hosts()?));
    let (rollout, devices) = (Rollout::load(&store)?, Devices::load(&store)?);
    let lifecycle = Lifecycle::load(store.ended_instances()?, store.last_vid()?);
    let follows = Follows::load(&snapshot, store.ended_moves()?);
    let cooling = Cooling::load(store.last_moves()?);
    let (plans, planning) = (Plans::load(store.plan()?), Loop::load(store.planning_loop()?));
    let directories = Directories::new(!snapshot.instances.is_empty());
    let add = |state: &mut State| {
        // They send messages in this order.
        state.add(directories);
        state.add(Names);
        state.add(Sessions::default());
        state.add(rollout);
        state.add(lifecycle);
        state.add(cooling);
        state.add(follows);
        state.add(Checkpoints::default());
        state.add(drains);
        state.add(plans);
        state.add(planning);
        state.add(Telemetry::default());
        state.add(members);
        state.add(devices);
        state.add(Enrolled::default());
        state.add(Wishes::default());
        state.add(Misbehaviour::default());
        events::catch_up(state)
    };
    Cluster::start(snapshot, journal(store)?, log, add)
}
