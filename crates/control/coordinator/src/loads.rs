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
        let is_kept = request.stay.contains(&instance.name);
        let pinned = is_kept.then(|| "the plan is to keep it there".to_owned());
        (*vid, Need { amounts, copied: amounts.memory, pinned })
    };
    Loads { needs: instances.map(need).collect(), ..Loads::default() }
}

/// The resources that its user demands.
fn demanded(spec: &[u8]) -> Amounts {
    match Blueprint::decode(spec).map(|blueprint| blueprint.spec.workload) {
        Ok(Workload::Vm(vm)) => Amounts { cpu: u64::from(vm.cpus) * 1000, memory: vm.memory },
        _ => Amounts::default(),
    }
}
