//! The log line of an accepted request: one, when its reader has the end, or goes before it.
//!
//! Written on the reader's thread, so that routing events waits for no log. Everything in it is ours: ids, names of
//! routes and reasons, numbers. Never here: requests that were not accepted, which their route refuses.

use super::request_state::{RequestState, StreamEvent};
use crate::telemetry::error_label;

pub(super) struct RequestLog {
    route: &'static str,
    n_prompt_tokens: usize,
    is_written: bool,
}

impl RequestLog {
    pub(super) fn new(route: &'static str, n_prompt_tokens: usize) -> Self {
        Self { route, n_prompt_tokens, is_written: false }
    }

    /// Writes the line if `event` is the end.
    pub(super) fn note(&mut self, state: &RequestState, event: &StreamEvent) {
        self.is_written |= matches!(event, StreamEvent::Reply(_) | StreamEvent::Error(_));
        match event {
            StreamEvent::Delta(_) | StreamEvent::Snapshot(_) => {}
            StreamEvent::Reply(reply) => tracing::info!(
                id = %state.public_id(),
                route = %self.route,
                finish = %reply.finish_reason.as_str(),
                prompt_tokens = reply.prompt_tokens,
                answer_tokens = reply.written_tokens(),
                nfe = reply.nfe,
                queue_ms = %format_args!("{:.1}", reply.queue_time_s * 1e3),
                total_ms = %total_ms(state),
                "answered"
            ),
            StreamEvent::Error(error) => tracing::info!(
                id = %state.public_id(),
                route = %self.route,
                error = %error_label(error.code),
                prompt_tokens = self.n_prompt_tokens,
                total_ms = %total_ms(state),
                "failed"
            ),
        }
    }

    /// Writes the line of a request whose reader goes before the end: its client left, or another of its choices failed.
    pub(super) fn close(&self, state: &RequestState) {
        if self.is_written {
            return;
        }
        tracing::info!(
            id = %state.public_id(),
            route = %self.route,
            prompt_tokens = self.n_prompt_tokens,
            total_ms = %total_ms(state),
            "cancelled"
        );
    }
}

/// Milliseconds since the request was accepted, to a tenth.
fn total_ms(state: &RequestState) -> impl std::fmt::Display {
    /// Writes itself, so that nothing is allocated.
    struct Tenths(f64);

    impl std::fmt::Display for Tenths {
        fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(formatter, "{:.1}", self.0)
        }
    }

    Tenths(state.accepted.elapsed().as_secs_f64() * 1e3)
}
