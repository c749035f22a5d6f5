use instance::{Program, Workload};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use fabric::{NetworkKind, Vid, network};
use overlay::switch::{Gate, Origin};
use rpc::net::ToNode;

use super::*;
use crate::network::joined::Joined;
use crate::network::tests::{HERE, THERE, started};

fn mac() -> Mac {
    Mac(network::mac_of(Vid::new(1).unwrap()))
}

fn spec() -> InstanceSpec {
    InstanceSpec {
        name: InstanceName::new("job").unwrap(),
        network: Network { mac: mac().0, address: Ipv4Addr::new(10, 77, 1, 1), prefix: 16, mtu: 1400 },
        network_kind: NetworkKind::Overlay,
        workload: Workload::Process(Program::new(["true"])),
    }
}

fn entry(node: NodeId, epoch: u64) -> Entry {
    Entry { mac: mac(), node, port: None, epoch: Epoch(epoch), addresses: vec![] }
}

/// A host that has just joined the overlay, and the network namespace of an instance.
fn host() -> (Joined, Nics, OwnedFd) {
    let joined = started();
    let nics = joined.nics.clone();
    nics.join(&joined.plane, HERE, Offloads::NONE);
    (joined, nics, netns::create().expect("a network namespace: these tests run as root"))
}

/// The location and epoch of the instance, and whether its port carries frames.
fn known(joined: &Joined) -> (Option<(NodeId, u64)>, Option<Gate>) {
    joined.plane.command(|switch, now, _| {
        let place = switch.macs(now).into_iter().find_map(|known| match known.origin {
            Origin::Managed { epoch, .. } => Some((known.node, epoch.0)),
            Origin::Learned { .. } => None,
        });
        (place, switch.state(now).ports.first().map(|port| port.gate))
    })
}

#[test]
fn an_instance_starts_leaves_and_is_gone() {
    let (joined, nics, namespace) = host();
    let (spec, network) = (spec(), spec().network);
    nics.create(&spec, namespace.as_fd()).unwrap();
    assert_eq!(known(&joined), (None, Some(Gate::Muted)));
    nics.set_here(mac(), Epoch(0));
    assert_eq!(known(&joined), (Some((HERE, 0)), Some(Gate::Muted)));
    nics.mend(&network).unwrap();
    assert_eq!(known(&joined), (Some((HERE, 0)), Some(Gate::Open)));
    assert!(nics.apply(&entry(HERE, 0)), "an entry that is known already changes nothing");
    nics.cut(&network).unwrap();
    assert_eq!(known(&joined).1, Some(Gate::Paused));
    nics.mend(&network).unwrap();
    assert_eq!(known(&joined).1, Some(Gate::Open), "the move was rolled back");
    nics.hold(&network).unwrap();
    assert_eq!(known(&joined).1, Some(Gate::Held));
    nics.cut(&network).unwrap();
    nics.hold(&network).unwrap();
    assert_eq!(known(&joined).1, Some(Gate::Paused), "it has stopped");
    assert!(nics.apply(&entry(THERE, 1)));
    assert_eq!(known(&joined), (Some((THERE, 1)), Some(Gate::Paused)));
    nics.delete(&network).unwrap();
    assert_eq!(known(&joined), (Some((THERE, 1)), None));
    assert!(!nics.apply(&entry(THERE, 2)), "the device is not here");
    assert!(nics.mend(&network).is_err());
    netns::enter(namespace.as_fd(), || Tap::new(DEVICE).map(drop)).unwrap().expect("the device is gone");
}

#[test]
fn an_instance_arrives_at_the_commit_whichever_report_comes_first() {
    for says in [&[1][..], &[5, 6], &[6], &[]] {
        let (joined, nics, namespace) = host();
        nics.create(&spec(), namespace.as_fd()).unwrap();
        for epoch in says {
            let node = if *epoch == 6 { HERE } else { THERE };
            nics.apply(&entry(node, *epoch));
            assert_eq!(known(&joined).1, Some(Gate::Muted));
        }
        nics.set_here(mac(), Epoch(6));
        assert_eq!(known(&joined), (Some((HERE, 6)), Some(Gate::Muted)), "{says:?}");
        nics.mend(&spec().network).unwrap();
        assert_eq!(known(&joined).1, Some(Gate::Open));
    }
}

#[test]
fn a_copy_that_was_not_released_is_replaced_by_another() {
    let (joined, nics, namespace) = host();
    nics.create(&spec(), namespace.as_fd()).unwrap();
    nics.set_here(mac(), Epoch(1));
    nics.mend(&spec().network).unwrap();
    let another = netns::create().unwrap();
    nics.create(&spec(), another.as_fd()).unwrap();
    assert_eq!(known(&joined), (Some((HERE, 1)), Some(Gate::Paused)));
    nics.mend(&spec().network).unwrap();
    assert_eq!(known(&joined).1, Some(Gate::Open));
}

#[test]
fn a_restarted_node_finds_the_device_before_it_joins_the_overlay() {
    let (before, killed, namespace) = host();
    killed.create(&spec(), namespace.as_fd()).unwrap();
    let after = Nics::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let ready = |patience| runtime.block_on(after.ready(patience));
    let missing = ready(Duration::ZERO).unwrap_err();
    assert!(missing.contains("this host is not part of the overlay") && missing.contains("net layout"));
    let node = thread::spawn(move || {
        thread::sleep(10 * PAUSE);
        drop((before, killed));
    });
    after.find(&spec(), namespace.as_fd()).expect("the killed node lets it go soon");
    node.join().unwrap();
    after.mend(&spec().network).unwrap();
    let joined = started();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(10 * PAUSE);
            after.join(&joined.plane, HERE, Offloads::NONE);
        });
        ready(10 * PATIENCE).expect("it is waited for");
    });
    assert_eq!(known(&joined), (None, Some(Gate::Open)));
    after.apply(&entry(HERE, 3));
    assert_eq!(known(&joined), (Some((HERE, 3)), Some(Gate::Open)));
    drop(joined);
    ready(Duration::ZERO).expect_err("it is another overlay now");
}

#[test]
fn instances_missing_from_a_new_list_have_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (mut joined, nics, namespace) = host();
    let told = |entries| ToNode::Stations { entries, all_until: Some(Epoch(0)) };
    runtime.block_on(joined.obey(told(vec![entry(THERE, 7)])));
    assert_eq!(known(&joined).0, Some((THERE, 7)));
    runtime.block_on(joined.obey(told(vec![])));
    assert_eq!(known(&joined).0, None);
    nics.create(&spec(), namespace.as_fd()).unwrap();
    nics.set_here(mac(), Epoch(9));
    runtime.block_on(joined.obey(told(vec![])));
    assert_eq!(known(&joined).0, Some((HERE, 9)), "it has begun since");
}
