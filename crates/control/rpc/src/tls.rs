//! TLS connections whose peer is authenticated by the name in its certificate.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::pki::Identity;
use crate::removed::{Gate, KeyId, Pass, Peer};
use crate::{disbelief, frame};

/// An encrypted connection.
#[derive(Debug)]
pub struct Stream {
    /// None if the peer has no certificate, or was authenticated otherwise. It is dropped before the connection is closed.
    pass: Option<Pass>,
    tls: TlsStream<Wire>,
}

/// A connection below the encryption. Without its buffer, rustls would read 4 KiB at a time.
pub(crate) type Wire = BufReader<TcpStream>;

/// The wire over `tcp`. Its buffer holds two records of TLS; a coordinator has one for each node.
pub(crate) fn wire(tcp: TcpStream) -> io::Result<Wire> {
    tcp.set_nodelay(true)?;
    Ok(BufReader::with_capacity(32 * 1024, tcp))
}

/// Time limit for establishing a connection.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// A party of the cluster, which dials and accepts connections.
#[derive(Clone)]
pub struct Endpoint {
    name: Arc<str>,
    connector: TlsConnector,
    acceptor: TlsAcceptor,
    gate: Gate,
}

impl Endpoint {
    /// The endpoint of `identity`.
    ///
    /// # Errors
    /// If certificate and key do not match, or the authority's certificate is unusable.
    pub fn new(identity: Identity) -> Result<Self, rustls::Error> {
        Self::with_guests(identity, false)
    }

    /// Likewise, but [`accept_any`](Self::accept_any) also accepts clients without a certificate. The endpoint sends them the
    /// authority's certificate, whose fingerprint they may know.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn welcoming(identity: Identity) -> Result<Self, rustls::Error> {
        Self::with_guests(identity, true)
    }

    fn with_guests(identity: Identity, guests: bool) -> Result<Self, rustls::Error> {
        let Identity { name, certificate, key, authority } = identity;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(vec![certificate.clone()], key.clone_key())?;
        // Resumption would skip the check of certificates, which may have expired since.
        client.resumption = Resumption::disabled();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        let verifier = if guests { verifier.allow_unauthenticated() } else { verifier };
        let verifier = verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
        let shown = if guests { vec![certificate, authority] } else { vec![certificate] };
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(shown, key)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self {
            name: name.into(),
            connector: TlsConnector::from(Arc::new(client)),
            acceptor: TlsAcceptor::from(Arc::new(server)),
            gate: Gate::default(),
        })
    }

    /// The same endpoint with connections checked by `gate`.
    #[must_use]
    pub fn behind(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// The gate of its connections.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The name in this endpoint's certificate.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Connects to `peer` at `address`.
    ///
    /// # Errors
    /// If the peer does not answer in time, is not `peer`, or was removed.
    pub async fn connect(&self, address: SocketAddr, peer: &str) -> io::Result<Stream> {
        let server = ServerName::try_from(peer.to_owned()).map_err(io::Error::other)?;
        let connecting = async {
            let tcp = TcpStream::connect(address).await?;
            let connected = self.connector.connect(server, wire(tcp)?).await;
            let connected = connected.map_err(|error| disbelief::of_another(error, address, peer));
            let connected = connected.map_err(in_our_words)?;
            let stream = self.known(connected.into())?;
            match stream.peer() {
                Some(Peer { name, .. }) if name == peer => {}
                other => {
                    let name = other.map_or("unauthenticated", |other| &other.name);
                    return Err(io::Error::other(format!("{address} is {name}, not {peer}")));
                }
            }
            stream.check_pass()?;
            Ok(stream)
        };
        timeout(CONNECT_LIMIT, connecting).await?
    }

    /// Accepts a connection over `tcp`; returns it with the peer's name.
    ///
    /// # Errors
    /// If it takes too long, or the peer has no certificate of this cluster, or was removed.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<(Stream, String)> {
        let (stream, peer) = self.accept_any(tcp).await?;
        let peer = peer.ok_or_else(|| io::Error::other("the peer has no certificate"))?;
        stream.check_pass()?;
        Ok((stream, peer.name))
    }

    /// Like [`accept`](Self::accept), but also accepts removed peers, so that they can be told so; a [`welcoming`](Self::welcoming) endpoint
    /// also accepts peers without a certificate, which have no name.
    ///
    /// # Errors
    /// If it takes too long, or the peer has a certificate of another cluster.
    pub async fn accept_any(&self, tcp: TcpStream) -> io::Result<(Stream, Option<Peer>)> {
        let accepted = timeout(CONNECT_LIMIT, self.acceptor.accept(wire(tcp)?)).await?;
        let stream = self.known(accepted.map_err(disbelief::of_dialler).map_err(in_our_words)?.into())?;
        let peer = stream.peer().cloned();
        Ok((stream, peer))
    }

    /// The connection, registered with the gate if the peer has a certificate.
    fn known(&self, tls: TlsStream<Wire>) -> io::Result<Stream> {
        let peer = peer_of(&tls)?;
        let pass = peer.map(|peer| self.gate.note(peer, tls.get_ref().0.get_ref()));
        Ok(Stream { pass, tls })
    }
}

impl Stream {
    /// A connection whose peer was authenticated by other means than a certificate.
    pub(crate) fn to_acquaintance(tls: TlsStream<Wire>) -> Self {
        Self { pass: None, tls }
    }

    /// The peer, if it has a certificate.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.pass.as_ref().map(|pass| &pass.peer)
    }

    /// Checks that the peer has not been removed.
    ///
    /// # Errors
    /// If it was removed.
    pub fn check_pass(&self) -> io::Result<()> {
        match &self.pass {
            Some(pass) if !pass.is_good() => {
                Err(io::Error::other(format!("host `{}` was removed from the cluster", pass.peer.name)))
            }
            _ => Ok(()),
        }
    }

    /// The peer's address.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.tls.get_ref().0.get_ref().peer_addr()
    }

    /// Limits the unsent bytes in the kernel's send buffer, to bound the delay of
    /// written data.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn limit_unsent(&self, bytes: u32) -> io::Result<()> {
        let (tcp, length) =
            (self.tls.get_ref().0.get_ref().as_raw_fd(), size_of_val(&bytes) as libc::socklen_t);
        let (option, value) = (libc::TCP_NOTSENT_LOWAT, (&raw const bytes).cast());
        // SAFETY: the value is live and has the given length.
        let result = unsafe { libc::setsockopt(tcp, libc::IPPROTO_TCP, option, value, length) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// A secret that only both ends of this connection know (RFC 8446, section 7.5).
    ///
    /// # Errors
    /// If the handshake has not finished.
    pub fn export_secret<const LENGTH: usize>(&self, label: &[u8]) -> io::Result<[u8; LENGTH]> {
        let exported = match &self.tls {
            TlsStream::Client(stream) => stream.get_ref().1.export_keying_material([0; LENGTH], label, None),
            TlsStream::Server(stream) => stream.get_ref().1.export_keying_material([0; LENGTH], label, None),
        };
        exported.map_err(io::Error::other)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_read(context, buffer).map_err(in_our_words)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(context)
    }
}

/// Converts rustls' errors, which are for programmers, to messages for operators.
fn in_our_words(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { frame::cut() } else { disbelief::in_our_words(error) }
}

/// The peer, from its certificate, if it has one.
fn peer_of(tls: &TlsStream<Wire>) -> io::Result<Option<Peer>> {
    let (_, connection) = tls.get_ref();
    let certificate = connection.peer_certificates().and_then(<[CertificateDer<'_>]>::first);
    let Some(certificate) = certificate else { return Ok(None) };
    let parsed = webpki::EndEntityCert::try_from(certificate).map_err(io::Error::other)?;
    let mut names = parsed.valid_dns_names();
    match (names.next(), names.next()) {
        (Some(name), None) => {
            let key = KeyId::of(&parsed.subject_public_key_info());
            Ok(Some(Peer { name: name.to_owned(), key }))
        }
        _ => Err(io::Error::other("the peer's certificate does not have exactly one name")),
    }
}
