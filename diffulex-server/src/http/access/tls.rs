//! TLS of the server's own port: a certificate and its key, read from files at the start and whenever that is asked for.
//!
//! A connection keeps what it began with. Never here: sockets, when files are read again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Protocols that are offered (ALPN). HTTP/2 is not: limits of connections hold for requests, too, as long as each has one.
const PROTOCOLS: [&[u8]; 1] = [b"http/1.1"];

/// Files of which no TLS can be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has not what it should have.
    #[error("{flag} {}: {problem}", .path.display())]
    File {
        /// Its flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The key is another certificate's.
    #[error("--tls-key {}: not the key of the certificate in {}", .key.display(), .cert.display())]
    Mismatch {
        /// `--tls-cert`.
        cert: PathBuf,
        /// `--tls-key`.
        key: PathBuf,
    },
    /// rustls takes neither.
    #[error("--tls-cert {}: {error}", .cert.display())]
    Refused {
        /// `--tls-cert`.
        cert: PathBuf,
        /// Why.
        error: rustls::Error,
    },
}

/// TLS by two files.
#[derive(Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// By the PEM files `cert`, the certificate and those between it and its root, and `key`.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let current = RwLock::new(read(cert, key)?);
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), current })
    }

    /// Reads the files again. If that fails, what was read before stays.
    pub(in crate::http) fn reload(&self) -> Result<(), TlsError> {
        let new = read(&self.cert, &self.key)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// For a new connection.
    pub(in crate::http) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let wrong = |flag, path: &Path, problem: String| TlsError::File { flag, path: path.to_owned(), problem };
    let of_cert = |error: pem::Error| wrong("--tls-cert", cert, told(error, "certificate"));
    let of_key = |error: pem::Error| wrong("--tls-key", key, told(error, "private key"));
    let chain = CertificateDer::pem_file_iter(cert).map_err(of_cert)?.collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(of_cert)?;
    if chain.is_empty() {
        return Err(of_cert(pem::Error::NoItemsFound));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(of_key)?;
    let refused = |error| TlsError::Refused { cert: cert.to_owned(), error };
    let provider = Arc::new(ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(refused)?;
    let config = builder.with_no_client_auth().with_single_cert(chain, private);
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch { cert: cert.to_owned(), key: key.to_owned() },
        // What ring says of a key that it cannot use.
        rustls::Error::General(problem) => wrong("--tls-key", key, problem),
        error => refused(error),
    })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    Ok(Arc::new(config))
}

/// `error` about a file that should have a `what`, without anything of the file.
fn told(error: pem::Error, what: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("no {what} in PEM"),
        pem::Error::Io(error) => error.to_string(),
        _ => format!("not a {what} in PEM: the file is damaged"),
    }
}
