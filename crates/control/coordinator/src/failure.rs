//! Failures and their remedies, as users see them.

use api::Failure;
use fabric::session::{MAX_SESSIONS, Order};
use instance::BlueprintError;
use moves::coordinator::{AddError, Refusal, TooLate};
use moves::{HostName, MoveId};
use planner::Resource;
use rpc::wire::split_reason;
use store::{MAX_ENDED_INSTANCES, StoreError};

/// Reason for the end of an instance that never ran.
pub const NOT_STARTED: &str = "it was never started";

/// Reason for the rollback of a move that a user has cancelled.
pub const CANCELLED: &str = "it was cancelled";

/// The failure for a reason that a node or the move protocol reports.
pub fn from_reason(reason: &str) -> Failure {
    let (what, remedy) = split_reason(reason);
    Failure::new(what, remedy.unwrap_or("try again; see the logs of the nodes for details"))
}

pub fn of_store(error: &StoreError) -> Failure {
    Failure::new(format!("the coordinator's store: {error}"), error.remedy())
}

pub fn of_blueprint(error: &BlueprintError) -> Failure {
    Failure::new(error.to_string(), error.remedy())
}

pub fn coordinator_ends() -> Failure {
    Failure::new("the coordinator is shutting down", "try again when it has restarted")
}

pub fn plan_under_way(by_loop: bool) -> Failure {
    match by_loop {
        false => Failure::new(
            "another plan is being carried out",
            "end it with `transhume plan cancel`, or wait until it is done",
        ),
        true => Failure::new(
            "`plan --auto` is carrying out a plan",
            "try again when it is done, or end it with `transhume plan cancel`",
        ),
    }
}

pub fn no_plan() -> Failure {
    Failure::new("no plan is being carried out", "`transhume events` shows when the last one has ended")
}

pub fn unknown_plan() -> Failure {
    Failure::new(
        "the coordinator does not know that plan any more",
        "`transhume events` shows how it has ended",
    )
}

pub fn no_instance(name: &str) -> Failure {
    let help = format!(
        "list the instances with `transhume ps`; it remembers the last {MAX_ENDED_INSTANCES} ended instances"
    );
    Failure::new(format!("there is no instance `{name}`"), help)
}

pub fn ended(name: &str) -> Failure {
    Failure::new(
        format!("`{name}` has ended"),
        "start it again, or choose a running instance from `transhume ps`",
    )
}

pub fn ended_meanwhile(name: &str) -> Failure {
    let help = "the command ended with it and its exit status is unknown; `transhume wait` shows how the instance ended";
    Failure::new(format!("instance `{name}` has ended"), help)
}

pub fn session_lost(name: &str) -> Failure {
    Failure::new(
        format!("`{name}` no longer knows the command"),
        "its exit status is unknown; run it again if that is safe",
    )
}

/// For a user other than root who tries to run a command as another user.
pub fn not_allowed(name: &str) -> Failure {
    Failure::new(
        format!("only root may run commands in `{name}`, or as another user"),
        "run this with sudo; the user who started an instance may run commands in it without `--user`",
    )
}

/// Only virtual machines have a console.
pub fn no_console(name: &str) -> Failure {
    let help = format!(
        "read its output with `transhume logs {name}`, or run a command beside it with `transhume exec`"
    );
    Failure::new(format!("`{name}` is no virtual machine, and has no console"), help)
}

pub fn too_many_sessions(name: &str) -> Failure {
    Failure::new(
        format!("`{name}` already runs {MAX_SESSIONS} commands of `transhume exec`, the maximum"),
        "wait until one of them ends",
    )
}

pub fn no_command() -> Failure {
    Failure::new("no command was given", "pass the command after `--`")
}

pub fn with_a_zero() -> Failure {
    Failure::new("the command, its environment or its directory contains a NUL byte", "remove the NUL byte")
}

pub fn order_too_large(size: usize) -> Failure {
    Failure::new(
        format!("the command and its environment take {size} bytes; the limit is {}", Order::MAX),
        "pass the data in a file, or on standard input (`--stdin`)",
    )
}

pub fn client_says_too_much() -> Failure {
    Failure::new(
        "the client violates the protocol: it sent more than its limit",
        "use a command line of the same release as the coordinator",
    )
}

pub fn being_ended(name: &str) -> Failure {
    Failure::new(format!("`{name}` is being ended"), "start it again when it has ended")
}

pub fn still_starting(name: &str, host: &HostName) -> Failure {
    Failure::new(
        format!("`{name}` is still being started on host {host}"),
        "try again when `transhume ps` shows it running",
    )
}

pub fn unknown_move(name: &str) -> Failure {
    Failure::new(
        format!("the result of the move of `{name}` is no longer known"),
        "`transhume ps` shows its host",
    )
}

pub fn no_host(name: &str) -> Failure {
    Failure::new(format!("there is no host `{name}`"), "`transhume hosts` lists the hosts")
}

pub fn host_down(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} is not connected to the coordinator"),
        "check that its node runs and can reach the coordinator",
    )
}

pub fn host_without_instances(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} cannot run instances: it has joined only the overlay, with `transhume net up`"),
        "choose a host that runs `transhume node` (`transhume hosts` lists the hosts)",
    )
}

pub fn host_drained(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} is drained"),
        format!("choose another host, or undrain it with `transhume undrain {host}`"),
    )
}

pub fn not_drained(host: &HostName) -> Failure {
    Failure::new(format!("host {host} is not drained"), "`transhume hosts` shows the drained hosts")
}

pub fn drained_to_itself(host: &HostName) -> Failure {
    Failure::new(format!("host {host} cannot be drained to itself"), "choose another host with `--to`")
}

pub fn wrong_parallel(parallel: u16, most: u16) -> Failure {
    Failure::new(format!("{parallel} is not a valid number of parallel moves"), format!("choose 1 to {most}"))
}

pub fn nowhere_to_go(host: &HostName) -> Failure {
    Failure::new(
        format!("no host can take the instances of {host}"),
        "start `transhume node` on another host, or undrain one with `transhume undrain`; `transhume hosts` lists the hosts",
    )
}

pub fn no_usable_host() -> Failure {
    Failure::new(
        "no host can take instances: none is connected that runs instances and is not drained",
        "start `transhume node` on a host, or `transhume lab up`; `transhume hosts` shows drained hosts",
    )
}

pub fn too_many_labels(count: usize, most: usize) -> Failure {
    Failure::new(
        format!("the instance has {count} labels, which is too many"),
        format!("use at most {most} labels"),
    )
}

pub fn no_label(key: &str, value: &str, longest: usize) -> Failure {
    Failure::new(
        format!("`{key}={value}` is not a valid label"),
        format!("use 1 to {longest} letters, digits and `-_./` for each part"),
    )
}

/// `what` is affinity or anti-affinity.
pub fn without_label(what: &str, key: &str) -> Failure {
    Failure::new(
        format!("{what} names the label `{key}`, which the instance does not have"),
        format!("set the label: `--label {key}=…`"),
    )
}

pub fn together_and_apart(key: &str) -> Failure {
    Failure::new(
        format!("`--affinity {key}` and `--anti-affinity {key}` contradict each other"),
        "pass one of both",
    )
}

pub fn wrong_demand(option: &str, amount: u64, most: u64) -> Failure {
    Failure::new(format!("{amount} is not a valid demand ({option})"), format!("demand 1 to {most}"))
}

pub fn too_many_others(option: &str, count: usize, most: usize) -> Failure {
    Failure::new(
        format!("`{option}` names {count} instances, which is too many"),
        format!("name at most {most}"),
    )
}

pub fn no_other(option: &str, name: &str) -> Failure {
    Failure::new(
        format!("`{option}` names `{name}`, and there is no such instance"),
        "start that one first, or name a running instance from `transhume ps`",
    )
}

pub fn kept_together(other: &str, (key, value): (&str, &str), there: &HostName, host: &HostName) -> Failure {
    Failure::new(
        format!("affinity on {key}={value} excludes host {host}: `{other}` is on {there}"),
        format!("choose {there}, or omit the affinity"),
    )
}

pub fn contradiction(other: &str, together: &str, apart: &str) -> Failure {
    Failure::new(
        format!(
            "affinity on {together} and anti-affinity on {apart} contradict each other: `{other}` has both"
        ),
        "change one of the two labels, or omit one of both constraints",
    )
}

/// The demands of others leave a part of a host free. The amounts are the demand, what is free, and what the host has.
pub fn no_room(host: &HostName, resource: Resource, [demanded, free, has]: [u64; 3]) -> Failure {
    let help = "demand less, choose another host, or end or move an instance that demands it (`transhume ps --json`)";
    let what = match resource {
        Resource::Processors => format!(
            "host {host} has no room for a demand of {} processors: of its {}, {} are free",
            decimal(demanded),
            decimal(has),
            decimal(free)
        ),
        Resource::Memory => format!(
            "host {host} has no room for a demand of {} MiB of memory: of its {} MiB, {} MiB are free",
            demanded.div_ceil(1 << 20),
            has >> 20,
            free >> 20
        ),
    };
    Failure::new(what, help)
}

pub fn too_large(resource: Resource, demanded: u64, largest: &HostName, has: u64) -> Failure {
    let what = match resource {
        Resource::Processors => format!(
            "no host has the {} processors that are demanded: {largest} has the most, {}",
            decimal(demanded),
            decimal(has)
        ),
        Resource::Memory => format!(
            "no host has the {} MiB of memory that are demanded: {largest} has the most, {} MiB",
            demanded.div_ceil(1 << 20),
            has >> 20
        ),
    };
    Failure::new(what, "demand less, or start `transhume node` on a larger host")
}

/// A number of thousandths, with one decimal.
fn decimal(thousandths: u64) -> String {
    format!("{}.{}", thousandths / 1000, thousandths % 1000 / 100)
}

pub fn kept_apart(other: &str, (key, value): (&str, &str), host: &HostName) -> Failure {
    Failure::new(
        format!(
            "anti-affinity on {key}={value} excludes host {host}: `{other}` is there, or is moving there or from there"
        ),
        format!(
            "choose another host, or enough hosts for all members of a group; or move `{other}` away first"
        ),
    )
}

pub fn cools_down(name: &str, seconds: u64) -> Failure {
    Failure::new(
        format!("`{name}` has moved recently and cools down for another {}", api::in_words(seconds)),
        "wait, or override the cool-down with `--force`",
    )
}

pub fn no_group(group: &str) -> Failure {
    Failure::new(
        format!("no instance belongs to group `{group}`"),
        "`transhume ps` shows the groups of instances; `transhume run --group` starts an instance in a group",
    )
}

pub fn only_root_checkpoints() -> Failure {
    Failure::new(
        "only root may checkpoint and restore instances, because the files contain their memory",
        "run this with sudo",
    )
}

pub fn no_destination() -> Failure {
    Failure::new("no destination host was given for the group", "pass one host or several: `h2,h3`")
}

pub fn drain_ended(host: &HostName, moved: u32) -> Failure {
    Failure::new(
        format!("the drain of {host} was ended; instances moved: {moved}"),
        "`transhume hosts` shows whether the host was undrained or another drain is in progress",
    )
}

pub fn no_tokens() -> Failure {
    Failure::new(
        "this coordinator has no join tokens: it was not started by `transhume net up`",
        "issue a certificate with `transhume pki`, and start `transhume node` on the machine",
    )
}

pub fn no_token(token: &str) -> Failure {
    Failure::new(
        format!("there is no join token `{token}`"),
        "`transhume net token list` lists the tokens with their numbers",
    )
}

pub fn has_the_coordinator(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} runs the coordinator and cannot be removed"),
        "create a new network on another machine: `transhume net up --listen`",
    )
}

/// Instances run on the host to be removed, or are moving to it or away from it.
pub fn host_in_use(host: &HostName, instances: &[String], is_up: bool) -> Failure {
    const NAMED: usize = 5;
    let named: Vec<_> = instances.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    let others = match instances.len().saturating_sub(NAMED) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let message =
        format!("host {host} cannot be removed while instances use it: {}{others}", named.join(", "));
    let help = if is_up {
        format!("move them away with `transhume drain {host}`, or end them with `transhume kill`")
    } else {
        format!(
            "its node is not connected, so the instances may still run there: restart the node and use `transhume drain {host}`, or end them with `transhume kill`; if the machine is gone for good, or stays off until it is reinstalled, give them up with `transhume host remove {host} --lost`"
        )
    };
    Failure::new(message, help)
}

pub fn host_not_lost(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} is not lost: its node is connected"),
        format!("remove it without `--lost` after `transhume drain {host}`, or switch its machine off first"),
    )
}

/// A committed move has taken an instance away from the host to be removed as lost, but the instance does not run yet.
pub fn still_leaving(host: &HostName, id: MoveId) -> Failure {
    Failure::new(
        format!("{id} away from host {host} is committed and still completing, so its instance is not lost"),
        format!(
            "try again when `transhume ps` no longer shows the move; if the destination is gone too, remove that host first; if the instance waits for memory that only {host} had, end it with `transhume kill`"
        ),
    )
}

pub fn too_many_removed(most: usize) -> Failure {
    Failure::new(
        format!("the list of removed hosts is full ({most} entries)"),
        "issue new certificates to the remaining hosts: create a new network, or use `transhume pki` in a new directory",
    )
}

pub fn host_silent(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} did not answer"),
        "check the state with `transhume ps` and `transhume hosts`, then try again",
    )
}

pub fn of_refusal(refusal: &Refusal, name: &str) -> Failure {
    match refusal {
        Refusal::UnknownInstance(_) => no_instance(name),
        Refusal::SameHost(host) => {
            Failure::new(format!("`{name}` is already on host {host}"), "choose another host")
        }
        Refusal::NotConnected(host) => host_down(host),
        Refusal::InProgress(_) => Failure::new(
            format!("`{name}` is already being moved, saved or restored"),
            "wait until that is over, or cancel it with `transhume cancel`",
        ),
        Refusal::Fetching { host, .. } => Failure::new(
            format!("part of the memory of `{name}` is still on host {host}"),
            "wait until it has been fetched; `transhume ps` shows when the move is over",
        ),
        Refusal::TooMany(moves) => Failure::new(
            format!("too many moves are in progress ({moves})"),
            "wait until some of them have ended",
        ),
    }
}

pub fn of_add_error(error: &AddError) -> Failure {
    match error {
        AddError::NameTaken(name) => {
            Failure::new(format!("an instance `{name}` already exists"), "choose another name")
        }
        AddError::VidTaken(_) => Failure::new(error.to_string(), "try again"),
        AddError::SpecTooLarge => {
            Failure::new(error.to_string(), "pass fewer or shorter arguments and environment variables")
        }
    }
}

pub fn of_too_late(error: TooLate, name: &str) -> Failure {
    match error {
        TooLate::Committed(_) => Failure::new(
            format!("the move of `{name}` is committed and cannot be cancelled"),
            "move it back when it has arrived",
        ),
        TooLate::Saved(_) => Failure::new(
            format!("`{name}` and its group are already saved"),
            "delete the checkpoint if it is not needed",
        ),
        TooLate::Over(_) => not_moving(name),
    }
}

pub fn lost(name: &str, reason: &str) -> Failure {
    Failure::new(format!("`{name}` is lost: {reason}"), "start it again")
}

pub fn not_moving(name: &str) -> Failure {
    Failure::new(format!("`{name}` is not being moved"), "`transhume ps` shows its state")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_an_unknown_instance_mentions_forgotten_ones() {
        let failure = no_instance("e1");
        assert!(failure.message.contains("`e1`") && failure.remedy.contains("remembers the last 64"));
    }

    #[test]
    fn a_reason_keeps_its_remedy() {
        let failure = from_reason(&rpc::wire::reason("/dev/kvm is open: busy", "close it"));
        assert_eq!(
            (failure.message.as_str(), failure.remedy.as_str()),
            ("/dev/kvm is open: busy", "close it")
        );
        let failure = from_reason("no: nothing");
        assert_eq!(failure.message, "no: nothing");
        assert!(!failure.remedy.is_empty());
    }
}
