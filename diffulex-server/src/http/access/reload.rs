//! Files that are read again while the server runs: API keys and TLS. Each keeps what it had where its file is broken.
//!
//! Never here: who asks for it.

use std::sync::Arc;

use crate::http::access::keys::ApiKeys;
use crate::http::access::tls::Tls;

/// Files that can be read again.
#[derive(Clone, Debug, Default)]
pub struct Reloads {
    /// The keys, which may be without a file.
    pub keys: Arc<ApiKeys>,
    /// TLS, where there is one.
    pub tls: Option<Arc<Tls>>,
}

/// What became of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// A line for each part that was read.
    pub read: Vec<String>,
    /// A line for each part that was not, and keeps what it had.
    pub kept: Vec<String>,
}

impl Reloads {
    /// There is such a file.
    pub(in crate::http) fn has_any(&self) -> bool {
        self.keys.file().is_some() || self.tls.is_some()
    }

    /// Reads them again, and says so in the log.
    pub fn reload(&self) -> Reloaded {
        let mut reloaded = Reloaded::default();
        if self.keys.file().is_some() {
            reloaded.note(self.keys.reload().map(|n_names| format!("--api-key-file: {n_names} names")));
        }
        if let Some(tls) = &self.tls {
            reloaded.note(tls.reload().map(|()| "--tls-cert and --tls-key".to_owned()));
        }
        if !self.has_any() {
            tracing::warn!("there is nothing to read again: no --api-key-file, no --tls-cert");
        }
        reloaded
    }
}

impl Reloaded {
    fn note<E: std::fmt::Display>(&mut self, outcome: Result<String, E>) {
        match outcome {
            Ok(what) => {
                tracing::info!("read again: {what}");
                self.read.push(what);
            }
            Err(error) => {
                tracing::error!("not read again, what was read before stays: {error}");
                self.kept.push(error.to_string());
            }
        }
    }
}
