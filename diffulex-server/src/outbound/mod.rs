//! Clients of other servers' HTTP, and the only way in which their answers are read: up to a bound.
//!
//! Never here: which servers, and what is sent to them.

pub mod secrets;

use std::path::{Path, PathBuf};

use reqwest::redirect::Policy;
use reqwest::{Certificate, Response};
use rustls::crypto::{CryptoProvider, ring};

use crate::outbound::secrets::SecretUrl;

/// Bytes of an answer that is read as a whole. Chosen by us: hundreds of times what a controller or a collector has to say.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// A client that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A file of certificates cannot be read.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// It has none.
    #[error("{}: no certificate in PEM", .path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// TLS cannot be set up, for example because the system has no certificates.
    #[error("{}", chain(.0))]
    Client(#[from] reqwest::Error),
}

/// An answer that was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    /// It did not come, or not whole, within the client's time.
    #[error("{}", chain(.0))]
    Http(reqwest::Error),
    /// It goes on.
    #[error("the answer is larger than {MAX_ANSWER_BYTES} bytes")]
    TooLarge,
}

impl From<reqwest::Error> for AnswerError {
    fn from(error: reqwest::Error) -> Self {
        // The address may hold a token.
        Self::Http(error.without_url())
    }
}

/// A client of the server at `url` that goes where it is told: a redirect is an answer, and the environment names no proxy. A server
/// over TLS is trusted by the system's certificates or, where there is one, by those of the file `authority` alone.
pub(crate) fn client(url: &SecretUrl, authority: Option<&Path>) -> Result<reqwest::ClientBuilder, ClientError> {
    let client = builder().redirect(Policy::none()).no_proxy();
    let Some(path) = authority else {
        // Without TLS, a system without certificates will do.
        return Ok(if url.is_https() { client } else { client.tls_certs_only([]) });
    };
    let pem = std::fs::read(path).map_err(|error| ClientError::File { path: path.to_owned(), error })?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(client.tls_certs_only(certificates)),
        Ok(_) | Err(_) => Err(ClientError::NoCertificate { path: path.to_owned() }),
    }
}

/// A client as a user's own programs are: it follows redirects, and takes the proxy that the environment names. It trusts the system's
/// certificates.
pub(crate) fn public_client(is_https: bool) -> reqwest::ClientBuilder {
    // Without TLS, a system without certificates will do.
    if is_https { builder() } else { builder().tls_certs_only([]) }
}

fn builder() -> reqwest::ClientBuilder {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster.
        let _ = ring::default_provider().install_default();
    }
    reqwest::Client::builder()
}

/// The body of an answer. The client's time limit holds for all of it.
pub(crate) async fn read(mut answer: Response) -> Result<Vec<u8>, AnswerError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(AnswerError::TooLarge);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The start of another server's text.
pub(crate) fn excerpt(text: &str) -> &str {
    /// Chosen by us: a sentence or two.
    const MAX_BYTES: usize = 500;

    &text[..text.floor_char_boundary(MAX_BYTES)]
}

/// An error and its causes: reqwest's own words are only that it could not send.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}
