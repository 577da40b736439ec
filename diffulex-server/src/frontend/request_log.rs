//! The log line of an accepted request: one, when all of its choices have ended for their reader, or been left by it.
//!
//! Written on the reader's thread, so that routing events waits for no log. Everything in it is ours: ids, names of
//! routes and reasons, numbers. Never here: requests that were not accepted, which their route refuses.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use diffulex_protocol::{ErrorCode, FinishReason, ServingReply};

use super::lock;
use crate::telemetry::error_label;

/// A status that no client receives, as nginx writes it: the client left before the end.
const CLIENT_LEFT: u16 = 499;

/// Status of an answer, and of a stream that failed after its headers.
const OK: u16 = 200;

/// A choice's share of its request's line.
#[derive(Clone)]
pub(super) struct RequestLog {
    line: Arc<Line>,
}

/// Written when the last choice drops it.
struct Line {
    route: &'static str,
    n_prompt_tokens: usize,
    accepted: Instant,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    /// Of the first choice, which the client knows all of them by.
    rid: String,
    n_choices: u32,
    n_answered: u32,
    /// Of the first choice that ended with an answer.
    finish: Option<FinishReason>,
    error: Option<ErrorCode>,
    /// The status of an error that came before the headers.
    status: Option<u16>,
    n_prompt_tokens: u32,
    n_answer_tokens: u32,
    nfe: u32,
    queue: Duration,
    /// Until the first event.
    first: Option<Duration>,
}

impl RequestLog {
    /// The line of a request, written once it has a choice.
    pub(super) fn new(route: &'static str, n_prompt_tokens: usize, accepted: Instant) -> Self {
        Self { line: Arc::new(Line { route, n_prompt_tokens, accepted, outcome: Mutex::default() }) }
    }

    /// The share of one more choice, `rid`.
    pub(super) fn add_choice(&self, rid: &str) -> Self {
        let mut outcome = lock(&self.line.outcome);
        if outcome.n_choices == 0 {
            rid.clone_into(&mut outcome.rid);
        }
        outcome.n_choices += 1;
        self.clone()
    }

    /// The reader has something.
    pub(super) fn note_event(&self) {
        let mut outcome = lock(&self.line.outcome);
        if outcome.first.is_none() {
            outcome.first = Some(self.line.accepted.elapsed());
        }
    }

    /// The reader has the answer.
    pub(super) fn note_reply(&self, reply: &ServingReply) {
        let mut outcome = lock(&self.line.outcome);
        outcome.n_answered += 1;
        outcome.finish.get_or_insert(reply.finish_reason);
        outcome.n_prompt_tokens = reply.prompt_tokens;
        outcome.n_answer_tokens += reply.written_tokens();
        outcome.nfe += reply.nfe;
        let queue = Duration::try_from_secs_f64(reply.queue_time_s).unwrap_or_default();
        outcome.queue = outcome.queue.max(queue);
    }

    /// The reader has the error.
    pub(super) fn note_error(&self, code: ErrorCode) {
        lock(&self.line.outcome).error.get_or_insert(code);
    }

    /// The error is the whole answer, with this status.
    pub(super) fn note_status(&self, status: u16) {
        lock(&self.line.outcome).status.get_or_insert(status);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Self { route, n_prompt_tokens, accepted, outcome } = self;
        let outcome = outcome.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if outcome.n_choices == 0 {
            return;
        }
        let is_complete = outcome.n_answered == outcome.n_choices;
        let (word, status) = match (outcome.error, is_complete) {
            (Some(_), _) => ("failed", outcome.status.unwrap_or(OK)),
            (None, true) => ("answered", OK),
            (None, false) => ("cancelled", CLIENT_LEFT),
        };
        let has_answer = outcome.n_answered > 0;
        tracing::info!(
            id = %outcome.rid,
            route = %route,
            status,
            finish = outcome.finish.map(|reason| tracing::field::display(reason.as_str())),
            error = outcome.error.map(|code| tracing::field::display(error_label(code))),
            choices = (outcome.n_choices > 1).then_some(outcome.n_choices),
            prompt_tokens = if has_answer { u64::from(outcome.n_prompt_tokens) } else { *n_prompt_tokens as u64 },
            answer_tokens = outcome.n_answer_tokens,
            nfe = outcome.nfe,
            queue_ms = has_answer.then(|| milliseconds(outcome.queue)),
            first_ms = outcome.first.map(milliseconds),
            total_ms = milliseconds(accepted.elapsed()),
            "{word}"
        );
    }
}

/// To a tenth.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}
