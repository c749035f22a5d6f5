//! Two devices on two threads, spinning: half round trips and bandwidth of the engine alone, beside a
//! bare socket.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use softhca::*;
use support::*;
use verbs::Policy;

/// Spins until `cq` has `count` more completions.
fn wait(device: &mut Device, cq: Cq, mut count: usize) {
    while count > 0 {
        let succeeded = |wc: &Wc| assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        count -= device.poll_cq(cq, count, succeeded).expect("no overrun");
    }
}

fn send(device: &mut Device, qp: Qp, sge: Sge, op: SendOp, signaled: bool) {
    let sges = [sge];
    let wr = SendWr {
        wr_id: 0,
        op,
        signaled,
        fence: false,
        solicited: false,
        srq_number: 0,
        payload: Payload::Sges(&sges),
    };
    // SAFETY: nothing is inline.
    unsafe { device.post_send(qp, &wr) }.expect("room in the queue");
    device.flush_doorbell(qp);
}

/// Batches of this many round trips are timed, and the best one counts: on a busy machine the others
/// measure the scheduler.
const BATCH: u32 = 50;
const TIME: Duration = Duration::from_secs(1);

/// The half round trip of messages of `size` bytes, with both devices on one thread: the engine's computing
/// time, without the way from core to core.
fn work(medium: Medium, size: usize) -> Duration {
    let mut net = Net::new(2, Policy::Stable, medium, 1);
    let plan = Plan { memory: 4 << 20, ..Plan::default() };
    let (a, b) = pair(&mut net, 0, 1, &plan);
    net.join(0, 1);
    net.settle();
    let (first, second) = net.nodes.split_at_mut(1);
    let (one, two) = (&mut first[0].device, &mut second[0].device);
    let half = |from: &End, to: &End, sender: &mut Device, receiver: &mut Device| {
        receiver.post_recv(to.qp, 0, &[to.sge(0, size)]).expect("room");
        send(sender, from.qp, from.sge(0, size), SendOp::Send, true);
        while receiver.poll_cq(to.recv_cq, 1, |_| ()).expect("no overrun") == 0 {
            sender.poll_cq(from.send_cq, 0, |_| ()).expect("no overrun");
        }
        // The completion comes with the answer, or is there already.
        sender.poll_cq(from.send_cq, 1, |_| ()).expect("no overrun");
    };
    best(|| {
        half(&a, &b, one, two);
        half(&b, &a, two, one);
    })
}

/// The best half round trip of batches of `round_trip`.
fn best(mut round_trip: impl FnMut()) -> Duration {
    let began = Instant::now();
    let mut best = Duration::MAX;
    while began.elapsed() < TIME {
        let start = Instant::now();
        for _ in 0..BATCH {
            round_trip();
        }
        best = best.min(start.elapsed() / (2 * BATCH));
    }
    best
}

/// The same with a thread for each device.
fn latency(medium: Medium, size: usize) -> Duration {
    let mut net = Net::new(2, Policy::Stable, medium, 1);
    let plan = Plan { memory: 4 << 20, ..Plan::default() };
    let (a, b) = pair(&mut net, 0, 1, &plan);
    net.join(0, 1);
    net.settle();
    let (first, second) = net.nodes.split_at_mut(1);
    let (one, two) = (&mut first[0].device, &mut second[0].device);
    let (sge, answer) = (a.sge(0, size), b.sge(0, size));
    for _ in 0..4 {
        one.post_recv(a.qp, 0, &[sge]).expect("room");
        two.post_recv(b.qp, 0, &[answer]).expect("room");
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            while !done.load(Relaxed) {
                if two.poll_cq(b.recv_cq, 1, |_| ()).expect("no overrun") == 1 {
                    two.post_recv(b.qp, 0, &[answer]).expect("room");
                    send(two, b.qp, answer, SendOp::Send, false);
                }
            }
        });
        let best = best(|| {
            send(one, a.qp, sge, SendOp::Send, false);
            wait(one, a.recv_cq, 1);
            one.post_recv(a.qp, 0, &[sge]).expect("room");
        });
        done.store(true, Relaxed);
        best
    })
}

/// WRITEs of `size` bytes, 16 under way, in GB/s.
fn bandwidth(medium: Medium, size: usize, count: usize) -> f64 {
    let mut net = Net::new(2, Policy::Stable, medium, 1);
    let (a, b) = pair(&mut net, 0, 1, &Plan { memory: 4 << 20, ..Plan::default() });
    net.join(0, 1);
    net.settle();
    let op = SendOp::Write { va: b.va(0), rkey: b.key };
    let sge = a.sge(0, size);
    let (first, second) = net.nodes.split_at_mut(1);
    let (sender, target) = (&mut first[0].device, &mut second[0].device);
    let done = AtomicBool::new(false);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            while !done.load(Relaxed) {
                target.poll_cq(b.recv_cq, 1, |_| ()).expect("no overrun");
            }
        });
        for at in 0..count {
            send(sender, a.qp, sge, op, true);
            if at >= 16 {
                wait(sender, a.send_cq, 1);
            }
        }
        wait(sender, a.send_cq, 16.min(count));
        done.store(true, Relaxed);
    });
    (size * count) as f64 / began.elapsed().as_secs_f64() / 1e9
}

/// The same with a bare socket.
fn socket_latency() -> Duration {
    fn receive(socket: &mut TcpStream, done: &AtomicBool) -> bool {
        let mut bytes = [0u8; 56];
        let mut got = 0;
        while got < bytes.len() && !done.load(Relaxed) {
            match socket.read(&mut bytes[got..]) {
                Ok(count) => got += count,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        got == bytes.len()
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut a = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
    let mut b = listener.accept().expect("a connection").0;
    for socket in [&a, &b] {
        socket.set_nodelay(true).expect("an option");
        socket.set_nonblocking(true).expect("an option");
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            while receive(&mut b, done) {
                b.write_all(&[0; 56]).expect("a peer");
            }
        });
        let best = best(|| {
            a.write_all(&[0; 56]).expect("a peer");
            receive(&mut a, done);
        });
        done.store(true, Relaxed);
        best
    })
}

fn main() {
    println!("bare socket, 56 bytes: {:?}", socket_latency());
    for medium in [Medium::Shm, Medium::Tcp] {
        for size in [8, 4096, 65_536, 1 << 20] {
            let (work, half) = (work(medium, size), latency(medium, size));
            let rate = bandwidth(medium, size, (256 << 20) / size.max(4096));
            println!("{medium:?} {size} bytes: work {work:?}, half round trip {half:?}, {rate:.2} GB/s");
        }
    }
}
