use std::collections::{BTreeMap, BTreeSet};

use fabric::session::WindowSize;
use fabric::{Epoch, FabricId, NetworkKind, Vid};
use serde::{Deserialize, Serialize};

use crate::{Bytes, NetChange, Position};

/// What the command line asks of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Starts an instance.
    Run(Box<RunRequest>),
    /// Lists the instances.
    List,
    /// Lists the hosts.
    Hosts,
    /// Moves an instance, and follows the move.
    Move(MoveRequest),
    /// Follows a move that was begun before, or says how it ended.
    FollowMove {
        /// The instance.
        name: String,
        /// The move's number, from [`Event::Begun`](crate::Event::Begun).
        id: u64,
    },
    /// Moves the instances of a group, together, and follows the moves.
    MoveGroup(MoveGroupRequest),
    /// Saves the instances of a group in one state, and lets them run on.
    Checkpoint(CheckpointRequest),
    /// Restores all instances of a checkpoint, or none.
    Restore(RestoreRequest),
    /// Moves all instances away from a host, on which nothing is started from then on, and follows the moves.
    Drain(DrainRequest),
    /// Lets instances be started on a host again. A drain of it that is under way ends.
    Undrain {
        /// The host.
        host: String,
    },
    /// Rolls the instance's move back, if it is not committed yet.
    Cancel {
        /// The instance.
        name: String,
    },
    /// Tells what has happened, as far as that is kept.
    Events {
        /// Only events with a higher number.
        after: u64,
        /// Only those that are not older, in milliseconds since 1970.
        since_ms: u64,
        /// Goes on with what will happen.
        follow: bool,
    },
    /// Says how the overlay is.
    Network,
    /// Says where MACs are in the overlay, as each host knows it.
    Macs,
    /// Says who has sent how much to whom in the overlay.
    Matrix {
        /// In how many seconds.
        window_s: u64,
    },
    /// Makes a token by which machines can join.
    NewToken {
        /// For how many seconds.
        lifetime_s: u64,
    },
    /// Lists the tokens by which machines can join, or could.
    Tokens,
    /// Lets nobody join any more by a token.
    RevokeToken {
        /// Its number, or the token itself.
        token: String,
    },
    /// Takes the right to take part away from a host that has no instances.
    RemoveHost {
        /// The host.
        host: String,
        /// Its machine is gone for good, and with it the instances that it had.
        #[serde(default)]
        lost: bool,
    },
    /// Changes the overlay.
    ChangeNetwork(NetChange),
    /// Writes out what the instance's command has written.
    Logs {
        /// The instance.
        name: String,
        /// Goes on until the command ends.
        follow: bool,
        /// Where to go on; from the begin, as far as it is kept, if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Position>,
    },
    /// Runs a command in the instance; [`ExecLine`]s follow.
    Exec(ExecRequest),
    /// Waits until the instance's command ends.
    Wait {
        /// The instance.
        name: String,
    },
    /// Ends the instance with all its processes. One that is being moved ends when its move is over, which is cancelled if it
    /// still can be; it ends also if the client does not wait for that.
    Kill {
        /// The instance.
        name: String,
    },
}

/// An instance to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// Its name; one is made up if there is none.
    pub name: Option<String>,
    /// Where to start it; any host that is up if there is none.
    pub host: Option<String>,
    /// The group to which it belongs, if it does to any.
    #[serde(default)]
    pub group: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Keys of labels: it never shares a host with an instance that has the same value of one of them.
    #[serde(default)]
    pub anti_affinity: BTreeSet<String>,
    /// For so many seconds after a move ordinary ones leave it alone; as long as for all, if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cool_down_s: Option<u64>,
    /// What its `eth0` is to be plugged into; the overlay, if it is laid out, if nothing is said.
    #[serde(default)]
    pub network: Option<NetworkKind>,
    /// Its fabric.
    pub fabric: FabricId,
    /// The program, found by `PATH`, and its arguments.
    pub command: Vec<String>,
    /// The command's whole environment.
    pub environment: Vec<(String, String)>,
    /// The command's working directory: an absolute path that exists on every host.
    pub directory: String,
    /// Whether its output will be asked for at once, with `follow`: none is lost before that.
    #[serde(default)]
    pub followed: bool,
    /// What it has of its own if it is a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Whether the command has a standard input, which an [`ExecRequest`] `for_own` brings.
    #[serde(default)]
    pub stdin: bool,
}

/// A container to be made by an OCI runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The root file system: an absolute path that exists on every host. Empty if there is an image.
    pub rootfs: String,
    /// The runtime's configuration, `config.json` of the OCI runtime specification.
    pub config: String,
    /// Whether every program in it is to find the RDMA device.
    #[serde(default)]
    pub rdma: bool,
    /// As whom the command runs.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// The image of which the root file system is made, in place of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ContainerImage>,
}

/// An image of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerImage {
    /// Where each host has it: `oci:DIR`, `oci:DIR:TAG` or `podman:NAME`, with a path from the root on.
    pub source: String,
    /// What its files are known by: the `ChainID` of the OCI image specification.
    pub root: String,
}

/// A checkpoint of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRequest {
    /// The group.
    pub group: String,
    /// Where it is to be, an absolute path: on the hosts of the members, and on the coordinator's.
    pub directory: String,
}

/// A restore of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreRequest {
    /// Where the checkpoint is, an absolute path: on the hosts to which its members go, and on the coordinator's.
    pub directory: String,
    /// The hosts to which they go; all, if none is named.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// A command to be run in an instance that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The instance.
    pub name: String,
    /// The program, found by `PATH`, and its arguments.
    pub command: Vec<String>,
    /// What differs from the instance's environment.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// Its working directory, if that is not the instance's: an absolute path.
    #[serde(default)]
    pub directory: Option<String>,
    /// Its user and group, if these are not the instance's.
    #[serde(default)]
    pub user: Option<(u32, u32)>,
    /// Whether it has a standard input, which [`ExecLine::Input`] brings.
    #[serde(default)]
    pub input: bool,
    /// A pseudo-terminal of this size for its standard input, output and error; then it has a standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<WindowSize>,
    /// No command is run, and nothing else counts: the input is for the standard input of the instance's own command, once for each
    /// that has one. It ends with the connection.
    #[serde(default)]
    pub for_own: bool,
}

/// What the client says after [`Request::Exec`], a line each. When it closes the connection the command is hung up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecLine {
    /// For the command's standard input: no more than [`INPUT_WINDOW`] bytes that are not yet
    /// [taken](crate::Event::InputTaken).
    Input(Bytes),
    /// The standard input ends.
    InputEnd,
    /// The command is to get the signal of this number.
    Signal(i32),
    /// The client's window has this size now.
    Window(WindowSize),
}

/// The most bytes of input on their way.
pub const INPUT_WINDOW: usize = fabric::stream::WINDOW;

/// A move to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    /// The instance.
    pub name: String,
    /// Where it should go.
    pub host: String,
    /// Only finds out what stands in the way.
    pub dry_run: bool,
    /// Moves it also while it cools down.
    #[serde(default)]
    pub force: bool,
    /// Lets it run before all its memory is there.
    #[serde(default)]
    pub post_copy: bool,
}

/// A group to be moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveGroupRequest {
    /// The group.
    pub group: String,
    /// Where its instances are to be: those that are elsewhere are spread over these hosts.
    pub hosts: Vec<String>,
    /// Only finds out what stands in the way.
    pub dry_run: bool,
    /// Moves them also while some cool down.
    #[serde(default)]
    pub force: bool,
}

/// The most moves that a drain makes at a time.
pub const MAX_PARALLEL: u16 = 32;

/// A host to be drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRequest {
    /// The host.
    pub host: String,
    /// Where instances may go; any host that is up if there is none.
    pub to: Vec<String>,
    /// How many moves are made at a time, at most: 1 to [`MAX_PARALLEL`].
    pub parallel: u16,
    /// Only finds out where each instance would go.
    pub dry_run: bool,
}

/// An instance as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Its name.
    pub name: String,
    /// Its identity in the fabric.
    pub vid: Vid,
    /// Its fabric.
    pub fabric: FabricId,
    /// Where it is.
    pub host: String,
    /// The group with which it can be moved.
    pub group: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Keys of labels: it never shares a host with an instance that has the same value of one of them.
    #[serde(default)]
    pub anti_affinity: BTreeSet<String>,
    /// For how many seconds after a move ordinary ones leave it alone, if that is its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cool_down_s: Option<u64>,
    /// For how many seconds they still do, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cools_down_for_s: Option<u64>,
    /// How often it has moved.
    pub epoch: Epoch,
    /// Its address on its network, in dotted form.
    pub address: String,
    /// What its `eth0` is plugged into.
    #[serde(default)]
    pub network: NetworkKind,
    /// What it does.
    pub state: State,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// What an instance does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is being started.
    Starting,
    /// It runs.
    Running,
    /// It is being moved.
    Moving {
        /// The host to which it goes.
        to: String,
    },
    /// It is being saved in a checkpoint.
    Saving,
    /// It is being restored from a checkpoint.
    Restoring,
    /// Its move is given up, and its host has not yet let it run again.
    RollingBack,
    /// Its command has ended.
    Exited {
        /// As a shell reports it.
        code: i32,
    },
    /// It ended with its host, or could not be started.
    Lost {
        /// How, in words.
        reason: String,
    },
}

/// A host as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Where its node listens, as `address:port`; empty, if it was not connected since the coordinator began.
    pub address: String,
    /// Whether its node is connected to the coordinator.
    pub up: bool,
    /// Whether nothing is started on it.
    pub drained: bool,
    /// Whether instances are being moved away from it by a drain.
    #[serde(default)]
    pub draining: bool,
    /// How many instances it has.
    pub instances: u32,
}
