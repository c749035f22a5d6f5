//! What instances need and hosts have, for the planner: as their users demand, else as measured.

use std::collections::BTreeMap;

use api::ImproveRequest;
use fabric::Vid;
use instance::{Blueprint, Workload};
use moves::HostName;
use moves::journal::Instance;
use planner::{Amounts, Loads, Need, Talk};

use crate::cooling;
use crate::core::State;
use crate::telemetry::{Telemetry, Track};

/// The points of which the mean counts: 5 minutes at one in 10 s.
const POINTS: usize = 30;

/// The loads of the cluster with this traffic, with those instances pinned that the request keeps in place.
pub fn of(state: &State, request: &ImproveRequest, talks: Vec<Talk>) -> Loads {
    let instances = state.snapshot().instances.iter();
    let need = |(vid, instance): (&Vid, &Instance)| {
        let track = state.get::<Telemetry>().instance(*vid);
        let used = used(track);
        let amounts = demanded(&instance.spec).map_or(used, |demanded| Amounts { cpu: used.cpu, ..demanded });
        let is_measured = track.is_some_and(|track| track.last().is_some());
        let pinned = reason_to_stay(instance, request)
            .map(str::to_owned)
            .or_else(|| Some(format!("it cools down for {} s more", cooling::cools_down_for(state, *vid)?)))
            .or_else(|| (!is_measured).then(|| "it has not been measured yet".to_owned()));
        // Pages that were never written are not copied.
        (*vid, Need { amounts, copied: used.memory.min(amounts.memory), pinned })
    };
    Loads { rooms: rooms(state), needs: instances.map(need).collect(), talks }
}

/// What each host has for instances: all but what other programs use.
fn rooms(state: &State) -> BTreeMap<HostName, Amounts> {
    let mut of_instances = BTreeMap::<&HostName, Amounts>::new();
    for (vid, instance) in &state.snapshot().instances {
        let used = used(state.get::<Telemetry>().instance(*vid));
        let sum = of_instances.entry(&instance.host).or_default();
        *sum = Amounts { cpu: sum.cpu + used.cpu, memory: sum.memory + used.memory };
    }
    let room = |(host, machine): (&HostName, &crate::telemetry::Machine)| {
        let theirs = of_instances.get(host).copied().unwrap_or_default();
        let others = machine.last.memory_used.saturating_sub(theirs.memory);
        let (cpu, memory) = (u64::from(machine.last.processors) * 1000, machine.last.memory);
        (host.clone(), Amounts { cpu, memory: memory.saturating_sub(others) })
    };
    state.get::<Telemetry>().hosts().iter().map(room).collect()
}

fn used(track: Option<&Track>) -> Amounts {
    let level = track.and_then(|track| track.level(POINTS)).unwrap_or_default();
    Amounts { cpu: level.cpu.into(), memory: u64::from(level.memory) * 1024 }
}

/// What a virtual machine may take at any time.
fn demanded(spec: &[u8]) -> Option<Amounts> {
    match Blueprint::decode(spec).ok()?.spec.workload {
        Workload::Vm(vm) => Some(Amounts { cpu: u64::from(vm.cpus) * 1000, memory: vm.memory }),
        _ => None,
    }
}

fn reason_to_stay(instance: &Instance, request: &ImproveRequest) -> Option<&'static str> {
    if instance.placement.is_pinned {
        return Some("its user has pinned it (`run --pin`)");
    }
    let is_kept = request.stay.contains(&instance.name);
    is_kept.then_some("the plan was to keep it there (`--keep`, or a move that failed)")
}
