//! Errors as they leave: written in the form of the client's interface, and of requests that were refused a line in the log
//! with the status, the code and the reason that the client gets.
//!
//! Accepted requests have their own line, in the front end. Refusing costs a client nothing, so there is a limit to how
//! many lines a second refusals are worth; those beyond it are counted. Never here: what is refused, and why.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::response::Response;

use super::error::{self, ApiError, ErrorForm};
use crate::draws::Draws;
use crate::traces::TraceId;

/// Lines of refusals a second. Chosen by us: every mistake of a person who tries requests, and 2 MB an hour at worst.
const LINES_PER_SECOND: u32 = 5;

/// Bytes of a stranger's text in a line. Chosen by us: longer than every reason that does not repeat the request.
const MAX_TEXT_BYTES: usize = 200;

/// A request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Draws the ids of requests that bring none, and limits the lines.
#[derive(Default)]
pub(super) struct Outermost {
    draws: Draws,
    log: RefusalLog,
}

/// How many lines this second has had.
#[derive(Default)]
struct RefusalLog(Mutex<Second>);

#[derive(Default)]
struct Second {
    start: Option<Instant>,
    n_lines: u32,
    /// Refusals since the last line that had none.
    n_silent: u64,
}

impl RefusalLog {
    /// How many refusals have had no line since the last one, if this one may have a line.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut second = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if second.start.is_none_or(|start| now.saturating_duration_since(start) >= Duration::from_secs(1)) {
            second.start = Some(now);
            second.n_lines = 0;
        }
        if second.n_lines == LINES_PER_SECOND {
            second.n_silent += 1;
            return None;
        }
        second.n_lines += 1;
        Some(std::mem::take(&mut second.n_silent))
    }
}

/// The parts of a request that its response and the log need.
pub(super) struct Head {
    method: Method,
    uri: Uri,
    id: Option<HeaderValue>,
}

impl Outermost {
    /// The head of `request`, with an id.
    pub(super) fn head(&self, request: &Request) -> Head {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let id = request.headers().get(REQUEST_ID).cloned().or_else(|| self.draws.id().try_into().ok());
        Head { method, uri, id }
    }

    /// `response` with the request's id; an error is written in the form of the client's interface, and logged or counted.
    pub(super) fn report(&self, head: Head, mut response: Response) -> Response {
        let Head { method, uri, id } = head;
        let status = response.status().as_u16();
        let error = response.extensions_mut().remove::<ApiError>();
        if let Some(error) = &error {
            let id = id.as_ref().and_then(|id| id.to_str().ok());
            error::write_body(&mut response, error, ErrorForm::of_path(uri.path()), id);
        }
        if let Some(id) = id {
            response.headers_mut().entry(REQUEST_ID).or_insert(id);
        }
        let Some(refusal) = error.filter(|error| !error.was_accepted()) else {
            tracing::debug!(%method, path = start_of(uri.path()), status, "served");
            return response;
        };
        if let Some(not_logged) = self.log.admit(Instant::now()) {
            // As strings, which log lines quote and escape.
            let (method, route) = (start_of(method.as_str()), start_of(uri.path()));
            let reason = start_of(refusal.message());
            let trace_id = response.extensions().get::<TraceId>().map(tracing::field::display);
            tracing::info!(method, route, status, code = %refusal.code(), reason, not_logged, trace_id, "refused");
        }
        response
    }
}

/// As much of a stranger's text as a line of the log takes.
pub(super) fn start_of(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_limit_refusals_are_counted_until_the_next_second() {
        let log = RefusalLog::default();
        let start = Instant::now();
        for _ in 0..LINES_PER_SECOND {
            assert_eq!(log.admit(start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(log.admit(start + Duration::from_millis(900)), None);
        }
        assert_eq!(log.admit(start + Duration::from_secs(1)), Some(7));
        assert_eq!(log.admit(start + Duration::from_secs(1)), Some(0));
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(start_of("short"), "short");
        assert_eq!(start_of(&"é".repeat(150)).len(), MAX_TEXT_BYTES);
        assert_eq!(start_of(&format!("a{}", "é".repeat(150))).len(), MAX_TEXT_BYTES - 1);
    }
}
