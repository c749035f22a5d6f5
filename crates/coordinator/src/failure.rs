//! What cannot be done, in words for the user.

use api::Failure;
use fabric::session::{MAX_SESSIONS, Order};
use instance::BlueprintError;
use moves::coordinator::{AddError, Refusal, TooLate};
use moves::{HostName, MoveId};
use rpc::wire::split_reason;
use store::{MAX_ENDED_INSTANCES, StoreError};

/// What is known of an instance that never ran.
pub const NOT_STARTED: &str = "it was never started";

/// Why a move was rolled back that a user has cancelled.
pub const CANCELLED: &str = "it was cancelled";

/// The failure for what a node, or the move protocol, gives as its reason.
pub fn from_reason(reason: &str) -> Failure {
    let (what, remedy) = split_reason(reason);
    Failure::new(what, remedy.unwrap_or("try again; the logs of the hosts' nodes say more"))
}

pub fn of_store(error: &StoreError) -> Failure {
    Failure::new(format!("the coordinator's store: {error}"), error.remedy())
}

pub fn of_blueprint(error: &BlueprintError) -> Failure {
    Failure::new(error.to_string(), error.remedy())
}

pub fn coordinator_ends() -> Failure {
    Failure::new("the coordinator ends", "try again when it is back")
}

pub fn no_instance(name: &str) -> Failure {
    let help = format!(
        "`transhume ps` lists the instances; of those that ended the last {MAX_ENDED_INSTANCES} are remembered"
    );
    Failure::new(format!("there is no instance `{name}`"), help)
}

pub fn ended(name: &str) -> Failure {
    Failure::new(format!("`{name}` has ended"), "start it again, or choose one that runs: `transhume ps`")
}

pub fn ended_meanwhile(name: &str) -> Failure {
    let help =
        "the command in it ended with it, and how is not known; `transhume wait` says how the instance ended";
    Failure::new(format!("instance `{name}` has ended"), help)
}

pub fn session_lost(name: &str) -> Failure {
    Failure::new(
        format!("`{name}` does not know the command any more"),
        "how it ended is not known; run it again if that does no harm",
    )
}

/// Somebody who is not root wants to run a command as another user.
pub fn not_allowed(name: &str) -> Failure {
    Failure::new(
        format!("only root may run commands in `{name}`, or as another user"),
        "run this with sudo; without `--user`, whoever started an instance may run commands in it",
    )
}

pub fn too_many_sessions(name: &str) -> Failure {
    Failure::new(
        format!("{MAX_SESSIONS} commands run in `{name}` beside its own already"),
        "wait until one of them has ended",
    )
}

pub fn no_command() -> Failure {
    Failure::new("there is no command", "give one after `--`")
}

pub fn with_a_zero() -> Failure {
    Failure::new("a NUL byte is in the command, its environment or its directory", "leave it out")
}

pub fn order_too_large(size: usize) -> Failure {
    Failure::new(
        format!("the command with its environment takes {size} bytes; the limit is {}", Order::MAX),
        "pass a file's name instead, or the text on its standard input (`--stdin`)",
    )
}

pub fn client_says_too_much() -> Failure {
    Failure::new(
        "the client says more than it may",
        "use the command line of the same release as the coordinator",
    )
}

pub fn being_ended(name: &str) -> Failure {
    Failure::new(format!("`{name}` is being ended"), "start it again when it has ended")
}

pub fn still_starting(name: &str, host: &HostName) -> Failure {
    Failure::new(
        format!("`{name}` is still being started on host {host}"),
        "try again when `transhume ps` shows that it runs",
    )
}

pub fn unknown_move(name: &str) -> Failure {
    Failure::new(
        format!("how the move of `{name}` ended is not known any more"),
        "`transhume ps` shows where it is",
    )
}

pub fn no_host(name: &str) -> Failure {
    Failure::new(format!("there is no host `{name}`"), "`transhume hosts` lists the hosts")
}

pub fn host_down(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} is not connected to the coordinator"),
        "see that its node runs and reaches the coordinator",
    )
}

pub fn host_without_instances(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} runs no instances: it has joined the overlay alone, by `transhume net up`"),
        "choose a host that runs `transhume node`: `transhume hosts` lists the hosts",
    )
}

pub fn host_drained(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} is drained"),
        format!("choose another host, or let it take instances again: `transhume undrain {host}`"),
    )
}

pub fn not_drained(host: &HostName) -> Failure {
    Failure::new(format!("host {host} is not drained"), "`transhume hosts` shows which hosts are")
}

pub fn drained_to_itself(host: &HostName) -> Failure {
    Failure::new(format!("host {host} cannot be drained to itself"), "choose another host with `--to`")
}

pub fn wrong_parallel(parallel: u16, most: u16) -> Failure {
    Failure::new(format!("{parallel} moves at a time cannot be made"), format!("choose 1 to {most}"))
}

pub fn nowhere_to_go(host: &HostName) -> Failure {
    Failure::new(
        format!("there is no host to which the instances of {host} can go"),
        "start `transhume node` on another one, or `transhume undrain` one: `transhume hosts` lists the hosts",
    )
}

pub fn too_many_labels(count: usize, most: usize) -> Failure {
    Failure::new(format!("{count} labels are too many for an instance"), format!("{most} are the most"))
}

pub fn no_label(key: &str, value: &str, longest: usize) -> Failure {
    Failure::new(
        format!("`{key}={value}` is no label"),
        format!("use 1 to {longest} letters, digits and `-_./` for each part"),
    )
}

pub fn apart_without_label(key: &str) -> Failure {
    Failure::new(
        format!("the instance is to be kept apart by its label `{key}`, and has none"),
        format!("give it one: `--label {key}=…`"),
    )
}

pub fn kept_apart(other: &str, (key, value): (&str, &str), host: &HostName) -> Failure {
    Failure::new(
        format!(
            "`{other}` is on host {host}, or moves there or from there, and instances with {key}={value} are kept apart"
        ),
        format!(
            "choose another host, also for a group: as many as its members need; or move `{other}` away first"
        ),
    )
}

pub fn cools_down(name: &str, seconds: u64) -> Failure {
    Failure::new(
        format!("`{name}` has moved and cools down for another {}", api::in_words(seconds)),
        "wait for so long, or move it nevertheless with `--force`",
    )
}

pub fn no_group(group: &str) -> Failure {
    Failure::new(
        format!("no instance is in a group `{group}`"),
        "`transhume ps` lists the instances with their groups; `transhume run --group` starts one in a group",
    )
}

pub fn only_root_checkpoints() -> Failure {
    Failure::new(
        "only root may save instances and restore them: their memory is in files then",
        "run this with sudo",
    )
}

pub fn no_destination() -> Failure {
    Failure::new("no host is named to which the group is to go", "name one, or several: `h2,h3`")
}

pub fn drain_ended(host: &HostName, moved: u32) -> Failure {
    Failure::new(
        format!("the drain of {host} was ended; instances moved: {moved}"),
        "`transhume hosts` shows whether it takes instances again, or another drain of it goes on",
    )
}

pub fn no_tokens() -> Failure {
    Failure::new(
        "this coordinator admits no machines by tokens: it was not started by `transhume net up`",
        "issue a certificate with `transhume pki`, and start `transhume node` there",
    )
}

pub fn no_token(token: &str) -> Failure {
    Failure::new(
        format!("there is no token `{token}`"),
        "`transhume net token list` lists them with their numbers",
    )
}

pub fn has_the_coordinator(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} has the coordinator, and cannot be removed"),
        "make a new network without it: `transhume net up --listen` on another machine",
    )
}

/// What runs on a host, comes to it or leaves it, that is to be removed.
pub fn host_in_use(host: &HostName, instances: &[String], is_up: bool) -> Failure {
    const NAMED: usize = 5;
    let named: Vec<_> = instances.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    let others = match instances.len().saturating_sub(NAMED) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let message = format!("host {host} still has to do with instances: {}{others}", named.join(", "));
    let help = if is_up {
        format!("move them away first, `transhume drain {host}`, or end them, `transhume kill`")
    } else {
        format!(
            "its node is not connected, and nobody knows whether they run there: start it again, and then `transhume drain {host}`, or end them, `transhume kill`; if its machine is gone for good, or switched off until it is made anew, `transhume host remove {host} --lost` gives them up"
        )
    };
    Failure::new(message, help)
}

pub fn host_not_lost(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} is not lost: its node is connected"),
        format!(
            "remove it without `--lost`, after `transhume drain {host}`; or switch its machine off before"
        ),
    )
}

/// An instance has left a host that is said to be lost, and does not run yet.
pub fn still_leaving(host: &HostName, id: MoveId) -> Failure {
    Failure::new(
        format!("{id} away from host {host} is committed, and goes forward: that instance is not lost"),
        format!(
            "do it again when `transhume ps` does not show the move any more; if the host where it goes is gone, too, remove that one first; an instance that waits for memory which was on {host} only is ended by `transhume kill`"
        ),
    )
}

pub fn too_many_removed(most: usize) -> Failure {
    Failure::new(
        format!("{most} hosts were removed, of which none may be forgotten, and no more can"),
        "make new certificates for those that are left: a new network, or `transhume pki` in a new folder",
    )
}

pub fn host_silent(host: &HostName) -> Failure {
    Failure::new(
        format!("host {host} did not answer"),
        "`transhume ps` and `transhume hosts` show how things are; then try again",
    )
}

pub fn of_refusal(refusal: &Refusal, name: &str) -> Failure {
    match refusal {
        Refusal::UnknownInstance(_) => no_instance(name),
        Refusal::SameHost(host) => {
            Failure::new(format!("`{name}` is on host {host} already"), "choose another host")
        }
        Refusal::NotConnected(host) => host_down(host),
        Refusal::InProgress(_) => Failure::new(
            format!("`{name}` is being moved already, or saved, or restored"),
            "wait until that is over, or end it with `transhume cancel`",
        ),
        Refusal::Fetching { host, .. } => Failure::new(
            format!("a part of the memory of `{name}` is on host {host} still"),
            "wait until that has been fetched: `transhume ps` shows when its move is over",
        ),
        Refusal::TooMany(moves) => {
            Failure::new(format!("{moves} moves are not over"), "wait for some of them to end")
        }
    }
}

pub fn of_add_error(error: &AddError) -> Failure {
    match error {
        AddError::NameTaken(name) => {
            Failure::new(format!("there is an instance `{name}` already"), "choose another name")
        }
        AddError::VidTaken(_) => Failure::new(error.to_string(), "try again"),
        AddError::SpecTooLarge => Failure::new(error.to_string(), "pass less in the environment"),
    }
}

pub fn of_too_late(error: TooLate, name: &str) -> Failure {
    match error {
        TooLate::Committed(_) => Failure::new(
            format!("the move of `{name}` is committed and goes forward"),
            "move it back when it has arrived",
        ),
        TooLate::Saved(_) => Failure::new(
            format!("`{name}` is saved already, with all of its group"),
            "remove the checkpoint if it is of no use",
        ),
        TooLate::Over(_) => not_moving(name),
    }
}

pub fn lost(name: &str, reason: &str) -> Failure {
    Failure::new(format!("`{name}` is lost: {reason}"), "start it again")
}

pub fn not_moving(name: &str) -> Failure {
    Failure::new(format!("`{name}` is not being moved"), "`transhume ps` shows what it does")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_unknown_instance_it_is_said_that_ended_ones_are_forgotten() {
        let failure = no_instance("e1");
        assert!(failure.message.contains("`e1`") && failure.remedy.contains("the last 64 are remembered"));
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
