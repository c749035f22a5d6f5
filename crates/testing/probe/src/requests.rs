//! Requests over one TCP connection, one after the other: each is answered with its own number, and none is repeated.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::gaps::LEAST;
use crate::namespace;

/// The pause between an answer and the next request.
const PAUSE: Duration = Duration::from_millis(5);

/// A request without an answer for so long is lost.
const LIMIT: Duration = Duration::from_secs(60);

/// The most slow requests that are stored. Later ones are dropped.
const CAPACITY: usize = 1 << 16;

/// Sends requests until it is dropped.
#[derive(Debug)]
pub struct Requester {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    answered: u64,
    /// Begin and end of the requests that took [`LEAST`] or more.
    slow: Vec<(Instant, Instant)>,
    failure: Option<String>,
}

impl Requester {
    /// Connects to `target` from the network namespace `from`, and begins.
    ///
    /// # Errors
    /// Those of [`namespace::inside`] and of connecting.
    pub fn start(from: &Path, target: SocketAddr) -> io::Result<Self> {
        let stream = namespace::inside(from, || TcpStream::connect_timeout(&target, LIMIT))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let shared = Arc::new(Shared::default());
        let sender = shared.clone();
        Ok(Self { shared, thread: Some(thread::spawn(move || sender.run(stream))) })
    }

    /// The longest time that a request took which was under way between `from` and `to`; none if all took less than [`LEAST`].
    #[must_use]
    pub fn slowest_within(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.shared.seen();
        let under_way = seen.slow.iter().filter(|(sent, answered)| *answered >= from && *sent <= to);
        under_way.map(|(sent, answered)| *answered - *sent).max().unwrap_or_default()
    }

    /// The number of answered requests so far.
    ///
    /// # Errors
    /// The failure, if an answer was wrong or missing, or the connection has ended.
    pub fn answered(&self) -> Result<u64, String> {
        let seen = self.shared.seen();
        seen.failure.clone().map_or(Ok(seen.answered), Err)
    }
}

impl Drop for Requester {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed a message.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no thread panics while it holds the lock")
    }

    fn run(&self, mut stream: TcpStream) {
        for number in 0_u64.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let sent = Instant::now();
            let answer = ask(&mut stream, number);
            let mut seen = self.seen();
            if let Err(error) = answer {
                seen.failure = Some(format!("request {number}: {error}"));
                return;
            }
            seen.answered += 1;
            if sent.elapsed() >= LEAST && seen.slow.len() < CAPACITY {
                seen.slow.push((sent, Instant::now()));
            }
            drop(seen);
            thread::sleep(PAUSE);
        }
    }
}

fn ask(stream: &mut TcpStream, number: u64) -> io::Result<()> {
    let mut bytes = number.to_be_bytes();
    stream.write_all(&bytes)?;
    stream.read_exact(&mut bytes)?;
    let answer = u64::from_be_bytes(bytes);
    if answer == number { Ok(()) } else { Err(io::Error::other(format!("answered as request {answer}"))) }
}

/// Answers the requests of every connection to `port`, for ever.
///
/// # Errors
/// Those of binding the port.
pub fn serve(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || {
            // The other end sees a connection that has ended.
            let _ = answer(stream);
        });
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; 8];
    loop {
        stream.read_exact(&mut bytes)?;
        stream.write_all(&bytes)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers with what `answers` makes of each request.
    fn serving(answers: impl Fn(u64) -> u64 + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 8];
            while stream.read_exact(&mut bytes).is_ok() {
                let answer = answers(u64::from_be_bytes(bytes)).to_be_bytes();
                if stream.write_all(&answer).is_err() {
                    return;
                }
            }
        });
        address
    }

    fn requests(to: SocketAddr) -> Option<Requester> {
        let Ok(requests) = Requester::start(Path::new("/proc/self/ns/net"), to) else {
            test_support::skip("entering a namespace needs root");
            return None;
        };
        Some(requests)
    }

    #[test]
    fn a_slow_answer_is_seen_with_its_time() {
        let slow = Duration::from_millis(100);
        let server = serving(move |number| {
            if number == 3 {
                thread::sleep(slow);
            }
            number
        });
        let begin = Instant::now();
        let Some(requests) = requests(server) else { return };
        while requests.answered().unwrap() < 6 {
            thread::sleep(PAUSE);
        }
        assert!(requests.slowest_within(begin, Instant::now()) >= slow);
        assert_eq!(requests.slowest_within(begin, begin), Duration::ZERO);
    }

    #[test]
    fn a_wrong_answer_is_a_failure() {
        let Some(requests) = requests(serving(|number| if number == 2 { 1 } else { number })) else { return };
        let failure = loop {
            if let Err(failure) = requests.answered() {
                break failure;
            }
            thread::sleep(PAUSE);
        };
        assert_eq!(failure, "request 2: answered as request 1");
    }
}
