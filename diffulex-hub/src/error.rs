//! Errors of fetching models, worded for the user.

use std::path::PathBuf;

/// A model that is not there.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The token cannot be sent.
    #[error("the token (HF_TOKEN) has characters that no HTTP header can have")]
    Token,
    /// TLS cannot be set up, for example because the system has no certificates.
    #[error("the client for the Hub: {what}")]
    Client {
        /// The cause.
        what: String,
    },
    /// The Hub may not be asked, and the cache does not have it.
    #[error("{model} is not in the cache {}, and HF_HUB_OFFLINE forbids to fetch it", .cache.display())]
    Offline {
        /// The model.
        model: String,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// No such repository, or one that only others may see.
    #[error("{repository}: no such repository on {endpoint}, or a private one{}", hint(*.has_token))]
    NoRepository {
        /// `OWNER/NAME`.
        repository: String,
        /// The Hub.
        endpoint: String,
        /// The request had a token.
        has_token: bool,
    },
    /// The owner wants its terms accepted.
    #[error("{repository} is gated: accept its terms at {endpoint}/{repository}{}", hint(*.has_token))]
    Gated {
        /// `OWNER/NAME`.
        repository: String,
        /// The Hub.
        endpoint: String,
        /// The request had a token.
        has_token: bool,
    },
    /// No such branch, tag or commit.
    #[error("{repository} has no revision {revision:?}")]
    NoRevision {
        /// `OWNER/NAME`.
        repository: String,
        /// The requested revision.
        revision: String,
    },
    /// The repository has not what is needed.
    #[error("{model} {what}")]
    Unusable {
        /// The model.
        model: String,
        /// The missing files, or the files of other formats.
        what: String,
    },
    /// The cache has a part of the model.
    #[error("{model} is not whole in the cache, it lacks {}; fetch it with the Hub in reach", .missing.join(", "))]
    Incomplete {
        /// The model.
        model: String,
        /// The files.
        missing: Vec<String>,
    },
    /// The Hub answered with an error.
    #[error("{url}: the Hub answered {status}{}", .message.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Status {
        /// The requested URL.
        url: String,
        /// Status code.
        status: u16,
        /// The Hub's own words.
        message: Option<String>,
    },
    /// The Hub cannot be reached, or breaks off each time.
    #[error("{url}: {what}")]
    Connection {
        /// The requested URL.
        url: String,
        /// Why not.
        what: String,
    },
    /// The answer is not what the Hub's interface promises.
    #[error("{url}: {what}")]
    Answer {
        /// The requested URL.
        url: String,
        /// What is wrong.
        what: String,
    },
    /// Other content than the Hub's list names, twice.
    #[error("{file} of {model}: the download has the hash {found}, expected {expected}; nothing of it was kept")]
    WrongHash {
        /// The model.
        model: String,
        /// The file.
        file: String,
        /// The list's.
        expected: String,
        /// The download's.
        found: String,
    },
    /// Too little room.
    #[error("{model} needs {needed} bytes more in {}, which has {free} bytes free", .folder.display())]
    DiskFull {
        /// The model.
        model: String,
        /// Bytes to come.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The cache's folder.
        folder: PathBuf,
    },
    /// A file of the cache cannot be read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
}

impl HubError {
    /// Whether the Hub was not reached or could not answer, so that what the cache has is the best there is.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connection { .. }) || matches!(self, Self::Status { status, .. } if *status >= 500)
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }
}

/// What a user without access can do.
fn hint(has_token: bool) -> &'static str {
    if has_token { " with the account of your token" } else { "; set HF_TOKEN to a token with access to it" }
}
