//! Finds machines again after a restart of the node.
//!
//! | recorded | emulator | what follows |
//! |---|---|---|
//! | running | runs | runs on; the link is mended |
//! | running | stopped by a move or a checkpoint that the former node began | that is cancelled, and it runs on |
//! | stopped | does not run | waits for the move's decision |
//! | stopped | runs | the former node had resumed it |
//! | held | `paused` | waits for the move's decision |
//! | held | runs | the former node had released it |
//! | prepared | loads memory | the channel is gone: it is killed |
//! | prepared, stopped | has ended | waits for the move's decision, which is about its disks |
//! | running, held | has ended | has ended |

use std::sync::{Arc, Mutex};

use engine_api::{Recovered, Result, State};
use engine_criu::shared::Task;

use crate::checkpoint;
use crate::engine::VmEngine;
use crate::error::Doing;
use crate::lock::lock;
use crate::machine::{Machine, vm_of};
use crate::migration;
use crate::needs;
use crate::record::Record;

impl VmEngine {
    /// Finds the machines of all records.
    pub(crate) fn recover_all(&self) -> Result<Vec<Recovered>> {
        let mut found = Vec::new();
        for record in self.records.all()? {
            let machine = self.recover(record)?;
            let (spec, state) = (machine.record.spec.clone(), machine.record.state);
            let pid = machine.first.as_ref().map(|first| first.id().pid);
            lock(&self.machines).insert(spec.name.clone(), Arc::new(Mutex::new(machine)));
            found.push(Recovered { spec, state, pid });
        }
        Ok(found)
    }

    fn recover(&self, mut record: Record) -> Result<Machine> {
        let wiring = self.wiring(record.spec.network_kind)?;
        let memory = self.memory.enter(&record.spec.name, needs::memory(vm_of(&record.spec)?));
        let Some(first) = record.first.and_then(Task::open) else {
            record.first = None;
            record.state = without_emulator(record.state);
            return Machine::make(record, wiring, memory);
        };
        let mut machine = Machine::adopt(record, first, wiring, memory)?;
        let state = match self.look(&mut machine) {
            Ok(state) => state,
            Err(_) => {
                machine.kill();
                without_emulator(machine.record.state)
            }
        };
        machine.record.state = state;
        if matches!(state, State::Prepared | State::Ended) {
            machine.kill();
        }
        if machine.first.is_none() {
            machine.record.first = None;
        }
        // The older record leads to the same result.
        let _older = self.records.save(&machine.record);
        Ok(machine)
    }

    /// The state of a machine whose first process runs.
    fn look(&self, machine: &mut Machine) -> Result<State> {
        machine.connect(&self.records).doing(|| format!("finding the emulator of `{}`", machine.name()))?;
        let emulator = machine.emulator()?;
        let mut qmp = lock(&emulator);
        let run_state = migration::run_state(&mut qmp).doing(|| "asking the emulator".into())?;
        Ok(match (machine.record.state, run_state.as_str()) {
            (State::Held, "paused") => State::Held,
            // Whatever else its emulator says: the destination may run by now.
            (State::Stopped, state) if state != "running" => State::Stopped,
            (State::Running | State::Stopped, _) => {
                migration::cancel(&mut qmp).doing(|| "cancelling the migration".into())?;
                machine.link.mend().doing(|| "mending the link".into())?;
                migration::cont(&mut qmp).doing(|| "letting the guest run on".into())?;
                drop(qmp);
                machine.return_keys(&self.records)?;
                // What is left goes with the machine.
                let _left = checkpoint::delete_images(machine, &self.records);
                return Ok(State::Running);
            }
            (State::Held, "running") => State::Running,
            (State::Prepared | State::Held | State::Ended, _) => State::Prepared,
        })
    }
}

/// The state of a machine whose emulator has ended while there was no node.
fn without_emulator(recorded: State) -> State {
    match recorded {
        State::Prepared | State::Stopped => recorded,
        State::Running | State::Held | State::Ended => State::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_its_emulator_ends_unless_a_move_decides_on_its_disks() {
        assert_eq!(
            without_emulator(State::Stopped),
            State::Stopped,
            "after the commit, its disks are put aside"
        );
        assert_eq!(without_emulator(State::Prepared), State::Prepared, "its disks were never used");
        assert_eq!(without_emulator(State::Held), State::Ended, "after the commit, its disks stay");
        assert_eq!(without_emulator(State::Running), State::Ended);
    }
}
