//! What instances need and hosts have, for the planner.

use api::ImproveRequest;
use fabric::Vid;
use instance::{Blueprint, Workload};
use planner::{Amounts, Loads, Need};

use crate::core::State;

/// The loads of the cluster, with those instances pinned that the request keeps in place.
pub fn of(state: &State, request: &ImproveRequest) -> Loads {
    let instances = state.snapshot().instances.iter();
    let need = |(vid, instance): (&Vid, &moves::journal::Instance)| {
        let amounts = demanded(&instance.spec);
        let pinned = reason_to_stay(instance, request).map(str::to_owned);
        (*vid, Need { amounts, copied: amounts.memory, pinned })
    };
    Loads { needs: instances.map(need).collect(), ..Loads::default() }
}

fn reason_to_stay(instance: &moves::journal::Instance, request: &ImproveRequest) -> Option<&'static str> {
    if instance.placement.is_pinned {
        return Some("its user has pinned it (`run --pin`)");
    }
    request
        .stay
        .contains(&instance.name)
        .then_some("the plan was to keep it there (`--keep`, or a move that failed)")
}

/// The resources that its user demands.
fn demanded(spec: &[u8]) -> Amounts {
    match Blueprint::decode(spec).map(|blueprint| blueprint.spec.workload) {
        Ok(Workload::Vm(vm)) => Amounts { cpu: u64::from(vm.cpus) * 1000, memory: vm.memory },
        _ => Amounts::default(),
    }
}
