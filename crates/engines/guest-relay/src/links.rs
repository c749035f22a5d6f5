//! Links of programs in a machine: bytes between the agent's connection and the link's stream.

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use guest::wire::TOKEN;
use tokio::io::{AsyncReadExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream as Connection};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;

/// How long a link waits for the agent, and a connection for its token.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most links that wait, and the most connections without a token.
const MAX_WAITING: usize = 256;

/// The most links of a machine.
const MAX_LINKS: usize = 4096;

/// Bytes that are carried at a time.
const BUFFER: usize = 256 << 10;

type Token = [u8; TOKEN];

/// Links that wait for the agent's connection.
#[derive(Clone, Default)]
pub struct Links(Arc<Mutex<HashMap<Token, Waiting>>>);

struct Waiting {
    stream: TcpStream,
    since: Instant,
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, HashMap<Token, Waiting>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Keeps a link's stream until the agent opens a connection for it. Returns the token, or `None` if too many wait.
    pub fn keep(&self, stream: TcpStream) -> Option<Token> {
        let mut waiting = self.lock();
        waiting.retain(|_, waiting| waiting.since.elapsed() < PATIENCE);
        if waiting.len() >= MAX_WAITING {
            return None;
        }
        let mut token = [0; TOKEN];
        getrandom::fill(&mut token).ok()?;
        waiting.insert(token, Waiting { stream, since: Instant::now() });
        Some(token)
    }

    /// Drops all links that wait: the relay's generation has changed.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Accepts the agent's connections until it is dropped, and all links with it.
    pub async fn serve(self, listener: TcpListener) {
        let (strangers, mut running) = (Arc::new(Semaphore::new(MAX_WAITING)), JoinSet::new());
        loop {
            while running.try_join_next().is_some() {}
            let Ok(room) = strangers.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((connection, _)) if running.len() < MAX_LINKS => {
                    let links = self.clone();
                    running.spawn(async move {
                        let stream = links.identify(connection).await;
                        drop(room);
                        if let Err(error) = carry(stream).await {
                            debug!("a link of a machine has ended: {error}");
                        }
                    });
                }
                Ok(_) => debug!("a machine has {MAX_LINKS} links already"),
                Err(error) => {
                    debug!("accepting a link of a machine failed: {error}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// The agent's connection, and the link's stream that its token names.
    async fn identify(&self, mut connection: Connection) -> io::Result<(Connection, Connection)> {
        let mut token = [0; TOKEN];
        timeout(PATIENCE, connection.read_exact(&mut token)).await??;
        let waiting = self.lock().remove(&token).ok_or(io::ErrorKind::NotFound)?;
        waiting.stream.set_nonblocking(true)?;
        connection.set_nodelay(true)?;
        Ok((connection, Connection::from_std(waiting.stream)?))
    }
}

/// Carries bytes both ways until both have ended, or one breaks.
async fn carry(link: io::Result<(Connection, Connection)>) -> io::Result<()> {
    let (mut inside, mut outside) = link?;
    copy_bidirectional_with_sizes(&mut inside, &mut outside, BUFFER, BUFFER).await.map(drop)
}
