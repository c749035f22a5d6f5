//! Cells of the kill matrix of virtual machines, one of each phase. `make soak-vm` runs all.

use anyhow::{Context as _, Result};
use e2e::kill_matrix::rig::{Rig, Storage};
use e2e::kill_matrix::{Moment, Victim, cell};

/// None of these ends the machine, so it boots once.
#[test]
fn a_machine_and_its_local_disk_survive_a_fault_in_each_phase() -> Result<()> {
    let _shared = e2e::shared();
    let mut rig = Rig::begin(Storage::Local)?;
    for (victim, moment) in [
        (Victim::DestinationHost, Moment::Prepare),
        (Victim::DestinationEmulator, Moment::Precopy),
        (Victim::SourceNode, Moment::Switchover),
        (Victim::SourceHost, Moment::Commit),
        (Victim::DestinationNode, Moment::Resume),
        (Victim::Coordinator, Moment::Release),
    ] {
        cell(&mut rig, victim, moment).with_context(|| format!("{victim} in {moment}"))?;
    }
    Ok(())
}
