//! Log-probabilities of a stream of one choice: those of the tokens that each event made final.
//!
//! Never here: the form of a frame.

use diffulex_protocol::{ServingBufferSnapshot, ServingDelta};

use crate::frontend::Frontend;
use crate::http::answer::parts::{LogprobProgress, TokenLogprob, token_logprobs};

/// Log-probabilities so far.
pub(in crate::http) struct StreamedLogprobs {
    frontend: Frontend,
    are_wanted: bool,
    progress: LogprobProgress,
}

impl StreamedLogprobs {
    /// None yet, and none at all unless they are wanted.
    pub(in crate::http) fn new(frontend: &Frontend, are_wanted: bool) -> Self {
        Self { frontend: frontend.clone(), are_wanted, progress: LogprobProgress::default() }
    }

    /// Those of the tokens of `delta`.
    pub(in crate::http) fn of_delta(&self, delta: &ServingDelta) -> Vec<TokenLogprob> {
        if self.are_wanted { token_logprobs(self.frontend.text(), delta.into()) } else { Vec::new() }
    }

    /// Those of the tokens that became final with `snapshot`.
    pub(in crate::http) fn of_snapshot(&mut self, snapshot: &ServingBufferSnapshot) -> Vec<TokenLogprob> {
        let fresh = if self.are_wanted { self.progress.fresh(snapshot) } else { None };
        fresh.map(|tokens| token_logprobs(self.frontend.text(), tokens)).unwrap_or_default()
    }
}
