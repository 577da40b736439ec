//! The log line of an accepted request: one, when all of its choices have ended for their reader, or been left by it.
//!
//! Written on the reader's thread, so that routing events waits for no log. Everything in it is ours: ids, names of
//! routes and reasons, numbers. Where the request has a trace, its spans are written at the same moment. Never here: requests
//! that were not accepted, which their route refuses.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use diffulex_protocol::{ErrorCode, ServingReply};

use super::locks::lock;
use super::outcome::Outcome;
use super::request_spans;
use crate::observe::telemetry::error_label;
use crate::observe::traces::RequestTrace;

/// A share of a request's line: of a choice, or of whoever submits more of them.
#[derive(Clone, Debug)]
pub struct RequestLog {
    line: Arc<Line>,
}

/// Written when the last share is dropped.
#[derive(Debug)]
struct Line {
    route: &'static str,
    trace: Option<RequestTrace>,
    outcome: Mutex<Outcome>,
}

impl RequestLog {
    /// The line of a request, written once it has a choice.
    pub(super) fn new(route: &'static str, trace: Option<RequestTrace>) -> Self {
        Self { line: Arc::new(Line { route, trace, outcome: Mutex::new(Outcome::new(Instant::now())) }) }
    }

    /// More prompts are ids: so many that the client gave.
    pub(super) fn note_prompts(&self, n_tokens: usize) {
        let mut outcome = lock(&self.line.outcome);
        outcome.n_prompt_tokens += n_tokens;
        if self.line.trace.is_some() {
            outcome.tokenised.get_or_insert_with(Instant::now);
        }
    }

    /// The share of one more choice, `rid`.
    pub(super) fn add_choice(&self, rid: &str) -> Self {
        lock(&self.line.outcome).add_choice(rid);
        self.clone()
    }

    /// The reader has something.
    pub(super) fn note_event(&self) {
        lock(&self.line.outcome).note_event();
    }

    /// The reader has the answer, which came at `arrived`.
    pub(super) fn note_reply(&self, reply: &ServingReply, arrived: Option<Instant>) {
        lock(&self.line.outcome).note_reply(reply, arrived);
    }

    /// The reader has the error.
    pub(super) fn note_error(&self, code: ErrorCode) {
        lock(&self.line.outcome).note_error(code);
    }

    /// The error is the whole answer, with this status.
    pub(super) fn note_status(&self, status: u16) {
        lock(&self.line.outcome).note_status(status);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Self { route, trace, outcome } = self;
        let outcome = outcome.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if outcome.n_choices == 0 {
            return;
        }
        if let Some(trace) = trace {
            request_spans::end(trace, outcome);
        }
        let (word, status) = outcome.verdict();
        tracing::info!(
            id = %outcome.rid,
            route = %route,
            status,
            finish = outcome.finish.map(|reason| tracing::field::display(reason.as_str())),
            error = outcome.error.map(|code| tracing::field::display(error_label(code))),
            choices = (outcome.n_choices > 1).then_some(outcome.n_choices),
            prompt_tokens = outcome.n_prompt_tokens as u64,
            answer_tokens = outcome.n_answer_tokens,
            nfe = outcome.nfe,
            queue_ms = outcome.has_answer().then(|| milliseconds(outcome.queue)),
            first_ms = outcome.first.map(milliseconds),
            total_ms = milliseconds(outcome.accepted.elapsed()),
            trace_id = trace.as_ref().map(|trace| tracing::field::display(trace.trace_id())),
            "{word}"
        );
    }
}

/// To a tenth.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}
