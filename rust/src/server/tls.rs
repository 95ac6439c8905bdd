//! Encrypts a connection's bytes with tokio-rustls.
//!
//! In:     certificates as PEM, a socket.
//! Out:    a stream with the same calls as a plain one.
//! Always: a handshake has a time limit. The first byte distinguishes TLS from plain connections on the same port. No
//!         global state.
//! Not here: permissions.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

use crate::base::error::{Error, Result};

/// The first byte of a handshake. No frame begins with it, because such a frame would exceed the maximum length.
const HANDSHAKE: u8 = 0x16;

/// The certificate of a server, and the authority that it trusts.
pub struct TlsOptions {
    /// The server's certificate, then the certificates that sign it, as PEM.
    pub certificate: Vec<u8>,
    /// The certificate's private key, as PEM.
    pub key: Vec<u8>,
    /// The authority that signs client certificates, as PEM. `None`: clients need no certificate.
    pub client_authority: Option<Vec<u8>>,
    /// Whether plain connections are refused.
    pub required: bool,
    /// The time limit of a handshake.
    pub handshake: Duration,
}

/// The TLS setup of new connections.
pub(super) struct Tls {
    acceptor: TlsAcceptor,
    /// The same for HTTP/2, which the client must choose in the handshake (ALPN).
    http2: TlsAcceptor,
    required: bool,
    handshake: Duration,
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Tls(required: {}, handshake: {:?})", self.required, self.handshake)
    }
}

/// Tells whether a server can start with these files. Fails with `InvalidOption`, which names the option.
pub fn check(options: &TlsOptions) -> Result<()> {
    Tls::new(options).map(drop)
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Remoting,
    Grpc,
}

/// How a connection began.
pub(super) enum Begun {
    /// With TLS.
    Secured(Box<TlsStream>),
    /// Without TLS. This server accepts such connections.
    Plain(TcpStream),
    /// The client disconnected before it sent anything.
    Gone,
    /// The connection is refused, for this reason.
    Refused(String),
}

impl Tls {
    /// Creates the TLS setup. Fails with `InvalidOption`, which names the option with the invalid file.
    pub(super) fn new(options: &TlsOptions) -> Result<Self> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| invalid("tls_cert", &error))?;
        let builder = match &options.client_authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("tls_ca", authority)? {
                    roots.add(certificate).map_err(|error| invalid("tls_ca", &error))?;
                }
                let provider = Arc::new(ring::default_provider());
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| invalid("tls_ca", &error))?)
            }
        };
        let no_key = "expected a private key in PEM, found none\nhint: PEM, between BEGIN PRIVATE KEY and END, without a password";
        let key = PrivateKeyDer::from_pem_slice(&options.key).map_err(|_| invalid("tls_key", &no_key))?;
        let config = builder.with_single_cert(certificates("tls_cert", &options.certificate)?, key);
        let config = config.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                invalid("tls_key", &"it is not the certificate's key\nhint: give the pair that was made together")
            }
            rustls::Error::InvalidCertificate(why) => invalid("tls_cert", &format!("no certificate: {why:?}")),
            other => invalid("tls_key", &other),
        })?;
        let mut http2 = config.clone();
        http2.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            http2: TlsAcceptor::from(Arc::new(http2)),
            required: options.required,
            handshake: options.handshake,
        })
    }

    /// Detects how a client begins, and does the handshake. A plain connection may be silent for `idle`.
    pub(super) async fn begin(&self, tcp: TcpStream, protocol: Protocol, idle: Duration) -> Begun {
        let first = tokio::time::timeout(if self.required { self.handshake } else { idle }, first_byte(&tcp)).await;
        match first {
            Ok(Ok(Some(HANDSHAKE))) => self.shake_hands(tcp, protocol).await,
            Ok(Ok(Some(_))) if self.required => Begun::Refused("it is plain, and this server wants TLS".to_owned()),
            Ok(Ok(Some(_))) => Begun::Plain(tcp),
            Err(_) if self.required => Begun::Refused(too_slow(self.handshake)),
            Ok(Ok(None) | Err(_)) | Err(_) => Begun::Gone,
        }
    }

    async fn shake_hands(&self, tcp: TcpStream, protocol: Protocol) -> Begun {
        let acceptor = if protocol == Protocol::Grpc { &self.http2 } else { &self.acceptor };
        match tokio::time::timeout(self.handshake, acceptor.accept(tcp)).await {
            Ok(Ok(stream)) => Begun::Secured(Box::new(TlsStream(stream))),
            Ok(Err(error)) => Begun::Refused(format!("the TLS handshake failed: {error}")),
            Err(_) => Begun::Refused(too_slow(self.handshake)),
        }
    }
}

fn too_slow(allowed: Duration) -> String {
    format!("the TLS handshake was not done within {} s", allowed.as_secs_f64())
}

async fn first_byte(tcp: &TcpStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    Ok((tcp.peek(&mut byte).await? > 0).then_some(byte[0]))
}

fn certificates(option: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(invalid(option, &"there is no certificate in it\nhint: PEM, between BEGIN CERTIFICATE and END")),
    }
}

fn invalid(option: &'static str, what: &dyn std::fmt::Display) -> Error {
    Error::InvalidOption { option: option.into(), what: what.to_string() }
}

/// A socket with TLS. Reads and writes never wait. `ready` waits.
#[derive(Debug)]
pub(super) struct TlsStream(tokio_rustls::server::TlsStream<TcpStream>);

impl TlsStream {
    /// Returns the stream as a library reads and writes it.
    pub(super) fn into_inner(self) -> tokio_rustls::server::TlsStream<TcpStream> {
        self.0
    }

    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let (tcp, tls) = self.0.get_ref();
        // The socket does not know about decrypted bytes that were not read yet, or about bytes that wait to be
        // written.
        if interest.is_readable() && !tls.wants_read() {
            return Ok(Ready::READABLE);
        }
        tcp.ready(if tls.wants_write() { interest | Interest::WRITABLE } else { interest }).await
    }

    pub(super) fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        match now(|context| Pin::new(&mut self.0).poll_read(context, &mut buffer)) {
            // Many clients close the socket without a TLS close message.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            done => done.map(|()| buffer.filled().len()),
        }
    }

    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        now(|context| Pin::new(&mut self.0).poll_write(context, bytes))
    }

    /// Writes buffered bytes. Returns whether all are written.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match now(|context| Pin::new(&mut self.0).poll_flush(context)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Sends the TLS close message, as far as the socket accepts it.
    pub(super) fn close(&mut self) {
        // A client that has disconnected does not need the message.
        let _ = now(|context| Pin::new(&mut self.0).poll_shutdown(context));
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.0.get_ref().0.peer_addr().ok()
    }

    pub(super) fn set_no_delay(&self) {
        // If the socket refuses the option, it is only slower.
        let _ = self.0.get_ref().0.set_nodelay(true);
    }
}

/// Polls once. Returns `WouldBlock` if it would have to wait, as a socket does. `ready` then waits. Does not use
/// tokio's task budget, which would make a ready socket look busy. A connection limits its turns itself.
fn now<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>) -> io::Result<T> {
    let mut once = pin!(tokio::task::unconstrained(poll_fn(poll)));
    match once.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}
