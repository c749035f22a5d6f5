//! What an instance's command has written, wherever it is.

use std::io;
use std::time::Duration;

use api::{Event, Failure};
use fabric::Vid;
use fabric::attach::OutputStream;
use moves::HostName;
use moves::journal::Exit;
use rpc::wire::{Answer, Question};

use crate::cluster::{Cluster, Inner};
use crate::failure;
use crate::server::Client;

/// How long a host may take to answer, beyond the time that it waits for output.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Before a host is asked again that did not answer, or an instance is looked up that is being moved.
const RETRY: Duration = Duration::from_millis(100);

/// Sends what the instance's command has written, and with `follow` goes on until it ends.
///
/// # Errors
/// If the client cannot be told.
pub async fn logs(cluster: &Cluster, name: &str, follow: bool, client: &mut Client) -> io::Result<()> {
    let found = find(&cluster.lock(), name);
    let Some(vid) = found else { return client.say(&Event::Failed(failure::no_instance(name))).await };
    let mut reader = Reader { vid, next: 0, decoders: Default::default() };
    loop {
        let place = place(&cluster.lock(), vid);
        let Some(Place { host, exit }) = place else {
            return client.say(&Event::Failed(failure::no_instance(name))).await;
        };
        let answer = reader.ask(cluster, &host, follow && exit.is_none()).await;
        let last = match answer {
            Ok((true, _)) => {
                for event in reader.take_events() {
                    client.say(&event).await?;
                }
                continue;
            }
            Ok((false, Some(code))) if follow => Event::Exited { code },
            Ok((false, _)) if !follow => Event::Done,
            Err(failure) if !follow => Event::Failed(failure),
            // Nothing new, or no answer: an instance that has ended has no more to say.
            _ => match exit {
                Some(Exit::Code(code)) => Event::Exited { code },
                Some(Exit::Lost { reason }) => Event::Failed(failure::lost(name, &reason)),
                None => {
                    tokio::select! {
                        () = tokio::time::sleep(RETRY) => continue,
                        () = client.gone() => return Ok(()),
                    }
                }
            },
        };
        return client.say(&last).await;
    }
}

struct Place {
    host: HostName,
    exit: Option<Exit>,
}

fn find(inner: &Inner, name: &str) -> Option<Vid> {
    let present = inner.find(name).map(|(vid, _)| vid);
    present.or_else(|| inner.ended.iter().find(|ended| ended.instance.name == name).map(|ended| ended.vid))
}

fn place(inner: &Inner, vid: Vid) -> Option<Place> {
    if let Some(instance) = inner.machine.image().instances.get(&vid) {
        return Some(Place { host: instance.host.clone(), exit: None });
    }
    let ended = inner.ended.iter().rev().find(|ended| ended.vid == vid)?;
    Some(Place { host: ended.instance.host.clone(), exit: Some(ended.exit.clone()) })
}

/// How far a client has read.
struct Reader {
    vid: Vid,
    next: u64,
    decoders: [Decoder; 2],
}

impl Reader {
    /// Reads on; says whether there was something new, and how the command ended if it has.
    async fn ask(
        &mut self,
        cluster: &Cluster,
        host: &HostName,
        wait: bool,
    ) -> Result<(bool, Option<i32>), Failure> {
        let question = Question::Output { vid: self.vid, from: self.next, wait };
        let limit = if wait { ANSWER_LIMIT + Question::OUTPUT_PATIENCE } else { ANSWER_LIMIT };
        match cluster.ask(host, question, limit).await? {
            Answer::Output { chunks, next, exit } => {
                let is_new = !chunks.is_empty();
                for chunk in chunks {
                    self.decoder(chunk.stream).push(&chunk.bytes);
                }
                self.next = next;
                Ok((is_new, exit))
            }
            Answer::Done => Err(failure::host_silent(host)),
        }
    }

    fn decoder(&mut self, stream: OutputStream) -> &mut Decoder {
        match stream {
            OutputStream::Stdout => &mut self.decoders[0],
            OutputStream::Stderr => &mut self.decoders[1],
        }
    }

    fn take_events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let text = self.decoder(stream).take();
            if !text.is_empty() {
                events.push(Event::Output { stream, text });
            }
        }
        events
    }
}

/// Makes text of bytes that may be cut in the middle of a character.
#[derive(Default)]
struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// All but a character of which the end is missing.
    fn take(&mut self) -> String {
        let cut = match self.bytes.utf8_chunks().last() {
            Some(last) if is_begun_character(last.invalid()) => last.invalid().len(),
            _ => 0,
        };
        let rest = self.bytes.split_off(self.bytes.len() - cut);
        let whole = std::mem::replace(&mut self.bytes, rest);
        String::from_utf8_lossy(&whole).into_owned()
    }
}

/// Whether `bytes` could become a character.
fn is_begun_character(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_may_be_cut() {
        let mut decoder = Decoder::default();
        decoder.push(b"a\xe2\x82");
        assert_eq!(decoder.take(), "a");
        decoder.push(b"\xac!");
        assert_eq!(decoder.take(), "\u{20ac}!");
    }

    #[test]
    fn what_is_no_text_does_not_hold_up_the_rest() {
        let mut decoder = Decoder::default();
        decoder.push(b"\xff\xffb");
        assert_eq!(decoder.take(), "\u{fffd}\u{fffd}b");
    }
}
