//! Peers that talk nonsense: the link ends, nothing else does.

mod support;

use fabric::Epoch;
use softhca::limits::MTU;
use softhca::wire::{HEADER, Header, Hello, Opcode, Syndrome};
use softhca::*;
use support::*;
use verbs::Policy;

/// Traffic on a link whose bytes are changed here and there.
fn noisy(policy: Policy, seed: u64) {
    let net = &mut Net::new(2, policy, Medium::Pipe, seed);
    let mut plan = Plan { memory: 1 << 20, ..Plan::default() };
    plan.attr.timeout = 1;
    let mut ends = Vec::new();
    for round in 0..200u64 {
        if round % 20 == 0 {
            ends.push(pair(net, 0, 1, &plan));
        }
        let Some((a, b)) = ends.last() else { continue };
        for cutter in net.pipes.values() {
            cutter.disturb(30);
        }
        let size = net.random.below(300_000) as usize;
        let (va, rkey) = (b.va(0), b.key);
        let op = match net.random.below(6) {
            0 => SendOp::Write { va, rkey },
            1 => SendOp::Read { va, rkey },
            2 => SendOp::WriteImm { va, rkey, imm: 1 },
            3 => SendOp::SendInvalidate(rkey),
            _ => SendOp::Send,
        };
        // Queue pairs fail here and there; what counts is that devices do not.
        let _ = net.device(1).post_recv(b.qp, round, &[b.sge(0, 1 << 20)]);
        let _ = a.try_post(net, round, op, &[a.sge(0, size)]);
        for _ in 0..10 {
            net.step();
            net.now += std::time::Duration::from_millis(3);
        }
        let _ = (a.poll_sends(net), b.poll_receives(net));
    }
    let lost = net.nodes.iter().flat_map(|node| &node.events);
    let violations =
        lost.filter(|event| matches!(event, Event::LinkLost { reason: LinkLoss::Violation(_), .. }));
    assert!(violations.count() > 0, "noise was noticed");
    // Without noise everything works again.
    net.cut();
    let (a, b) = pair(net, 0, 1, &plan);
    a.post(net, 1, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 1 << 20)]);
    net.settle();
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
}

#[test]
fn noise_ends_links_not_devices() {
    for policy in Policy::ALL {
        for seed in 0..2 {
            noisy(policy, seed);
        }
    }
}

/// A device with a connected queue pair, whose peer says what the test says.
struct Victim {
    net: Net,
    end: End,
    peer: End,
}

impl Victim {
    fn new() -> Self {
        Self::of(&Plan::default())
    }

    fn of(plan: &Plan) -> Self {
        let mut net = Net::new(2, Policy::Stable, Medium::Pipe, 1);
        let (end, peer) = pair(&mut net, 0, 1, plan);
        let (cutter, own, _) = support::pipe::pair(1, None);
        let (id, hello) = (net.nodes[1].id, hello(&net));
        net.nodes[0].device.link_up(id, Epoch(0), own);
        cutter
            .inject(0, &frame(&Header { length: hello.len() as u32, ..Header::new(Opcode::Hello) }, &hello));
        cutter.inject(0, &frame(&Header::new(Opcode::Ready), &[]));
        net.pipes.insert((id, id), cutter);
        Self { net, end, peer }
    }

    /// What becomes of the link after `bytes` have arrived.
    fn hear(&mut self, bytes: &[u8]) -> Option<LinkLoss> {
        for cutter in self.net.pipes.values() {
            cutter.inject(0, bytes);
        }
        let node = &mut self.net.nodes[0];
        for _ in 0..100 {
            node.device.progress(self.net.now);
        }
        node.device.take_events(&mut node.events);
        node.events.drain(..).find_map(|event| match event {
            Event::LinkLost { reason, .. } => Some(reason),
            _ => None,
        })
    }

    fn says(&mut self, header: Header) -> Option<LinkLoss> {
        let (dst_qpn, src_qpn) = (self.end.qpn, self.peer.qpn);
        self.hear(&frame(&Header { dst_qpn, src_qpn, ..header }, &vec![0; header.length as usize]))
    }
}

fn hello(net: &Net) -> Vec<u8> {
    Hello { process: net.nodes[1].id, fabric: FABRIC, epoch: Epoch(0), life: 9 }.encode().to_vec()
}

fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    [&header.encode()[..], payload].concat()
}

#[test]
fn what_no_device_says_ends_the_link() {
    let msn = 0x00ff_fff0;
    let violations = [
        Header { msn: msn + 1, ..Header::new(Opcode::Ack) },
        Header { msn, length: 5, offset: 5, total: 20, ..Header::new(Opcode::Send) },
        Header { msn: msn - 1, length: 0, total: 8, flags: 2, ..Header::new(Opcode::FetchAdd) },
        Header { msn: msn + 9, flags: 2, ..Header::new(Opcode::Read) },
        Header { length: 24, ..Header::new(Opcode::Hello) },
        Header::new(Opcode::Ready),
        Header { length: 13, ..Header::new(Opcode::Translate) },
        Header { msn: 1, ..Header::new(Opcode::Datagram) },
        Header { va: 1, ..Header::new(Opcode::Datagram) },
        Header { length: MTU + 1, total: MTU + 1, ..Header::new(Opcode::Datagram) },
        Header { msn: 1, ..Header::new(Opcode::DatagramAck) },
        Header { msn: u64::MAX, ..Header::new(Opcode::Send) },
    ];
    for header in violations {
        let lost = Victim::new().says(header);
        assert!(matches!(lost, Some(LinkLoss::Violation(_))), "{header:?}: {lost:?}");
    }
    for bytes in [&[0xff; HEADER][..], &[0; HEADER], &[7; 1000]] {
        let lost = Victim::new().hear(bytes);
        assert!(matches!(lost, Some(LinkLoss::Violation(_))), "{lost:?}");
    }
}

#[test]
fn what_concerns_nobody_is_ignored() {
    let msn = 0x00ff_fff0;
    for header in [
        Header { msn: 3, ..Header::new(Opcode::Ack) },
        Header { msn: 3, syndrome: Some(Syndrome::RemoteAccess), ..Header::new(Opcode::Nak) },
        Header { msn, va: 7, ..Header::new(Opcode::AtomicResponse) },
        Header { msn, length: 100, total: 100, ..Header::new(Opcode::ReadResponse) },
        Header { msn: 0, length: 100, total: 100, ..Header::new(Opcode::Send) },
    ] {
        assert_eq!(Victim::new().says(header), None, "{header:?}");
    }
}

#[test]
fn a_peer_that_only_asks_does_not_fill_memory() {
    let mut victim = Victim::new();
    // Requests to nobody, each of which is answered; the answers are never read.
    let request = Header { dst_qpn: 9, length: 1, total: 1, ..Header::new(Opcode::Send) };
    let flood = frame(&request, &[0]).repeat(20_000);
    for _ in 0..5 {
        assert_eq!(victim.hear(&flood), None);
    }
    let unread: usize = victim.net.pipes.values().map(|cutter| cutter.unread(0)).sum();
    assert!(unread > flood.len(), "it is not listened to for ever");
}

#[test]
fn a_peer_that_ignores_the_limit_of_datagrams_does_not_fill_memory() {
    let mut victim = Victim::new();
    let idle = open(&mut victim.net, 0, &Plan { kind: QpKind::Ud, ..Plan::default() });
    let states = [
        (QpState::Init, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY),
        (QpState::Rtr, QpAttrMask::empty()),
    ];
    for (state, mask) in states {
        let attr = QpAttr { state, ..Plan::default().attr };
        victim.net.device(0).modify_qp(idle.qp, &attr, mask | QpAttrMask::STATE).unwrap();
    }
    let (dst_qpn, src_qpn) = (idle.qpn, victim.peer.qpn);
    let one = Header { dst_qpn, src_qpn, length: 1000, total: 1000, ..Header::new(Opcode::Datagram) };
    let flood = (0..5000).flat_map(|msn| frame(&Header { msn, ..one }, &[0; 1000]));
    let lost = victim.hear(&flood.collect::<Vec<u8>>());
    assert_eq!(lost, Some(LinkLoss::Violation("more datagrams on their way than agreed")));
}

#[test]
fn anothers_queue_pair_cannot_be_touched() {
    let mut victim = Victim::new();
    let (third, _) = pair(&mut victim.net, 0, 0, &Plan::default());
    let msn = 0x00ff_fff0;
    let write = Header { msn, dst_qpn: third.qpn, src_qpn: third.qpn + 1, ..Header::new(Opcode::Write) };
    let write = Header { va: third.va(0), rkey: third.key, length: 4, total: 4, ..write };
    assert_eq!(victim.hear(&frame(&write, b"evil")), None);
    assert_eq!(third.memory.load(0, 4), [0; 4]);
}

#[test]
fn a_datagram_of_another_process_is_no_datagram() {
    let mut victim = Victim::new();
    let forged =
        Header { src_qpn: victim.net.nodes[0].id.qpn(1) | 0x7f_0000, ..Header::new(Opcode::Datagram) };
    let lost = victim.hear(&frame(&Header { dst_qpn: victim.end.qpn, ..forged }, &[]));
    assert_eq!(lost, Some(LinkLoss::Violation("a datagram of somebody else's queue pair")));
}

#[test]
fn a_peer_that_takes_no_datagrams_holds_up_nobody_for_long() {
    let mut victim = Victim::new();
    let net = &mut victim.net;
    let ends = [0, 0].map(|node| ready_for_datagrams(net, node));
    let handles = [1, 0].map(|node| {
        let address =
            AddressVector { dlid: net.nodes[node].id.vid.lid(), port: 1, ..AddressVector::default() };
        net.device(0).create_ah(ends[0].pd, &address).unwrap()
    });
    ends[1].receive(net, 9, &[ends[1].sge(0, 100)]);
    let post = |net: &mut Net, ah, qpn| {
        let op = SendOp::Datagram { ah, qpn, qkey: 0, imm: None };
        ends[0].post(net, 1, op, &[ends[0].sge(0, 8)]);
        ends[0].poll_sends(net).len()
    };
    // The peer says nothing at all of them.
    let deaf = victim.peer.qpn;
    let sent: usize = (0..1024).map(|_| post(net, handles[0], deaf)).sum();
    assert_eq!(sent, 1024);
    assert_eq!(post(net, handles[0], deaf), 0, "there is no more room");
    assert_eq!(post(net, handles[1], ends[1].qpn), 0, "it waits behind");
    let begin = net.now;
    net.run(|net| !ends[1].poll_receives(net).is_empty(), 10_000);
    assert!(net.now - begin < std::time::Duration::from_secs(3));
    assert_eq!(ends[0].poll_sends(net).len(), 2);
    assert_eq!(post(net, handles[0], deaf), 1, "it is dropped at once from now on");
}

/// A datagram queue pair in RTS.
fn ready_for_datagrams(net: &mut Net, node: usize) -> End {
    use QpAttrMask as M;
    let plan = Plan {
        kind: QpKind::Ud,
        caps: QpCaps { max_send_wr: 2048, ..Plan::default().caps },
        ..Plan::default()
    };
    let end = open(net, node, &plan);
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
        (QpState::Rtr, M::empty()),
        (QpState::Rts, M::SQ_PSN),
    ];
    for (state, mask) in steps {
        net.device(node).modify_qp(end.qp, &QpAttr { state, ..plan.attr }, mask | M::STATE).unwrap();
    }
    end
}

#[test]
fn an_unreliable_connection_goes_on_after_a_refusal_of_what_was_not_sent() {
    let mut victim = Victim::of(&Plan { kind: QpKind::Uc, ..Plan::default() });
    let msn = 0x00ff_fff0;
    assert_eq!(
        victim.says(Header { msn, syndrome: Some(Syndrome::NotReady), ..Header::new(Opcode::Nak) }),
        None
    );
    let (end, net) = (&victim.end, &mut victim.net);
    end.post(net, 1, SendOp::Send, &[end.sge(0, 8)]);
    for _ in 0..100 {
        net.nodes[0].device.progress(net.now);
    }
    let said: usize = net.pipes.values().map(|cutter| cutter.unread(1)).sum();
    assert!(said >= HEADER + 8, "the message has left");
}
