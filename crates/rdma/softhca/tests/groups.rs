//! Multicast.

mod support;

use fabric::ProcessId;
use softhca::attr::GlobalRoute;
use softhca::*;
use support::*;
use verbs::Policy;

const QKEY: u32 = 7;
const GRH: usize = 40;
const GROUP: GroupId = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x0f, 1, 2, 3];

fn ready(net: &mut Net, node: usize) -> End {
    use QpAttrMask as M;
    let plan = Plan { kind: QpKind::Ud, ..Plan::default() };
    let end = open(net, node, &plan);
    let attr = |state| QpAttr { state, qkey: QKEY, ..plan.attr };
    let masks = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
        (QpState::Rtr, M::empty()),
        (QpState::Rts, M::SQ_PSN),
    ];
    for (state, mask) in masks {
        net.device(node).modify_qp(end.qp, &attr(state), mask | M::STATE).unwrap();
    }
    end
}

fn group_handle(net: &mut Net, from: &End) -> Ah {
    let global = Some(GlobalRoute { dgid: GROUP, ..GlobalRoute::default() });
    let address = AddressVector { dlid: 0xc003, global, port: 1, ..AddressVector::default() };
    net.device(from.node).create_ah(from.pd, &address).unwrap()
}

fn send(net: &mut Net, from: &End, ah: Ah, text: &[u8]) {
    from.memory.store(0, text);
    let op = SendOp::Datagram { ah, qpn: 0x00ff_ffff, qkey: QKEY, imm: None };
    from.post(net, 1, op, &[from.sge(0, text.len())]);
}

fn wanted(net: &mut Net, node: usize) -> Vec<GroupId> {
    let mut wanted = Vec::new();
    net.device(node).take_group_requests(&mut wanted);
    wanted
}

fn members(net: &Net, nodes: &[usize]) -> Option<Vec<ProcessId>> {
    Some(nodes.iter().map(|node| net.nodes[*node].id).collect())
}

#[test]
fn every_receiver_gets_a_copy() {
    for medium in Medium::ALL {
        let net = &mut Net::new(3, Policy::Colliding, medium, 5);
        let ends = [ready(net, 0), ready(net, 1), ready(net, 1), ready(net, 2)];
        for (at, end) in ends.iter().enumerate() {
            let first = net.device(end.node).attach_group(end.qp, GROUP).unwrap();
            assert_eq!(first, at != 2, "the second of its process is not the first");
            end.receive(net, 9, &[end.sge(100, 100)]);
        }
        let outsider = ready(net, 2);
        outsider.receive(net, 9, &[outsider.sge(100, 100)]);
        let ah = group_handle(net, &ends[0]);
        send(net, &ends[0], ah, b"to all");
        assert_eq!(wanted(net, 0), [GROUP]);
        assert!(ends[0].poll_sends(net).is_empty(), "it waits for the members");
        let all = members(net, &[0, 1, 2]);
        net.device(0).learn_members(GROUP, all);
        net.settle();
        assert_eq!(statuses(&ends[0].poll_sends(net)), [WcStatus::Success]);
        for end in &ends {
            let got = end.poll_receives(net)[0];
            assert_eq!((got.byte_len, got.has_route), (46, true));
            assert_eq!(end.memory.load(100 + GRH, 6), b"to all");
            assert_eq!(end.memory.load(100 + 24, 16), GROUP);
            assert_eq!(end.memory.load(100 + 8, 16), net.nodes[0].id.vid.gid(FABRIC));
        }
        assert!(outsider.poll_receives(net).is_empty());
    }
}

#[test]
fn members_have_room_among_very_many_peers() {
    let net = &mut Net::new(3, Policy::Stable, Medium::Shm, 5);
    let ends = [ready(net, 0), ready(net, 1), ready(net, 2)];
    for stranger in 0..2 * MAX_PEERS as u16 {
        let address = AddressVector { dlid: 100 + stranger, port: 1, ..AddressVector::default() };
        let ah = net.device(0).create_ah(ends[0].pd, &address).unwrap();
        let op = SendOp::Datagram { ah, qpn: ends[1].qpn, qkey: QKEY, imm: None };
        ends[0].post(net, 1, op, &[ends[0].sge(0, 8)]);
    }
    for end in &ends[1..] {
        net.device(end.node).attach_group(end.qp, GROUP).unwrap();
        end.receive(net, 9, &[end.sge(100, 100)]);
    }
    net.settle();
    let ah = group_handle(net, &ends[0]);
    send(net, &ends[0], ah, b"to all");
    let all = members(net, &[1, 2]);
    net.device(0).learn_members(GROUP, all);
    net.settle();
    for end in &ends[1..] {
        assert_eq!(statuses(&end.poll_receives(net)), [WcStatus::Success]);
    }
}

#[test]
fn a_member_without_a_receive_blocks_no_other() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Shm, 5);
    let (a, b, idle) = (ready(net, 0), ready(net, 1), ready(net, 1));
    for end in [&b, &idle] {
        net.device(1).attach_group(end.qp, GROUP).unwrap();
    }
    b.receive(net, 9, &[b.sge(100, 100)]);
    let ah = group_handle(net, &a);
    send(net, &a, ah, b"now");
    let known = members(net, &[1]);
    net.device(0).learn_members(GROUP, known);
    net.run(|_| false, 200);
    assert_eq!(statuses(&b.poll_receives(net)), [WcStatus::Success]);
}

#[test]
fn known_members_stay_in_use_while_they_are_refreshed() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Shm, 5);
    let (a, b) = (ready(net, 0), ready(net, 1));
    net.device(1).attach_group(b.qp, GROUP).unwrap();
    let ah = group_handle(net, &a);
    send(net, &a, ah, b"1");
    assert_eq!(wanted(net, 0), [GROUP]);
    let known = members(net, &[1]);
    net.device(0).learn_members(GROUP, known);
    send(net, &a, ah, b"2");
    assert!(wanted(net, 0).is_empty(), "it is fresh");
    net.settle();
    b.receive(net, 9, &[b.sge(100, 100)]);
    send(net, &a, ah, b"3");
    net.settle();
    assert_eq!(wanted(net, 0), [GROUP], "time has passed");
    assert_eq!(b.memory.load(100 + GRH, 1), b"3");
    net.device(0).learn_members(GROUP, None);
    send(net, &a, ah, b"4");
    assert_eq!(wanted(net, 0), [GROUP], "the directory had no time");
}

#[test]
fn a_group_with_unknown_members_gets_nothing() {
    let net = &mut Net::new(1, Policy::Stable, Medium::Shm, 5);
    let a = ready(net, 0);
    let ah = group_handle(net, &a);
    send(net, &a, ah, b"1");
    send(net, &a, ah, b"2");
    net.settle();
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
}

#[test]
fn attaching_is_checked_and_detaching_ends_it() {
    let net = &mut Net::new(1, Policy::Stable, Medium::Shm, 5);
    let (a, b) = (ready(net, 0), open(net, 0, &Plan::default()));
    let unicast = net.nodes[0].id.vid.gid(FABRIC);
    let device = net.device(0);
    assert_eq!(device.attach_group(b.qp, GROUP), Err(Errno::INVALID));
    assert_eq!(device.attach_group(a.qp, unicast), Err(Errno::INVALID));
    assert_eq!(device.detach_group(a.qp, GROUP), Err(Errno::INVALID));
    assert_eq!(device.attach_group(a.qp, GROUP), Ok(true));
    assert_eq!(device.attach_group(a.qp, GROUP), Ok(false));
    assert_eq!(device.groups_of(a.qp), [GROUP]);
    assert_eq!(device.destroy_qp(a.qp), Err(Errno::BUSY));
    assert_eq!(device.detach_group(a.qp, GROUP), Ok(true));
    device.destroy_qp(a.qp).unwrap();
}
