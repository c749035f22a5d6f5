//! The command line: one file for each subcommand.

mod cancel;
mod checkpoint;
mod completions;
mod console;
mod coordinator;
mod demo;
mod drain;
mod echo;
mod events;
mod exec;
mod group;
mod host;
mod hosts;
mod init;
mod input;
mod kill;
mod lab;
mod lasting;
mod logs;
mod man;
mod near;
mod net;
mod node;
mod pki;
mod plan;
mod ps;
mod run;
mod target;
mod top;
mod transfer;
mod wait;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Result;
use target::Target;

/// Moves running programs between hosts without breaking their RDMA and TCP connections
#[derive(Parser)]
#[command(name = "transhume", version, max_term_width = 100)]
#[command(after_help = "Examples:\n  transhume lab up --hosts 3\n  \
                        transhume run --host h1 --name job1 --detach -- ib_write_bw\n  \
                        transhume move job1 h3")]
pub struct Cli {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Arguments>),
    Exec(exec::Arguments),
    Ps(ps::Arguments),
    Move(transfer::Arguments),
    Cancel(cancel::Arguments),
    Drain(drain::Drain),
    Undrain(drain::Undrain),
    Checkpoint(checkpoint::Checkpoint),
    Restore(checkpoint::Restore),
    Logs(logs::Arguments),
    Console(console::Arguments),
    Wait(wait::Arguments),
    Kill(kill::Arguments),
    Hosts(hosts::Arguments),
    Host(host::Arguments),
    Top(top::Arguments),
    Plan(plan::Arguments),
    Events(events::Arguments),
    Net(net::Arguments),
    Coordinator(coordinator::Arguments),
    Node(node::Arguments),
    Pki(pki::Arguments),
    Init(init::Arguments),
    Lab(lab::Arguments),
    Demo(demo::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
    Echo(echo::Arguments),
}

impl Cli {
    /// Whether the process is a daemon, which must not end when a client disconnects.
    pub fn is_daemon(&self) -> bool {
        match &self.command {
            Command::Coordinator(_) | Command::Node(_) | Command::Init(_) => true,
            Command::Net(arguments) => arguments.is_daemon(),
            _ => false,
        }
    }

    /// Runs the command. Returns the exit code of the process.
    pub fn run(self) -> Result<ExitCode> {
        let target = &self.target;
        match self.command {
            Command::Run(arguments) => arguments.run(target),
            Command::Exec(arguments) => arguments.run(target),
            Command::Ps(arguments) => arguments.run(target),
            Command::Move(arguments) => arguments.run(target),
            Command::Cancel(arguments) => arguments.run(target),
            Command::Drain(arguments) => arguments.run(target),
            Command::Undrain(arguments) => arguments.run(target),
            Command::Checkpoint(arguments) => arguments.run(target),
            Command::Restore(arguments) => arguments.run(target),
            Command::Logs(arguments) => arguments.run(target),
            Command::Console(arguments) => arguments.run(target),
            Command::Wait(arguments) => arguments.run(target),
            Command::Kill(arguments) => arguments.run(target),
            Command::Hosts(arguments) => arguments.run(target),
            Command::Host(arguments) => arguments.run(target),
            Command::Top(arguments) => arguments.run(target),
            Command::Plan(arguments) => arguments.run(target),
            Command::Events(arguments) => arguments.run(target),
            Command::Net(arguments) => arguments.run(target),
            Command::Coordinator(arguments) => arguments.run(target),
            Command::Node(arguments) => arguments.run(),
            Command::Init(arguments) => arguments.run(),
            Command::Pki(arguments) => arguments.run(),
            Command::Lab(arguments) => arguments.run(target),
            Command::Demo(arguments) => arguments.run(target),
            Command::Completions(arguments) => arguments.run(),
            Command::Man(arguments) => arguments.run(),
            Command::Echo(arguments) => arguments.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_short_description_and_examples() {
        let mut open = vec![Cli::command()];
        while let Some(mut command) = open.pop() {
            open.extend(command.get_subcommands().cloned());
            assert!(command.get_about().is_some(), "{} has no description", command.get_name());
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{} has no example", command.get_name());
            let introduction = help.lines().take_while(|line| !line.starts_with("Usage:"));
            assert!(introduction.count() <= 20, "{} has a long introduction", command.get_name());
        }
    }
}
