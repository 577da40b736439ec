//! The use of a context by one request: however the request ends, its use of the context ends with it.
//!
//! Never here: the rules of contexts, how the request is made.

use std::sync::Arc;
use std::time::Instant;

use diffulex_protocol::ServingReply;

use super::Shared;
use super::contexts::{Addition, ContextName};

/// The use of a context by one request, which ends with the last drop of the request's stream.
pub(super) struct ContextLease {
    shared: Arc<Shared>,
    name: ContextName,
    /// Tokens that the client gave.
    pub(super) given: Vec<u32>,
    /// The use has not ended.
    is_open: bool,
}

impl ContextLease {
    /// The use of `name`, which has begun.
    pub(super) fn new(shared: &Arc<Shared>, name: ContextName) -> Self {
        Self { shared: Arc::clone(shared), name, given: Vec::new(), is_open: true }
    }

    /// Adds what the request `reply` answers has made of the context. One that ended early adds nothing.
    pub(super) fn settle(&mut self, reply: &ServingReply) {
        let Some(held) = reply.context else { return };
        let addition = Addition {
            given: &self.given,
            written: &reply.token_ids,
            held,
            cached_tokens: reply.cached_tokens as usize,
        };
        self.shared.contexts().end(self.name, Some(addition), Instant::now());
        self.is_open = false;
    }
}

impl Drop for ContextLease {
    fn drop(&mut self) {
        if self.is_open {
            self.shared.contexts().end(self.name, None, Instant::now());
        }
    }
}
