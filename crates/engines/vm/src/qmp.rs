//! A client of the QEMU Machine Protocol: one JSON object a line, over a Unix socket.
//!
//! ```text
//! QEMU                                     client
//!  │ {"QMP": …} ─────────────────────────────▶ │   greeting
//!  │ ◀── {"execute": "qmp_capabilities", …} ── │
//!  │ ◀── {"execute": C, "arguments": …, "id"} ─ │   perhaps with a descriptor, for `getfd`
//!  │ {"event": …} ───────────────────────────▶ │   at any time
//!  │ {"return": …, "id"} or {"error": …} ────▶ │
//! ```
//!
//! QEMU serves one client at a time. A command has a time limit: after it, the connection is unusable, since its answer may still come.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use fabric::seqpacket;
use serde_json::{Value, json};

/// How long QEMU may take to answer a command. Its main loop may wait for a virtual processor, or for a slow disk.
const LIMIT: Duration = Duration::from_secs(20);

/// The most events that are kept for [`Qmp::next_event`]; the oldest are dropped.
const MAX_EVENTS: usize = 256;

/// The most bytes of one line: an answer that names every CPU model has 100 KiB.
const MAX_LINE: u64 = 1 << 20;

/// Why a command has no result.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// QEMU refuses the command, with this message.
    #[error("{0}")]
    Refused(String),
    /// The connection has failed: QEMU has ended, hangs, or does not speak QMP.
    #[error("the connection to it failed: {0}")]
    Broken(#[from] io::Error),
}

/// The result of a command.
pub type Result<T, E = QmpError> = std::result::Result<T, E>;

/// An event, such as `MIGRATION` with its new status.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its name.
    pub name: String,
    /// Its data; null if it has none.
    pub data: Value,
}

/// A connection that is ready for commands.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
    /// The part of a line that has arrived.
    line: Vec<u8>,
    events: VecDeque<Event>,
    last_id: u64,
    major: u64,
}

impl Qmp {
    /// Connects to QEMU's socket at `path`.
    ///
    /// # Errors
    /// If nobody listens there, or it does not speak QMP.
    pub fn connect(path: &Path) -> Result<Self> {
        Self::over(UnixStream::connect(path)?)
    }

    /// Negotiates over a connected socket.
    ///
    /// # Errors
    /// If the other end does not speak QMP.
    pub fn over(stream: UnixStream) -> Result<Self> {
        stream.set_write_timeout(Some(LIMIT))?;
        let stream = BufReader::new(stream);
        let mut qmp = Self { stream, line: Vec::new(), events: VecDeque::new(), last_id: 0, major: 0 };
        let greeting = qmp.receive(Instant::now() + LIMIT)?.ok_or_else(timed_out)?;
        if greeting.get("QMP").is_none() {
            return Err(malformed().into());
        }
        qmp.major = greeting["QMP"]["version"]["qemu"]["major"].as_u64().unwrap_or(0);
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// The first number of QEMU's version; 0 if it does not say.
    #[must_use]
    pub fn major_version(&self) -> u64 {
        self.major
    }

    /// The PID of QEMU in this process's PID namespace.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn peer(&self) -> io::Result<i32> {
        Ok(seqpacket::peer_credentials(self.stream.get_ref().as_fd())?.pid)
    }

    /// Executes a command, and returns its result.
    ///
    /// # Errors
    /// If QEMU refuses the command, or the connection fails.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.execute_with(command, arguments, &[])
    }

    /// Gives QEMU a copy of a descriptor, under a name by which later commands refer to it.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn give(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> Result<()> {
        self.execute_with("getfd", json!({ "fdname": name }), &[descriptor]).map(drop)
    }

    /// The next event; `None` if there is none for `patience`.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn next_event(&mut self, patience: Duration) -> Result<Option<Event>> {
        let end = Instant::now() + patience;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match self.receive(end)? {
                // A late answer to a command that nobody waits for any more.
                Some(message) => self.keep_event(&message),
                None => return Ok(None),
            }
        }
    }

    /// Takes the events of this name that have arrived. Returns whether there were any.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn take_events(&mut self, name: &str) -> Result<bool> {
        while let Some(message) = self.receive(Instant::now())? {
            self.keep_event(&message);
        }
        let before = self.events.len();
        self.events.retain(|event| event.name != name);
        Ok(self.events.len() < before)
    }

    /// Forgets the events that have arrived.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn forget_events(&mut self) -> Result<()> {
        while self.next_event(Duration::ZERO)?.is_some() {}
        Ok(())
    }

    fn execute_with(&mut self, command: &str, arguments: Value, beside: &[BorrowedFd<'_>]) -> Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        let mut line = json!({ "execute": command, "arguments": arguments, "id": id }).to_string();
        line.push('\n');
        seqpacket::send(self.stream.get_ref().as_fd(), line.as_bytes(), beside)?;
        let end = Instant::now() + LIMIT;
        loop {
            let message = self.receive(end)?.ok_or_else(timed_out)?;
            if message["id"] != id {
                self.keep_event(&message);
                continue;
            }
            return match (message.get("return"), message["error"]["desc"].as_str()) {
                (Some(value), _) => Ok(value.clone()),
                (None, Some(reason)) => Err(QmpError::Refused(reason.to_owned())),
                (None, None) => Err(malformed().into()),
            };
        }
    }

    fn keep_event(&mut self, message: &Value) {
        if let Some(name) = message["event"].as_str() {
            if self.events.len() == MAX_EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(Event { name: name.to_owned(), data: message["data"].clone() });
        }
    }

    /// The next message; `None` if it has not come by `end`. A part of it that has come is kept.
    fn receive(&mut self, end: Instant) -> io::Result<Option<Value>> {
        // The kernel takes a timeout of zero as none at all.
        const LEAST: Duration = Duration::from_micros(1);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.stream.get_ref().set_read_timeout(Some(left.max(LEAST)))?;
            match self.read_line() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            let line = std::mem::take(&mut self.line);
            return serde_json::from_slice(&line).map(Some).map_err(|_| malformed());
        }
    }

    /// Reads until the line is whole.
    fn read_line(&mut self) -> io::Result<()> {
        loop {
            let arrived = self.stream.fill_buf()?;
            if arrived.is_empty() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"));
            }
            let newline = arrived.iter().position(|byte| *byte == b'\n');
            let length = newline.map_or(arrived.len(), |at| at + 1);
            self.line.extend_from_slice(&arrived[..length]);
            self.stream.consume(length);
            if newline.is_some() {
                return Ok(());
            }
            if self.line.len() as u64 > MAX_LINE {
                return Err(malformed());
            }
        }
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", LIMIT.as_secs()))
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "QEMU sent an invalid QMP answer")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use super::*;

    /// A connection to a QEMU that says `greeting`, then answers each line with the next of `answers`, and then hangs up.
    fn scripted<const N: usize>(
        greeting: &'static str,
        answers: [&'static str; N],
    ) -> (Result<Qmp>, thread::JoinHandle<Vec<Value>>) {
        let (near, far) = UnixStream::pair().unwrap();
        let script = thread::spawn(move || {
            (&far).write_all(greeting.as_bytes()).unwrap();
            let mut lines = BufReader::new(&far).lines();
            let mut heard = Vec::new();
            for answer in answers {
                let Some(line) = lines.next() else { break };
                heard.push(serde_json::from_str(&line.unwrap()).unwrap());
                (&far).write_all(answer.as_bytes()).unwrap();
            }
            heard
        });
        (Qmp::over(near), script)
    }

    const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";
    const READY: &str = "{\"return\": {}, \"id\": 1}\r\n";

    #[test]
    fn a_command_returns_its_value_and_keeps_events_that_come_first() {
        let (qmp, script) = scripted(
            GREETING,
            [
                READY,
                "{\"event\": \"STOP\", \"timestamp\": {}}\r\n{\"event\": \"MIGRATION\", \"data\": {\"status\": \"active\"}}\r\n\
                 {\"return\": {\"status\": \"paused\"}, \"id\": 2}\r\n",
            ],
        );
        let mut qmp = qmp.unwrap();
        assert_eq!(qmp.execute("query-status", json!({})).unwrap()["status"], "paused");
        assert_eq!(qmp.next_event(Duration::ZERO).unwrap().unwrap().name, "STOP");
        let event = qmp.next_event(Duration::ZERO).unwrap().unwrap();
        assert_eq!((event.name.as_str(), &event.data["status"]), ("MIGRATION", &json!("active")));
        let heard = script.join().unwrap();
        assert_eq!(heard[0]["execute"], "qmp_capabilities");
        assert_eq!(heard[1], json!({ "execute": "query-status", "arguments": {}, "id": 2 }));
    }

    #[test]
    fn a_refusal_is_qemus_sentence() {
        let refusal = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"No such device\"}, \"id\": 2}\n";
        let (qmp, script) = scripted(GREETING, [READY, refusal]);
        let mut qmp = qmp.unwrap();
        let error = qmp.execute("cont", json!({})).unwrap_err();
        assert!(matches!(&error, QmpError::Refused(why) if why == "No such device"), "{error}");
        script.join().unwrap();
        assert!(matches!(qmp.execute("cont", json!({})), Err(QmpError::Broken(_))), "QEMU has ended");
    }

    #[test]
    fn half_a_line_is_kept_until_the_rest_arrives() {
        let (near, far) = UnixStream::pair().unwrap();
        let script = thread::spawn(move || {
            (&far).write_all(GREETING.as_bytes()).unwrap();
            BufReader::new(&far).lines().next();
            (&far).write_all(READY.as_bytes()).unwrap();
            far
        });
        let mut qmp = Qmp::over(near).unwrap();
        let mut far = script.join().unwrap();
        far.write_all(b"{\"event\": \"ST").unwrap();
        assert_eq!(qmp.next_event(Duration::from_millis(5)).unwrap(), None);
        far.write_all(b"OP\"}\n").unwrap();
        assert_eq!(qmp.next_event(Duration::from_secs(5)).unwrap().unwrap().name, "STOP");
    }

    #[test]
    fn a_server_of_another_protocol_is_refused() {
        let (qmp, script) = scripted("220 smtp ready\r\n", []);
        assert!(qmp.unwrap_err().to_string().ends_with("QEMU sent an invalid QMP answer"));
        script.join().unwrap();
    }
}
