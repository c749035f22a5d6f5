use std::collections::{BTreeMap, BTreeSet};

use fabric::session::WindowSize;
use fabric::{Epoch, FabricId, NetworkKind, Vid};
use serde::{Deserialize, Serialize};

use crate::{AutoRequest, Bytes, ImproveRequest, NetChange, Position};

/// A request of the command line to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Starts an instance.
    Run(Box<RunRequest>),
    /// Lists the instances.
    List,
    /// Lists the hosts.
    Hosts,
    /// Reads what hosts and instances use at present.
    Top,
    /// Searches for a better placement of the running instances.
    Improve(ImproveRequest),
    /// Searches for a better placement, and carries it out. It goes on if the client disconnects.
    Apply(ImproveRequest),
    /// Follows a plan that is being carried out, or reports its result.
    FollowPlan {
        /// Its number, from [`Event::Applying`](crate::Event::Applying).
        number: u64,
    },
    /// Begins no more moves of the plan that is being carried out.
    CancelPlan,
    /// Switches the loop on or off that plans by itself, or reads its state.
    Auto(AutoRequest),
    /// Moves an instance, and follows the move.
    Move(MoveRequest),
    /// Follows an earlier move, or reports its result.
    FollowMove {
        /// The instance.
        name: String,
        /// The move's number, from [`Event::Begun`](crate::Event::Begun).
        id: u64,
    },
    /// Moves the instances of a group, together, and follows the moves.
    MoveGroup(MoveGroupRequest),
    /// Saves the instances of a group at one consistent point, and lets them continue to run.
    Checkpoint(CheckpointRequest),
    /// Restores all instances of a checkpoint, or none.
    Restore(RestoreRequest),
    /// Moves all instances off a host, which accepts no new ones from then on, and follows the moves.
    Drain(DrainRequest),
    /// Undrains a host. A drain in progress ends.
    Undrain {
        /// The host.
        host: String,
    },
    /// Rolls the instance's move back, if it is not committed.
    Cancel {
        /// The instance.
        name: String,
    },
    /// Reads the event log.
    Events {
        /// Only events with a higher number.
        after: u64,
        /// Only events since this time, in milliseconds since 1970.
        since_ms: u64,
        /// Also sends new events.
        follow: bool,
    },
    /// Reads the state of the overlay.
    Network,
    /// Reads the locations of MACs, as each host knows them.
    Macs,
    /// Lists the network devices of hosts that can be attached.
    Available,
    /// Reads the traffic matrix of the overlay.
    Matrix {
        /// The time window in seconds.
        window_s: u64,
    },
    /// Creates a join token.
    NewToken {
        /// Its lifetime in seconds.
        lifetime_s: u64,
    },
    /// Lists the join tokens.
    Tokens,
    /// Revokes a join token.
    RevokeToken {
        /// Its number, or the token itself.
        token: String,
    },
    /// Removes a host without instances, and revokes its certificate.
    RemoveHost {
        /// The host.
        host: String,
        /// The machine is gone for good; its instances are given up.
        #[serde(default)]
        lost: bool,
    },
    /// Changes the overlay.
    ChangeNetwork(NetChange),
    /// Reads the output of the instance's command.
    Logs {
        /// The instance.
        name: String,
        /// Continues until the command ends.
        follow: bool,
        /// The position to resume from; without it, from the oldest stored output.
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
    /// Ends the instance with all its processes. If it is moving, the move is cancelled or awaited first. The instance ends
    /// even if the client does not wait.
    Kill {
        /// The instance.
        name: String,
        /// How long a virtual machine may take to power down before it is killed, in seconds; the default is that of its host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_s: Option<u64>,
    },
}

/// An instance to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// Its name; generated if there is none.
    pub name: Option<String>,
    /// The host to start on; any connected host if there is none.
    pub host: Option<String>,
    /// Its group, if any.
    #[serde(default)]
    pub group: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Keys of labels for anti-affinity: it never shares a host with an instance that has the same value of one of them.
    #[serde(default)]
    pub anti_affinity: BTreeSet<String>,
    /// Keys of labels for affinity: it shares its host with all instances that have the same value of one of them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub affinity: BTreeSet<String>,
    /// What it demands.
    #[serde(default, skip_serializing_if = "Demand::is_empty")]
    pub demand: Demand,
    /// Its cool-down in seconds; the default is the coordinator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cool_down_s: Option<u64>,
    /// No plan moves it to a better host.
    #[serde(default)]
    pub pin: bool,
    /// The network of its `eth0`; the default is the overlay if it is laid out, else the bridge.
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
    /// Whether the client will read its output with `follow` at once, so that none is dropped before.
    #[serde(default)]
    pub followed: bool,
    /// Its container, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// The virtual machine that it is, if it is one. It has no command, environment and directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<Vm>,
    /// Whether the command has a standard input, which an [`ExecRequest`] with `for_own` provides.
    #[serde(default)]
    pub stdin: bool,
}

/// The demands of an instance on its host, and on the way to other instances. The planner measures amounts that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Demand {
    /// Thousandths of a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// Bytes of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// By name of another instance: bytes a second between both.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub bandwidth_to: BTreeMap<String, u64>,
    /// By name of another instance: the most microseconds between both.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub latency_to_us: BTreeMap<String, u64>,
}

impl Demand {
    /// Whether it demands nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Its processors.
    pub cpus: u32,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Its machine type; the default is that of the first host's emulator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Its CPU model; the default is one that every host of its accelerator has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// How its processors are executed; the default is KVM where the first host has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// The kernel that it boots. Without one it boots its first disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<Boot>,
    /// Its disks, in order.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// Whether it has a display, which its host offers by VNC.
    #[serde(default)]
    pub vnc: bool,
    /// Its seed disk, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
}

/// How the processors of a virtual machine are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// By the host's processors.
    Kvm,
    /// By translation of their instructions.
    Tcg,
}

/// The read-only disk of a virtual machine with tools for its guest and data for cloud-init.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// Whether it has the agent and the RDMA libraries.
    #[serde(default)]
    pub tools: bool,
    /// The user's data for cloud-init.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
}

/// A kernel that a virtual machine boots without a boot loader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// Its file: an absolute path that exists on every host.
    pub kernel: String,
    /// The file of its initial RAM disk, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<String>,
    /// Its arguments, besides those for console and network.
    #[serde(default)]
    pub append: String,
}

/// A disk of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its file: an absolute path on every host.
    pub path: String,
    /// Whether all hosts share the file.
    pub is_shared: bool,
    /// Its format, if the user states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<DiskFormat>,
}

/// The format of a disk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskFormat {
    /// The disk's blocks as they are.
    Raw,
    /// QEMU's own format.
    Qcow2,
}

/// A container for an OCI runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The root file system: an absolute path that exists on every host. Empty if there is an image.
    pub rootfs: String,
    /// The runtime's configuration, `config.json` of the OCI runtime specification.
    pub config: String,
    /// Whether programs in it find the RDMA device.
    #[serde(default)]
    pub rdma: bool,
    /// The command's user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The image that provides the root file system, in place of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ContainerImage>,
}

/// An image of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerImage {
    /// Its location on each host: `oci:DIR`, `oci:DIR:TAG` or `podman:NAME`, with an absolute path.
    pub source: String,
    /// Identifies its files: the `ChainID` of the OCI image specification.
    pub root: String,
}

/// A checkpoint of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRequest {
    /// The group.
    pub group: String,
    /// The directory of the checkpoint, an absolute path on the members' hosts and on the coordinator's.
    pub directory: String,
}

/// A restore of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreRequest {
    /// The directory of the checkpoint, an absolute path on the destinations and on the coordinator's host.
    pub directory: String,
    /// The destinations; empty means all hosts.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// A command to run in a running instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The instance.
    pub name: String,
    /// The program, found by `PATH`, and its arguments.
    pub command: Vec<String>,
    /// Changes of the instance's environment.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// Its working directory, an absolute path, if it differs from the instance's.
    #[serde(default)]
    pub directory: Option<String>,
    /// Its user and group, if they differ from the instance's.
    #[serde(default)]
    pub user: Option<(u32, u32)>,
    /// Whether it has a standard input, which [`ExecLine::Input`] provides.
    #[serde(default)]
    pub input: bool,
    /// The size of its pseudo-terminal for standard input, output and error, if any; it implies a standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<WindowSize>,
    /// Runs no command, and ignores all other fields: the input goes to the standard input of the instance's own command, once per
    /// instance. It ends with the connection.
    #[serde(default)]
    pub for_own: bool,
    /// The same for a virtual machine, whose standard input is its serial console: one client after the other may be attached, and the
    /// console does not end with the connection.
    #[serde(default)]
    pub console: bool,
}

/// Lines of the client after [`Request::Exec`]. When the client closes the connection, the command gets SIGHUP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecLine {
    /// For the command's standard input; at most [`INPUT_WINDOW`] bytes may be unconfirmed by
    /// [`InputTaken`](crate::Event::InputTaken).
    Input(Bytes),
    /// The standard input ends.
    InputEnd,
    /// A signal for the command.
    Signal(i32),
    /// The new size of the client's window.
    Window(WindowSize),
}

/// The most bytes of input in flight.
pub const INPUT_WINDOW: usize = fabric::stream::WINDOW;

/// A move to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    /// The instance.
    pub name: String,
    /// The destination.
    pub host: String,
    /// Only reports blockers.
    pub dry_run: bool,
    /// Ignores the cool-down.
    #[serde(default)]
    pub force: bool,
    /// Runs the instance on the destination before all its memory is there.
    #[serde(default)]
    pub post_copy: bool,
    /// Rolls the move back if it has not committed after so many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_s: Option<u64>,
}

/// A group to move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveGroupRequest {
    /// The group.
    pub group: String,
    /// The destinations: instances that are elsewhere are spread over these hosts.
    pub hosts: Vec<String>,
    /// Only reports blockers.
    pub dry_run: bool,
    /// Ignores the cool-down.
    #[serde(default)]
    pub force: bool,
}

/// The most moves of a drain at a time.
pub const MAX_PARALLEL: u16 = 32;

/// A host to drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRequest {
    /// The host.
    pub host: String,
    /// Allowed destinations; any connected host if empty.
    pub to: Vec<String>,
    /// The most moves at a time: 1 to [`MAX_PARALLEL`].
    pub parallel: u16,
    /// Only plans the moves.
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
    /// Its group, if any.
    pub group: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Keys of labels for anti-affinity: it never shares a host with an instance that has the same value of one of them.
    #[serde(default)]
    pub anti_affinity: BTreeSet<String>,
    /// Keys of labels for affinity: it shares its host with all instances that have the same value of one of them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub affinity: BTreeSet<String>,
    /// What it demands.
    #[serde(default, skip_serializing_if = "Demand::is_empty")]
    pub demand: Demand,
    /// No plan moves it.
    #[serde(default)]
    pub pin: bool,
    /// Its own cool-down in seconds, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cool_down_s: Option<u64>,
    /// The rest of its cool-down in seconds, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cools_down_for_s: Option<u64>,
    /// How often it has moved.
    pub epoch: Epoch,
    /// Its address on its network, in dotted form.
    pub address: String,
    /// The network of its `eth0`.
    #[serde(default)]
    pub network: NetworkKind,
    /// Its state.
    pub state: State,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The Unix socket on its host at which a virtual machine's display is offered by VNC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vnc: Option<String>,
}

/// The state of an instance.
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
    /// Its move is rolled back, and its host has not yet resumed it.
    RollingBack,
    /// Its command has ended.
    Exited {
        /// As a shell reports it.
        code: i32,
    },
    /// It ended with its host, or could not be started.
    Lost {
        /// The cause, as text.
        reason: String,
    },
}

/// A host as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The listening address of its node, as `address:port`; empty if it has not connected since the coordinator started.
    pub address: String,
    /// Whether its node is connected to the coordinator.
    pub up: bool,
    /// Whether it is drained.
    pub drained: bool,
    /// Whether a drain of it is in progress.
    #[serde(default)]
    pub draining: bool,
    /// Why it asks to be emptied, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<String>,
    /// How many instances it has.
    pub instances: u32,
    /// How it runs virtual machines, once its node knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<MachineSupport>,
}

/// How a host runs virtual machines. Nodes send it too, in a format in which no field may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSupport {
    /// Its emulator with the version.
    pub emulator: Option<String>,
    /// How machines are executed there by default; nothing without an emulator.
    pub accelerator: Option<Accelerator>,
    /// Why there is no emulator, or no KVM.
    pub reason: Option<String>,
    /// The folder with the socket `NAME.vnc` of each machine with a display.
    pub displays: String,
}
