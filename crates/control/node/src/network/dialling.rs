//! Connections to the neighbours of this host in the topology.
//!
//! The host with the higher number dials: it joined later, and may be able to dial out only. The other one dials too after a timeout,
//! since it may be the one that can only dial out. Of two connections the one dialled by the higher number stays. A connection serves to
//! agree on keys for datagrams, to carry datagrams where UDP is blocked, and to notice that a node was replaced by another one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use moves::HostName;
use overlay::tunnel::keys::{Direction, Root};
use overlay::tunnel::lane::Limits;
use overlay_io::fallback::Inlet;
use overlay_io::path_limit::path_limit;
use overlay_io::peer::{Agreement, Path, PlainAgreement, Terms};
use rpc::datagrams;
use rpc::net::Hello;
use rpc::removed::Gate;
use rpc::wire::Opening;
use rpc::{Stream, frame};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::fallback::{OverTls, Traffic, take_in};
use super::joined::Membership;
use crate::dialer::Dialer;

/// How long the other end may take for its part of the handshake.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// The first and the longest pause before a host is dialled again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The datagram size that every path carries, for when the kernel does not report one.
const SAFE: usize = 1200;

/// Keeps connections to the neighbours, and tells the plane the keys that are agreed over them.
pub struct TunnelKeeper {
    dialer: Dialer,
    membership: Arc<Membership>,
    /// The UDP port of this host.
    port: u16,
    /// The number of the next connection.
    sessions: AtomicU32,
    traffic: Traffic,
}

impl TunnelKeeper {
    /// A keeper of tunnels, whose datagrams arrive at `port`.
    ///
    /// # Errors
    /// If there are no random numbers, or the thread that carries datagrams cannot be started.
    pub fn new(dialer: Dialer, membership: Arc<Membership>, port: u16) -> io::Result<Self> {
        let mut first = [0; 4];
        // A number that an earlier node used has no meaning for this one.
        getrandom::fill(&mut first).map_err(io::Error::other)?;
        let sessions = AtomicU32::new(u32::from_ne_bytes(first));
        Ok(Self { dialer, membership, port, sessions, traffic: Traffic::new()? })
    }

    /// Starts to dial `host` whenever there was no connection for `patience`.
    pub fn start_dialling(self: Arc<Self>, host: HostName, patience: Duration) -> AbortHandle {
        tokio::spawn(self.keep_dialling(host, patience)).abort_handle()
    }

    /// Dials `host` whenever there was no connection for `patience`.
    async fn keep_dialling(self: Arc<Self>, host: HostName, patience: Duration) {
        let mut back_off = BACK_OFF.0;
        let mut complaint = None;
        loop {
            self.await_turn_to_dial(&host, patience).await;
            match self.dial(&host).await {
                // The connection was up.
                Ok(()) => (back_off, complaint) = (BACK_OFF.0, None),
                Err(error) => {
                    let said = error.to_string();
                    // Repeating the same message would hide all others.
                    if complaint.as_ref() != Some(&said) {
                        tracing::info!("the tunnel to {host} is down: {said}");
                        complaint = Some(said);
                    }
                    back_off = (back_off * 2).min(BACK_OFF.1);
                }
            }
            sleep(back_off).await;
        }
    }

    /// Waits until there was no connection to `host` for so long.
    async fn await_turn_to_dial(&self, host: &HostName, patience: Duration) {
        let mut missing_since = None;
        loop {
            let mut changed = std::pin::pin!(self.membership.changed());
            changed.as_mut().enable();
            if self.membership.lock().await.as_ref().is_some_and(|joined| joined.tunnels.stands(host)) {
                missing_since = None;
                changed.await;
            } else {
                let since = *missing_since.get_or_insert_with(Instant::now);
                if timeout_at(since + patience, changed).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Connects to `host`, and returns when the connection is lost.
    ///
    /// # Errors
    /// If it was never up.
    async fn dial(self: &Arc<Self>, host: &HostName) -> io::Result<()> {
        let stream = self.dialer.open(host, &Opening::Tunnel).await?;
        self.hold_tunnel(host, stream, Direction::FromDialer).await
    }

    /// Agrees with `host` on keys, and returns when the connection is lost or has no use any more. Datagrams keep using these keys
    /// until the next agreement.
    ///
    /// # Errors
    /// If the hosts do not agree.
    pub async fn hold_tunnel(
        self: &Arc<Self>,
        host: &HostName,
        mut stream: Stream,
        direction: Direction,
    ) -> io::Result<()> {
        let (plain, kernel) = self.may_leave_out(host).await;
        let (session, port) = (self.sessions.fetch_add(1, Ordering::Relaxed), self.port);
        let own = Hello { session, port, plain, kernel };
        if direction == Direction::FromDialer {
            frame::send(&mut stream, &own).await?;
        }
        let theirs: Hello = timeout(HELLO_LIMIT, frame::receive(&mut stream)).await??;
        let address = SocketAddr::new(stream.peer_address()?.ip(), theirs.port);
        let terms = if own.plain && theirs.plain {
            let kernel = own.kernel && theirs.kernel;
            PlainAgreement { own: own.session, theirs: theirs.session, kernel }.into()
        } else {
            let (secret, limits) = (stream.export_secret(Root::LABEL)?, Limits::default());
            Agreement { secret, direction, own: own.session, theirs: theirs.session, limits }.into()
        };
        let (outbox, outlet) = datagrams::queue();
        let longest = path_limit(address).unwrap_or(SAFE);
        let path = Path { address, longest, fallback: Some(Arc::new(OverTls(outbox))) };
        let (closing, inlet) = self.connected(host, &stream, path, own.session, direction, terms).await?;
        let held = self.traffic.carry(async move {
            if direction == Direction::FromListener {
                frame::send(&mut stream, &own).await?;
            }
            take_in(outlet.open(stream)?, &inlet).await
        });
        tokio::select! {
            lost = held => tracing::debug!("the tunnel's connection to {host} is lost: {lost:?}"),
            _ = closing => {}
        }
        self.disconnected(host, own.session).await;
        Ok(())
    }

    /// Whether the coordinator permits unencrypted datagrams to `host`, and whether this host's kernel can carry frames.
    async fn may_leave_out(&self, host: &HostName) -> (bool, bool) {
        let joined = self.membership.lock().await;
        let Some(joined) = joined.as_ref() else { return (false, false) };
        (joined.tunnels.is_plain(host), joined.offloads.kernel)
    }

    /// Records a connection. The result tells when to close it, and receives its datagrams.
    async fn connected(
        &self,
        host: &HostName,
        stream: &Stream,
        path: Path,
        session: u32,
        direction: Direction,
        terms: Terms,
    ) -> io::Result<(oneshot::Receiver<()>, Inlet)> {
        let mut joined = self.membership.lock().await;
        let joined =
            joined.as_mut().ok_or_else(|| io::Error::other("this host is not part of the overlay"))?;
        // A host that is removed from now on is found by its entry.
        stream.check_pass()?;
        let partner = stream.peer().cloned();
        let (node, closing) = joined.tunnels.connect(host, joined.me, session, direction, partner)?;
        // The dialling host learns the other's number last, and uses the new keys first.
        match direction {
            Direction::FromDialer => joined.plane.connect(node, path, terms),
            Direction::FromListener => joined.plane.expect(node, path, terms),
        }
        self.membership.notify_changed();
        Ok((closing, joined.plane.inlet(session)))
    }

    /// Deletes the keys agreed with removed hosts.
    pub async fn end_barred(&self, gate: &Gate) {
        let mut joined = self.membership.lock().await;
        if let Some(joined) = joined.as_mut() {
            for node in joined.tunnels.end_barred(gate) {
                joined.plane.disconnect(node);
            }
        }
        self.membership.notify_changed();
    }

    async fn disconnected(&self, host: &HostName, session: u32) {
        let mut joined = self.membership.lock().await;
        if let Some(joined) = joined.as_mut() {
            joined.tunnels.disconnect(host, session);
        }
        self.membership.notify_changed();
    }
}
