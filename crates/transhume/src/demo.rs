//! The demo: who runs where, in which order it moves, and what is measured.
//!
//! * [`scene`]: the lab and the two instances.
//! * [`traffic`]: what the programs in them write, and what follows from it.
//! * [`tour`]: the moves, each with what was seen of it.
//! * [`view`]: what people see meanwhile; [`summary`]: what stands at the end.

mod scene;
mod summary;
mod tour;
mod traffic;
mod view;

use std::process::ExitCode;

use lab::LabName;

use crate::failure::Result;
use scene::Scene;
use summary::Summary;
use view::View;

/// The demo's lab.
pub const LAB: &str = "demo";

/// How to run the demo.
pub struct Options {
    /// The lab to make.
    pub lab: LabName,
    /// How often the instance goes around.
    pub rounds: u16,
    /// Whether the result is JSON.
    pub json: bool,
    /// Whether standard output is a terminal to draw on.
    pub live: bool,
}

/// Runs the demo in a lab that does not exist yet, and leaves the lab behind.
pub fn run(options: &Options) -> Result<ExitCode> {
    let view = View::new(options);
    view.say("making a lab of three hosts");
    let mut scene = Scene::set(options, &view)?;
    let moves = tour::go_around(&mut scene, options.rounds, &view)?;
    view.say("waiting for the end of verbs-check");
    let outcome = scene.finish()?;
    view.close();
    let summary = Summary::new(moves, outcome, scene.traffic.known().write_restarts);
    summary.print(options.json)?;
    Ok(if summary.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
