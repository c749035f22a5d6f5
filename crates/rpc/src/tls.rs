//! TLS connections whose other end is known by the name in its certificate.

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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::pki::Identity;
use crate::removed::{Gate, KeyId, Pass, Peer};
use crate::{disbelief, frame};

/// An encrypted connection.
#[derive(Debug)]
pub struct Stream {
    /// None if the other end has no certificate, or is known otherwise. It is dropped before the connection is closed.
    pass: Option<Pass>,
    tls: TlsStream<TcpStream>,
}

/// How long a connection may take to be made.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// One party of the cluster, which connects to others and is connected to.
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
    /// If certificate and key do not belong together, or the authority's is unusable.
    pub fn new(identity: Identity) -> Result<Self, rustls::Error> {
        Self::with_guests(identity, false)
    }

    /// The same, but to [`accept_any`](Self::accept_any) somebody without a certificate may connect as well. He is shown the
    /// authority's, which he may know.
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
        // Nobody looks at the certificates of a session that is resumed, which may have expired since.
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

    /// The same, whose connections have to pass `gate`.
    #[must_use]
    pub fn behind(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// What its connections have to pass.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The name in this endpoint's certificate.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A connection to `peer` at `address`.
    ///
    /// # Errors
    /// If nobody answers in time, or not `peer`, or that was removed.
    pub async fn connect(&self, address: SocketAddr, peer: &str) -> io::Result<Stream> {
        let server = ServerName::try_from(peer.to_owned()).map_err(io::Error::other)?;
        let connecting = async {
            let tcp = TcpStream::connect(address).await?;
            tcp.set_nodelay(true)?;
            let connected = self.connector.connect(server, tcp).await;
            let connected = connected.map_err(|error| disbelief::of_another(error, address, peer));
            let connected = connected.map_err(in_our_words)?;
            let stream = self.known(connected.into())?;
            match stream.peer() {
                Some(Peer { name, .. }) if name == peer => {}
                other => {
                    let name = other.map_or("nobody", |other| &other.name);
                    return Err(io::Error::other(format!("{address} is {name}, not {peer}")));
                }
            }
            stream.check_pass()?;
            Ok(stream)
        };
        timeout(CONNECT_LIMIT, connecting).await?
    }

    /// The encrypted connection that somebody wants to make over `tcp`, and who it is.
    ///
    /// # Errors
    /// If it takes too long, or the other end has no certificate of this cluster, or was removed from it.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<(Stream, String)> {
        let (stream, peer) = self.accept_any(tcp).await?;
        let peer = peer.ok_or_else(|| io::Error::other("the other end shows no certificate"))?;
        stream.check_pass()?;
        Ok((stream, peer.name))
    }

    /// As [`accept`](Self::accept), but lets in who was removed, to be told so; and a [`welcoming`](Self::welcoming) endpoint
    /// who has no certificate, and so no name.
    ///
    /// # Errors
    /// If it takes too long, or the other end has a certificate that is not of this cluster.
    pub async fn accept_any(&self, tcp: TcpStream) -> io::Result<(Stream, Option<Peer>)> {
        tcp.set_nodelay(true)?;
        let accepted = timeout(CONNECT_LIMIT, self.acceptor.accept(tcp)).await?;
        let stream = self.known(accepted.map_err(disbelief::of_dialler).map_err(in_our_words)?.into())?;
        let peer = stream.peer().cloned();
        Ok((stream, peer))
    }

    /// The connection, of which the gate knows if its other end has shown a certificate.
    fn known(&self, tls: TlsStream<TcpStream>) -> io::Result<Stream> {
        let peer = peer_of(&tls)?;
        let pass = peer.map(|peer| self.gate.note(peer, tls.get_ref().0));
        Ok(Stream { pass, tls })
    }
}

impl Stream {
    /// A connection whose other end is known by something else than its certificate.
    pub(crate) fn to_acquaintance(tls: TlsStream<TcpStream>) -> Self {
        Self { pass: None, tls }
    }

    /// Who is at the other end, if it has shown a certificate.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.pass.as_ref().map(|pass| &pass.peer)
    }

    /// Checks that the other end still takes part.
    ///
    /// # Errors
    /// If it was removed.
    pub fn check_pass(&self) -> io::Result<()> {
        match &self.pass {
            Some(pass) if !pass.is_good() => {
                Err(io::Error::other(format!("the host `{}` was removed from the cluster", pass.peer.name)))
            }
            _ => Ok(()),
        }
    }

    /// Where the other end is.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.tls.get_ref().0.peer_addr()
    }

    /// Lets the kernel keep so many bytes of this connection at most that it has not sent yet, so that what is written does not
    /// wait long.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn limit_unsent(&self, bytes: u32) -> io::Result<()> {
        let (tcp, length) = (self.tls.get_ref().0.as_raw_fd(), size_of_val(&bytes) as libc::socklen_t);
        let (option, value) = (libc::TCP_NOTSENT_LOWAT, (&raw const bytes).cast());
        // SAFETY: the value is live, and of the length that is given.
        let result = unsafe { libc::setsockopt(tcp, libc::IPPROTO_TCP, option, value, length) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// A secret that both ends of this connection know, and nobody else (RFC 8446, section 7.5).
    ///
    /// # Errors
    /// If the handshake is not over.
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

/// Users read these errors; rustls writes its own for programmers, with a link to its manual.
fn in_our_words(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { frame::cut() } else { disbelief::in_our_words(error) }
}

/// Who the other end is by its certificate, if it has shown any.
fn peer_of(tls: &TlsStream<TcpStream>) -> io::Result<Option<Peer>> {
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
        _ => Err(io::Error::other("the other end's certificate has not exactly one name")),
    }
}
