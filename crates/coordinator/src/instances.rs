//! Starts instances and describes them to users.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use api::{DEFAULT_MTU, Event, Failure, RunRequest, State};
use fabric::network::mac_of;
use fabric::{Epoch, NetworkKind, Vid};
use instance::{
    Blueprint, Container, ContainerImage, Disk, InstanceName, InstanceSpec, Network, Program, Root, VmSpec,
    Workload, container,
};
use moves::journal::{Exit, Instance};
use moves::placement::Placement;
use moves::progress::Phase;
use moves::{HostName, Side};
use planner::{Goal, New};
use rpc::wire::{Answer, Question};
use store::EndedInstance;

use crate::cluster::{Cluster, Inner};
use crate::server::User;
use crate::{failure, log, placement, planning};

/// Time limit for a host to start an instance.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Additional time for unpacking a container image, possibly behind another one.
const UNPACK_LIMIT: Duration = Duration::from_secs(600);

/// The MTU of bridges, in bytes.
const BRIDGE_MTU: u32 = 1500;

/// The first two bytes of all addresses; hosts have 0 or 255 in the third byte.
const NETWORK: (u8, u8) = (10, 77);

/// Starts an instance and returns the last event for the user.
pub async fn run(cluster: &Cluster, request: RunRequest, user: User) -> Result<Event, Failure> {
    let followed = request.followed;
    let has_image = request.container.as_ref().is_some_and(|container| container.image.is_some());
    let limit = if has_image { START_LIMIT + UNPACK_LIMIT } else { START_LIMIT };
    let (vid, host, spec) = enter(cluster, request, user)?;
    let question = Question::Start { vid, blueprint: spec, followed };
    let started = cluster.ask(&host, question, limit).await;
    let mut inner = cluster.lock();
    // If it has ended by now, the connection that started it has reported that.
    if let Some(instance) = inner.machine.image().instances.get(&vid)
        && !matches!(started, Ok(Answer::NotStarted(_)))
    {
        inner.log.note(&log::started(instance));
    }
    cluster.is_started(&mut inner, vid);
    if let Answer::NotStarted(why) = started? {
        return Ok(Event::NotStarted { code: why.code, failure: Failure::new(why.what, why.remedy) });
    }
    let instance = inner.machine.image().instances.get(&vid);
    // A short command may have ended by now.
    let ended = || inner.ended.iter().find(|ended| ended.vid == vid).map(of_ended);
    let shown = instance.map(|instance| describe(&inner, vid, instance)).or_else(ended);
    shown.map(Event::Started).ok_or_else(|| failure::host_silent(&host))
}

fn enter(cluster: &Cluster, request: RunRequest, user: User) -> Result<(Vid, HostName, Vec<u8>), Failure> {
    let mut inner = cluster.lock();
    let kind = request.network.unwrap_or_else(|| inner.usual_network());
    let placement = placement::wanted(request.labels.clone(), request.anti_affinity.clone())?;
    let placement = Placement { cool_down_s: request.cool_down_s, ..placement };
    let host = choose_host(&inner, request.host.as_slice(), kind, &placement)?;
    inner.store.ready().map_err(|error| failure::of_store(&error))?;
    let vid = allocate_vid(&inner)?;
    let fabric = request.fabric;
    let group = group(request.group.clone())?;
    let spec = spec(request, vid, kind, user)?;
    let name = spec.name.as_str().to_owned();
    let blueprint = Blueprint { fabric, spec }.encode().map_err(|error| failure::of_blueprint(&error))?;
    let instance = Instance {
        name,
        fabric,
        group,
        placement,
        host: host.clone(),
        epoch: Epoch::default(),
        spec: blueprint.clone(),
    };
    let added = inner.machine.add_instance(vid, instance);
    let outputs = added.map_err(|error| failure::of_add_error(&error))?;
    inner.starting.insert(vid);
    cluster.perform(&mut inner, outputs);
    Ok((vid, host, blueprint))
}

/// The host of a new instance: one of `named`, or any if that is empty.
fn choose_host(
    inner: &Inner,
    named: &[String],
    network: NetworkKind,
    placement: &Placement,
) -> Result<HostName, Failure> {
    let hosts = planning::usable_hosts(inner, named)?;
    let new = New { name: "", placement, network };
    let planned = planner::plan(&planning::view(inner), &Goal::Start { instances: &[new], hosts: &hosts });
    let planned = planned.map_err(planning::refused)?;
    planned.into_iter().next().map(|of| of.to).ok_or_else(failure::no_usable_host)
}

/// Allocates a VID whose address no overlay device has: with a duplicate address, one of the two would be unreachable.
fn allocate_vid(inner: &Inner) -> Result<Vid, Failure> {
    let allocated = inner.store.allocate_vid(|vid| inner.devices.with_address(address(vid).into()).is_none());
    allocated.map_err(|error| failure::of_store(&error))
}

/// Number of instances on a host.
pub fn instances_on(inner: &Inner, host: &HostName) -> u32 {
    let here = inner.machine.image().instances.values().filter(|instance| instance.host == *host);
    u32::try_from(here.count()).unwrap_or(u32::MAX)
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
    let api::Vm { cpus, memory_bytes, kernel, disks } = vm;
    let disks = disks.into_iter().map(|disk| Disk { path: disk.path.into(), is_shared: disk.is_shared });
    Ok(Workload::Vm(VmSpec {
        cpus,
        memory: memory_bytes,
        kernel: kernel.map(PathBuf::from),
        disks: disks.collect(),
    }))
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

/// The instance's address: 10.77.1.1 for VID 1; the last byte is never 0 or 255.
pub fn address(vid: Vid) -> Ipv4Addr {
    let number = vid.lid() - 1;
    let byte = |value: u16| u8::try_from(value).unwrap_or(u8::MAX);
    Ipv4Addr::new(NETWORK.0, NETWORK.1, byte(number / 254 + 1), byte(number % 254 + 1))
}

/// Describes an instance to the user.
pub fn describe(inner: &Inner, vid: Vid, instance: &Instance) -> api::Instance {
    let mut moves = inner.machine.moves();
    let moving = moves.find(|view| view.record.vid == vid && view.is_under_way && !view.record.dry_run);
    let state = match moving {
        Some(view) if view.phase == Phase::RollBack => State::RollingBack,
        Some(view) => match (&view.record.source, &view.record.destination) {
            (_, Side::Images(_)) => State::Saving,
            (Side::Images(_), _) => State::Restoring,
            (_, Side::Host(host)) => State::Moving { to: host.to_string() },
        },
        _ if inner.starting.contains(&vid) => State::Starting,
        _ => State::Running,
    };
    let cools_down_for_s = inner.cools_down_for(vid);
    api::Instance { cools_down_for_s, ..with_state(vid, instance, state) }
}

/// Describes an ended instance to the user.
pub fn of_ended(ended: &EndedInstance) -> api::Instance {
    let state = match &ended.exit {
        Exit::Code(code) => State::Exited { code: *code },
        Exit::Lost { reason } => State::Lost { reason: reason.clone() },
        Exit::NotStarted => State::Lost { reason: failure::NOT_STARTED.into() },
    };
    with_state(ended.vid, &ended.instance, state)
}

fn with_state(vid: Vid, instance: &Instance, state: State) -> api::Instance {
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
        cool_down_s: instance.placement.cool_down_s,
        cools_down_for_s: None,
        epoch: instance.epoch,
        address: address(vid).to_string(),
        state,
        network: spec.as_ref().map(|spec| spec.network_kind).unwrap_or_default(),
        command: program.map(|program| program.command.clone()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::network::played::{World, attach_with};

    #[tokio::test]
    async fn an_instance_does_not_get_the_address_of_a_device() {
        let world = World::new().await;
        let mut h1 = world.node("h1").await;
        world.lay(&mut [&mut h1]).await;
        let wanted = attach_with("h1", "tap1", "10.77.1.2/16");
        let (attached, _) = tokio::join!(world.change(wanted), h1.grant());
        attached.unwrap();
        let vids = [(); 2].map(|()| allocate_vid(&world.cluster.lock()).unwrap());
        assert_eq!(vids.map(|vid| vid.lid()), [1, 3]);
    }

    #[test]
    fn addresses_are_distinct_and_not_a_hosts() {
        let all: HashSet<_> = (1..=Vid::MAX).filter_map(Vid::new).map(address).collect();
        assert_eq!(all.len(), usize::from(Vid::MAX));
        assert!(all.iter().all(|address| !matches!(address.octets(), [_, _, 0 | 255, _] | [.., 0 | 255])));
    }
}
