//! The demo: its instances, their moves, and the measurements.
//!
//! * [`plan`]: the options, and the names of instances and hosts.
//! * [`scene`]: the lab and the two instances: programs, or a virtual machine and its peer.
//! * [`traffic`]: parses the output of the programs in them.
//! * [`tour`]: the moves, each with its measurements ([`measured`]).
//! * [`view`]: the live display; [`summary`]: the final report.

mod measured;
mod plan;
mod scene;
mod summary;
mod tour;
mod traffic;
mod view;

use std::process::ExitCode;

use crate::failure::Result;
use scene::Scene;
use summary::Summary;
use view::View;

pub use plan::Options;

/// Runs the demo in a new lab, and leaves the lab behind.
pub fn run(options: &Options) -> Result<ExitCode> {
    let view = View::new(options);
    view.say("creating a lab of three hosts");
    let scene = Scene::set(options, &view)?;
    let moves = tour::go_around(&scene, options, &view)?;
    view.say("waiting for the results of the programs");
    scene.finish()?;
    view.close();
    let machine = scene.machine_result()?;
    let summary = Summary::new(moves, &scene.traffic().known(), machine);
    summary.print(options.json)?;
    Ok(if summary.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
