//! Datagrams over connections on the loopback device.

#[allow(dead_code, reason = "other tests need more of it")]
mod parties;

use std::io;
use std::time::Duration;

use parties::connection;
use rpc::channel::SILENCE;
use rpc::datagrams::{self, Inbox, LONGEST, Outbox, ROOM};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

const LIMIT: Duration = Duration::from_secs(30);

/// What carries datagrams both ways, at each end.
async fn ends() -> [(Outbox, Inbox); 2] {
    let (near, far) = connection().await;
    [near, far].map(|stream| {
        let (outbox, outlet) = datagrams::queue();
        (outbox, outlet.open(stream).unwrap())
    })
}

/// The `number`-th datagrams, and how long each is.
fn train(number: usize) -> (Vec<u8>, usize) {
    let length = [1, 100, 1400, 60_000, LONGEST][number % 5];
    ((0..length).map(|at| (at * 7 + number) as u8).collect(), [1, 36, 1400, 9000, LONGEST][number % 5])
}

async fn send(outbox: &Outbox, (datagrams, each): &(Vec<u8>, usize)) {
    while let Err(error) = outbox.send(datagrams, *each) {
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn datagrams_arrive_in_order_and_as_they_were_sent() {
    const COUNT: usize = 300;
    let [(near, mut to_near), (far, mut to_far)] = ends().await;
    let say = async |outbox: Outbox| {
        for number in 0..COUNT {
            send(&outbox, &train(number)).await;
        }
    };
    let hear = async |inbox: &mut Inbox| {
        for number in 0..COUNT {
            let received = inbox.receive().await.unwrap().unwrap();
            assert!((received.datagrams.to_vec(), received.each) == train(number), "number {number}");
        }
    };
    let all = async { tokio::join!(say(near), say(far), hear(&mut to_near), hear(&mut to_far)) };
    timeout(LIMIT, all).await.unwrap();
}

#[tokio::test]
async fn queue_is_bounded_for_peers_that_do_not_read() {
    let [(near, _to_near), (_far, mut to_far)] = ends().await;
    let (mut taken, mut refused) = (0, 0);
    while refused < 200 {
        match near.send(&[7; LONGEST], 1400) {
            Ok(()) => (taken, refused) = (taken + 1, 0),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                refused += 1;
                sleep(Duration::from_millis(1)).await;
            }
        }
    }
    // The kernel has some megabytes for what the other end has not read.
    assert!(taken * LONGEST < ROOM + (32 << 20), "{taken} were taken");
    assert!(near.stands());
    for number in 0..taken {
        let received = timeout(LIMIT, to_far.receive()).await.unwrap().unwrap().unwrap();
        assert_eq!((received.datagrams.len(), received.each), (LONGEST, 1400), "number {number}");
    }
    near.send(b"next", 4).unwrap();
    assert_eq!(to_far.receive().await.unwrap().unwrap().datagrams, b"next");
}

#[tokio::test]
async fn an_idle_connection_stays_and_a_lost_one_takes_nothing() {
    let [(near, _to_near), (far, mut to_far)] = ends().await;
    let reading = tokio::spawn(async move { to_far.receive().await.map(|train| train.is_some()) });
    sleep(SILENCE + Duration::from_secs(1)).await;
    assert!(near.stands() && !reading.is_finished());
    near.send(b"still here", 10).unwrap();
    assert!(reading.await.unwrap().unwrap());
    assert!(!far.stands(), "its inbox was dropped");
    assert_eq!(far.send(b"anybody?", 8).unwrap_err().kind(), io::ErrorKind::NotConnected);
}

#[tokio::test]
async fn unopened_outlet_stands_until_dropped() {
    let (outbox, outlet) = datagrams::queue();
    outbox.send(b"first", 5).unwrap();
    assert!(outbox.stands());
    drop(outlet);
    assert!(!outbox.stands() && outbox.send(b"second", 6).is_err());
}

#[tokio::test]
async fn rejects_malformed_datagram_trains() {
    let (outbox, _outlet) = datagrams::queue();
    for (datagrams, each) in [(&[][..], 1), (&[0; LONGEST + 1], 1400), (&[1], 0), (&[1], LONGEST + 1)] {
        assert_eq!(outbox.send(datagrams, each).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

/// What an end makes of `bytes` and the end of the connection.
async fn heard(bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let (mut near, far) = connection().await;
    let (_outbox, outlet) = datagrams::queue();
    let mut inbox = outlet.open(far).unwrap();
    near.write_all(bytes).await.unwrap();
    near.shutdown().await.unwrap();
    Ok(inbox.receive().await?.map(|train| train.datagrams.to_vec()))
}

#[tokio::test]
async fn rejects_malformed_frames() {
    let frame = |length: u32, rest: &[u8]| [&length.to_le_bytes()[..], rest].concat();
    assert_eq!(heard(&frame(3, &[1, 0, 9])).await.unwrap(), Some(vec![9]));
    assert_eq!(heard(&frame(0, &[])).await.unwrap(), None);
    let wrong = [frame(1, &[0]), frame(2, &[1, 0]), frame(3, &[0, 0, 9]), frame(LONGEST as u32 + 3, &[1; 9])];
    for bytes in wrong {
        assert_eq!(heard(&bytes).await.unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
    }
    for bytes in [&frame(9, &[1, 0, 7])[..], &[9, 0]] {
        assert_eq!(heard(bytes).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{bytes:?}");
    }
}

#[tokio::test]
async fn slow_peers_are_not_silent() {
    let (mut near, far) = connection().await;
    let (_outbox, outlet) = datagrams::queue();
    let mut inbox = outlet.open(far).unwrap();
    let writing = tokio::spawn(async move {
        for bytes in [&[5, 0][..], &[0, 0, 3], &[0, 7], &[8, 9]] {
            near.write_all(bytes).await.unwrap();
            near.flush().await.unwrap();
            sleep(SILENCE / 2).await;
        }
        near
    });
    assert_eq!(inbox.receive().await.unwrap().unwrap().datagrams, [7, 8, 9]);
    drop(writing.await);
}
