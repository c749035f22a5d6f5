//! Starts instances and describes them to users.

use std::path::PathBuf;
use std::time::Duration;

use api::{DEFAULT_MTU, Event, Failure, RunRequest};
use fabric::network::mac_of;
use fabric::{Epoch, NetworkKind, Vid};
use instance::{
    Accelerator, Blueprint, Boot, Container, ContainerImage, Disk, DiskFormat, InstanceName, InstanceSpec,
    Network, Program, Root, Seed, VmSpec, Workload, container,
};
use moves::journal::{Exit, Instance};
use moves::placement::Placement;
use moves::progress::Phase;
use moves::{HostName, Side};
use planner::{Amounts, Goal, New};
use rpc::wire::{Answer, Question};
use store::{Change, EndedInstance, StoreError};

use crate::address::address;
use crate::client::User;
use crate::core::{Cluster, Command, Owner, State};
use crate::lifecycle::Lifecycle;
use crate::network::devices::Devices;
use crate::network::nics;
use crate::network::rollout::Rollout;
use crate::{cooling, failure, loads, occurrences, placement, planning};

/// Time limit for a host to start an instance.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Additional time for unpacking a container image, possibly behind another one.
const UNPACK_LIMIT: Duration = Duration::from_secs(600);

/// The MTU of bridges, in bytes.
const BRIDGE_MTU: u32 = 1500;

/// Starts an instance and returns the last event for the user.
pub async fn run(cluster: &Cluster, request: RunRequest, user: User) -> Result<Event, Failure> {
    let followed = request.followed;
    let has_image = request.container.as_ref().is_some_and(|container| container.image.is_some());
    let limit = if has_image { START_LIMIT + UNPACK_LIMIT } else { START_LIMIT };
    let (vid, host, spec) = cluster.run(Enter { request: Box::new(request), user }).await?;
    let question = Question::Start { vid, blueprint: spec, followed };
    let started = cluster.ask(&host, question, limit).await;
    let runs = !matches!(started, Ok(Answer::NotStarted(_)));
    let shown = cluster.edit(move |state| has_started(state, vid, runs)).await;
    if let Answer::NotStarted(why) = started? {
        return Ok(Event::NotStarted { code: why.code, failure: Failure::new(why.what, why.remedy) });
    }
    shown.map(|instance| Event::Started(Box::new(instance))).ok_or_else(|| failure::host_silent(&host))
}

/// Notes that the start of an instance has completed, or failed unless it `runs`. Returns the instance for the user.
fn has_started(state: &mut State, vid: Vid, runs: bool) -> Option<api::Instance> {
    // If it has ended by now, its end has logged its start.
    if let Some(instance) = state.snapshot().instances.get(&vid).filter(|_| runs) {
        state.log().note(&occurrences::started(instance));
    }
    let (lifecycle, base) = state.get_with::<Lifecycle>();
    lifecycle.has_started(vid, base);
    let instance = state.snapshot().instances.get(&vid);
    // A short command may have ended by now.
    let ended = || state.get::<Lifecycle>().ended().find(|ended| ended.vid == vid).map(of_ended);
    instance.map(|instance| describe(state, vid, instance)).or_else(ended)
}

/// A new instance. The reply is the information that its host needs to start it.
struct Enter {
    request: Box<RunRequest>,
    user: User,
}

impl Command for Enter {
    type Reply = Result<(Vid, HostName, Vec<u8>), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { request, user } = self;
        let kind =
            request.network.unwrap_or_else(|| nics::usual_network(owner.view().get::<Rollout>().plan()));
        let placement = placement::wanted(&owner.view(), &request)?;
        let host = choose_host(&owner.view(), &request, kind, &placement)?;
        owner.ready().await?;
        let vid = allocate_vid(owner).await?;
        let (fabric, group) = (request.fabric, group(request.group.clone())?);
        let spec = spec(*request, vid, kind, user)?;
        let name = spec.name.as_str().to_owned();
        let blueprint = Blueprint { fabric, spec }.encode().map_err(|error| failure::of_blueprint(&error))?;
        let (epoch, spec) = (Epoch::default(), blueprint.clone());
        let instance = Instance { name, fabric, group, placement, host: host.clone(), epoch, spec };
        let added = owner.decide(|machine, _| machine.add_instance(vid, instance));
        let outputs = added.map_err(|error| failure::of_add_error(&error))?;
        owner.edit(|state| state.get_mut::<Lifecycle>().starts(vid));
        owner.perform(outputs).await;
        Ok((vid, host, blueprint))
    }
}

/// The host of a new instance: the named one, or any.
fn choose_host(
    state: &State,
    request: &RunRequest,
    network: NetworkKind,
    placement: &Placement,
) -> Result<HostName, Failure> {
    let hosts = planning::usable_hosts(state, request.host.as_slice())?;
    // A virtual machine has not been measured yet, so all of its processors count.
    let cpu = request.vm.as_ref().map_or(0, |vm| u64::from(vm.cpus) * 1000);
    let needed = Amounts { cpu, memory: 0 }.max(Amounts::demanded(&placement.demand));
    let name = request.name.as_deref().unwrap_or_default();
    let new = New { name, placement, needed, network };
    let goal = Goal::Start { instances: &[new], hosts: &hosts };
    let loads = loads::measured(state, Vec::new());
    let planned = planner::plan(&planning::view(state), &loads, &goal).map_err(planning::refused)?;
    planned.into_iter().next().map(|of| of.to).ok_or_else(failure::no_usable_host)
}

/// Allocates a VID whose address no overlay device has: with a duplicate address, one of the two would be unreachable.
async fn allocate_vid(owner: &Owner) -> Result<Vid, Failure> {
    let vid = free_vid(&owner.view());
    let vid = vid.ok_or_else(|| failure::of_store(&StoreError::NoVid))?;
    owner.append(Change::VidGiven(vid)).await?;
    owner.edit(|state| state.get_mut::<Lifecycle>().give_out(vid));
    Ok(vid)
}

fn free_vid(state: &State) -> Option<Vid> {
    let (instances, devices) = (&state.snapshot().instances, state.get::<Devices>());
    state
        .get::<Lifecycle>()
        .next_vid(|vid| !instances.contains_key(&vid) && devices.with_address(address(vid).into()).is_none())
}

fn spec(request: RunRequest, vid: Vid, kind: NetworkKind, user: User) -> Result<InstanceSpec, Failure> {
    let name = request.name.clone().unwrap_or_else(|| format!("job-{}", vid.lid()));
    let name = InstanceName::new(&name).ok_or_else(|| {
        Failure::new(
            format!("`{name}` is not a valid instance name"),
            "use 1 to 63 lower-case letters, digits and hyphens, beginning with a letter",
        )
    })?;
    if request.vm.is_none() && request.command.first().is_none_or(String::is_empty) {
        return Err(failure::no_command());
    }
    if request.container.is_some() && user.user != 0 {
        return Err(Failure::new(
            "only root may run a container, because its processes are root on the host",
            "run this with sudo, or run the program without a container",
        ));
    }
    let network = network(vid, kind);
    let workload = workload(request, user)?;
    Ok(InstanceSpec { name, network, network_kind: kind, workload })
}

fn workload(request: RunRequest, user: User) -> Result<Workload, Failure> {
    let RunRequest { command, environment, directory, stdin, container, vm, .. } = request;
    if let Some(vm) = vm {
        return machine(vm, user);
    }
    let (user, group, groups) = match &container {
        Some(container) => (container.user, container.group, container.groups.clone()),
        None => (user.user, user.group, Vec::new()),
    };
    let (directory, limits) = (PathBuf::from(directory), Vec::new());
    let program = Program { command, environment, directory, user, group, groups, limits, stdin };
    let Some(api::Container { rootfs, config, rdma, image, .. }) = container else {
        return Ok(Workload::Process(program));
    };
    container::validate(&config).map_err(|why| Failure::new(why.what, why.remedy))?;
    let root = match image {
        Some(image) => Root::Image(container_image(image)?),
        None => Root::Directory(rootfs.into()),
    };
    Ok(Workload::Container(Container { program, root, config, rdma }))
}

fn machine(vm: api::Vm, user: User) -> Result<Workload, Failure> {
    if user.user != 0 {
        return Err(Failure::new("only root may run a virtual machine", "run this with sudo"));
    }
    let api::Vm { cpus, memory_bytes, machine, cpu_model, accelerator, boot, disks, vnc, seed } = vm;
    let seed = seed.map(|api::Seed { tools, user_data }| Seed { tools, user_data });
    if let Some(seed) = &seed {
        seed.validate().map_err(|why| Failure::new(why.what, why.remedy))?;
    }
    if boot.is_none() && disks.is_empty() {
        let help = "pass `--kernel` or `--disk`";
        return Err(Failure::new("the virtual machine has neither a kernel nor a disk to boot from", help));
    }
    let format = |stated| match stated {
        api::DiskFormat::Raw => DiskFormat::Raw,
        api::DiskFormat::Qcow2 => DiskFormat::Qcow2,
    };
    let disks = disks.into_iter().map(|api::Disk { path, is_shared, format: stated }| Disk {
        path: path.into(),
        is_shared,
        format: stated.map(format),
    });
    let boot = boot.map(|api::Boot { kernel, initrd, append }| Boot {
        kernel: kernel.into(),
        initrd: initrd.map(PathBuf::from),
        append,
    });
    let accelerator = accelerator.map(|wanted| match wanted {
        api::Accelerator::Kvm => Accelerator::Kvm,
        api::Accelerator::Tcg => Accelerator::Tcg,
    });
    let (memory, disks) = (memory_bytes, disks.collect());
    Ok(Workload::Vm(VmSpec { cpus, memory, machine, cpu_model, accelerator, boot, disks, vnc, seed }))
}

/// The image of a container.
fn container_image(asked: api::ContainerImage) -> Result<ContainerImage, Failure> {
    let root = asked.root.parse().map_err(|error: instance::BadDigest| {
        Failure::new(error.to_string(), "use a command line of the same release as the coordinator")
    })?;
    Ok(ContainerImage { source: asked.source, root })
}

/// Validates the name of a group, which follows the rules of instance names.
fn group(wanted: Option<String>) -> Result<Option<String>, Failure> {
    match wanted {
        Some(name) if InstanceName::new(&name).is_none() => Err(Failure::new(
            format!("`{name}` is not a valid group name"),
            "use 1 to 63 lower-case letters, digits and hyphens, beginning with a letter",
        )),
        wanted => Ok(wanted),
    }
}

fn network(vid: Vid, kind: NetworkKind) -> Network {
    let mtu = match kind {
        NetworkKind::Bridge => BRIDGE_MTU,
        NetworkKind::Overlay => DEFAULT_MTU,
    };
    Network { mac: mac_of(vid), address: address(vid), prefix: 16, mtu }
}

/// Describes an instance to the user.
pub fn describe(state: &State, vid: Vid, instance: &Instance) -> api::Instance {
    let mut moves = state.moves();
    let moving = moves.find(|view| view.record.vid == vid && view.is_under_way && !view.record.dry_run);
    let how = match moving {
        Some(view) if view.phase == Phase::RollBack => api::State::RollingBack,
        Some(view) => match (&view.record.source, &view.record.destination) {
            (_, Side::Images(_)) => api::State::Saving,
            (Side::Images(_), _) => api::State::Restoring,
            (_, Side::Host(host)) => api::State::Moving { to: host.to_string() },
        },
        _ if state.get::<Lifecycle>().is_starting(vid) => api::State::Starting,
        _ => api::State::Running,
    };
    let cools_down_for_s = cooling::cools_down_for(state, vid);
    let vnc = display(state, instance);
    api::Instance { cools_down_for_s, vnc, ..with_state(vid, instance, how) }
}

/// The socket of a virtual machine's display on its host, if it has one.
fn display(state: &State, instance: &Instance) -> Option<String> {
    let spec = Blueprint::decode(&instance.spec).ok()?.spec;
    let folder = &state.links().machines(&instance.host)?.displays;
    let path = |vm: &VmSpec| vm.vnc.then(|| format!("{folder}/{}.vnc", instance.name));
    if let Workload::Vm(vm) = &spec.workload { path(vm) } else { None }
}

/// Describes an ended instance to the user.
pub fn of_ended(ended: &EndedInstance) -> api::Instance {
    let state = match &ended.exit {
        Exit::Code(code) => api::State::Exited { code: *code },
        Exit::Lost { reason } => api::State::Lost { reason: reason.clone() },
        Exit::NotStarted => api::State::Lost { reason: failure::NOT_STARTED.into() },
    };
    with_state(ended.vid, &ended.instance, state)
}

fn with_state(vid: Vid, instance: &Instance, state: api::State) -> api::Instance {
    let spec = Blueprint::decode(&instance.spec).ok().map(|blueprint| blueprint.spec);
    let program = spec.as_ref().and_then(InstanceSpec::program);
    api::Instance {
        name: instance.name.clone(),
        vid,
        fabric: instance.fabric,
        host: instance.host.to_string(),
        group: instance.group.clone(),
        labels: instance.placement.labels.clone(),
        anti_affinity: instance.placement.anti_affinity.clone(),
        affinity: instance.placement.affinity.clone(),
        demand: placement::described(&instance.placement.demand),
        pin: instance.placement.is_pinned,
        cool_down_s: instance.placement.cool_down_s,
        cools_down_for_s: None,
        epoch: instance.epoch,
        address: address(vid).to_string(),
        state,
        network: spec.as_ref().map(|spec| spec.network_kind).unwrap_or_default(),
        command: program.map(|program| program.command.clone()).unwrap_or_default(),
        vnc: None,
    }
}

#[cfg(test)]
mod tests;
