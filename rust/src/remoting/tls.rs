//! TLS: a connection's bytes, encrypted, by rustls.
//!
//! In: certificates as PEM, a socket. Out: a stream that is read and written as a plain one. Always: a handshake ends
//! within its time; the first byte tells TLS from plain, on the same port; no global state. Not here: who may do what.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

use crate::error::{Error, Result};
use crate::sync::unmodelled::Mutex;

/// The first byte of a handshake; no frame begins so, since it would be longer than any may be.
const HANDSHAKE: u8 = 0x16;

/// What a server shows, and whom it believes.
pub struct TlsOptions {
    /// Its certificate, then those that vouch for it: PEM.
    pub certificate: Vec<u8>,
    /// The certificate's private key: PEM.
    pub key: Vec<u8>,
    /// Who vouches for clients, PEM; none: clients need no certificate.
    pub client_authority: Option<Vec<u8>>,
    /// Whether plain connections are refused.
    pub required: bool,
    /// How long a handshake may take.
    pub handshake: Duration,
}

/// What new connections are secured by.
#[derive(Debug)]
pub(super) struct Tls {
    config: Arc<ServerConfig>,
    required: bool,
    handshake: Duration,
}

/// How a connection began.
pub(super) enum Begun {
    /// As TLS.
    Secured(Box<TlsStream>),
    /// As a plain one, which this server takes, too.
    Plain(TcpStream),
    /// It ended before it said anything.
    Gone,
    /// It is refused, for this reason.
    Refused(String),
}

impl Tls {
    /// Raises `InvalidOption`, which names the option with the file that is no good.
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
        let no_key = "there is no private key in it\nhint: PEM, between BEGIN PRIVATE KEY and END, without a password";
        let key = PrivateKeyDer::from_pem_slice(&options.key).map_err(|_| invalid("tls_key", &no_key))?;
        let config = builder.with_single_cert(certificates("tls_cert", &options.certificate)?, key);
        let config = config.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                invalid("tls_key", &"it is not the certificate's key\nhint: give the pair that was made together")
            }
            rustls::Error::InvalidCertificate(why) => invalid("tls_cert", &format!("no certificate: {why:?}")),
            other => invalid("tls_key", &other),
        })?;
        Ok(Self { config: Arc::new(config), required: options.required, handshake: options.handshake })
    }

    /// Finds out how a client begins, and shakes hands; a plain one may be silent for `idle`.
    pub(super) async fn begin(&self, tcp: TcpStream, idle: Duration) -> Begun {
        let first = tokio::time::timeout(if self.required { self.handshake } else { idle }, first_byte(&tcp)).await;
        match first {
            Ok(Ok(Some(HANDSHAKE))) => self.shake_hands(tcp).await,
            Ok(Ok(Some(_))) if self.required => Begun::Refused("it is plain, and this server wants TLS".to_owned()),
            Ok(Ok(Some(_))) => Begun::Plain(tcp),
            Err(_) if self.required => Begun::Refused(too_slow(self.handshake)),
            Ok(Ok(None) | Err(_)) | Err(_) => Begun::Gone,
        }
    }

    async fn shake_hands(&self, tcp: TcpStream) -> Begun {
        let tls = match ServerConnection::new(Arc::clone(&self.config)) {
            Ok(tls) => Mutex::new(tls),
            Err(error) => return Begun::Refused(error.to_string()),
        };
        let stream = TlsStream { tcp, tls };
        match tokio::time::timeout(self.handshake, stream.shake_hands()).await {
            Ok(Ok(())) => Begun::Secured(Box::new(stream)),
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

/// A socket behind TLS.
#[derive(Debug)]
pub(super) struct TlsStream {
    tcp: TcpStream,
    tls: Mutex<ServerConnection>,
}

impl TlsStream {
    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let (decrypted, unsent) = {
            let mut tls = self.tls.lock();
            // What is wrong with the bytes is said where they are read.
            let decrypted = tls.process_new_packets().map_or(true, |state| state.plaintext_bytes_to_read() > 0);
            (decrypted, tls.wants_write())
        };
        // The socket does not know what is decrypted and not yet taken, nor what waits to be written.
        if interest.is_readable() && decrypted {
            return Ok(Ready::READABLE);
        }
        self.tcp.ready(if unsent { interest | Interest::WRITABLE } else { interest }).await
    }

    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut tls = self.tls.lock();
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It has gone without a farewell, as many do.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            if self.receive(&mut tls)? == 0 {
                return Ok(0);
            }
        }
    }

    /// Takes bytes only when those before them are written, so that little is kept here.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut tls = self.tls.lock();
        if !self.write_out(&mut tls)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = tls.writer().write(bytes)?;
        self.write_out(&mut tls)?;
        Ok(taken)
    }

    /// Whether all that was taken is written.
    pub(super) fn flush(&self) -> io::Result<bool> {
        self.write_out(&mut self.tls.lock())
    }

    /// Says farewell, as far as the socket takes it.
    pub(super) fn close(&self) {
        let mut tls = self.tls.lock();
        tls.send_close_notify();
        // Whoever has gone hears nothing.
        let _ = self.write_out(&mut tls);
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.tcp.peer_addr().ok()
    }

    pub(super) fn set_no_delay(&self) {
        // A socket that refuses is only slower.
        let _ = self.tcp.set_nodelay(true);
    }

    async fn shake_hands(&self) -> io::Result<()> {
        while self.tls.lock().is_handshaking() {
            self.ready(Interest::READABLE).await?;
            let mut tls = self.tls.lock();
            self.write_out(&mut tls)?;
            match self.receive(&mut tls) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the client has gone")),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes what has arrived, and answers what TLS itself wants answered; 0: the client has gone.
    fn receive(&self, tls: &mut ServerConnection) -> io::Result<usize> {
        let received = tls.read_tls(&mut Socket(&self.tcp))?;
        let done = tls.process_new_packets();
        // The reason of a failure goes out, too.
        let written = self.write_out(tls);
        done.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        written?;
        Ok(received)
    }

    /// Writes as much as the socket takes; whether that is all.
    fn write_out(&self, tls: &mut ServerConnection) -> io::Result<bool> {
        while tls.wants_write() {
            match tls.write_tls(&mut Socket(&self.tcp)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// A socket as rustls wants it: it reads and writes what it can, and never waits.
struct Socket<'a>(&'a TcpStream);

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
