//! What instances need and hosts have, for the planner, as measured. The planner adds what users demand.

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

/// The loads of the cluster with this traffic.
pub fn measured(state: &State, talks: Vec<Talk>) -> Loads {
    let instances = state.snapshot().instances.iter();
    let need = |(vid, instance): (&Vid, &Instance)| {
        let track = state.get::<Telemetry>().instance(*vid);
        let (used, peak) = (used(track), peak(track));
        let amounts = Amounts { memory: peak, ..used };
        let amounts = size(&instance.spec).map_or(amounts, |size| match is_measured(track) {
            true => Amounts { cpu: used.cpu, ..size },
            false => size,
        });
        // Pages that were never written are not copied.
        (*vid, Need { amounts, copied: used.memory.min(amounts.memory), pinned: None })
    };
    Loads { rooms: rooms(state), needs: instances.map(need).collect(), talks }
}

/// The same for a request, with those instances pinned that are to stay.
pub fn of(state: &State, request: &ImproveRequest, talks: Vec<Talk>) -> Loads {
    let mut loads = measured(state, talks);
    for (vid, instance) in &state.snapshot().instances {
        let reason = reason_to_stay(instance, request)
            .map(str::to_owned)
            .or_else(|| Some(format!("it cools down for {} s more", cooling::cools_down_for(state, *vid)?)));
        let unmeasured = || {
            let is_measured = is_measured(state.get::<Telemetry>().instance(*vid));
            (!is_measured).then(|| "it has not been measured yet".to_owned())
        };
        loads.needs.entry(*vid).or_default().pinned = reason.or_else(unmeasured);
    }
    loads
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
        let all = machine.capacity();
        (host.clone(), Amounts { memory: all.memory.saturating_sub(others), ..all })
    };
    state.get::<Telemetry>().hosts().iter().map(room).collect()
}

fn used(track: Option<&Track>) -> Amounts {
    let level = track.and_then(|track| track.level(POINTS)).unwrap_or_default();
    Amounts { cpu: level.cpu.into(), memory: u64::from(level.memory) * 1024 }
}

/// The most memory within the last hour, in bytes.
fn peak(track: Option<&Track>) -> u64 {
    u64::from(track.and_then(Track::peak).unwrap_or_default().memory) * 1024
}

fn is_measured(track: Option<&Track>) -> bool {
    track.is_some_and(|track| track.last().is_some())
}

/// The size of a virtual machine, which may take its memory at any time.
pub fn size(spec: &[u8]) -> Option<Amounts> {
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
