//! Errors as they leave: written in the form of the client's interface, and of requests that were refused a line in the log
//! with the status, the code and the reason that the client gets.
//!
//! Accepted requests have their own line, in the front end. Refusing costs a client nothing, so there is a limit to how
//! many lines a second refusals are worth; those beyond it are counted. Never here: what is refused, and why.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::response::Response;

use crate::frontend::{ClientAddress, RequestId};
use crate::http::answer::error::{self, ApiError, ErrorForm};
use crate::observe::traces::TraceId;
use crate::os::draws::Draws;
use crate::os::locks::lock;

/// Lines of refusals a second. Chosen by us: every mistake of a person who tries requests, and 2 MB an hour at worst.
const LINES_PER_SECOND: u32 = 5;

/// Bytes of a stranger's text in a line. Chosen by us: longer than every reason that does not repeat the request.
const MAX_TEXT_BYTES: usize = 200;

/// A request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The same where Anthropic's clients look for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Draws the ids of requests that bring none, and limits the lines.
#[derive(Default)]
pub(in crate::http) struct Outermost {
    draws: Draws,
    log: RefusalLog,
}

/// Limit of lines a second.
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
    /// Returns the number of refusals without a line since the last one, if this one may have a line.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut second = lock(&self.0);
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
pub(in crate::http) struct Head {
    method: Method,
    uri: Uri,
    /// Error form of its interface.
    form: ErrorForm,
    id: RequestId,
    /// Where it comes from, if that is known.
    pub(in crate::http) client: Option<ClientAddress>,
    /// The name of its key, once that is known.
    pub(in crate::http) key: Option<Arc<str>>,
}

impl Head {
    /// The request's id, which its answer has, too.
    pub(in crate::http) fn id(&self) -> &RequestId {
        &self.id
    }
}

impl Outermost {
    /// The head of `request`, with an id.
    pub(in crate::http) fn head(&self, request: &Request) -> Head {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let given = request.headers().get(REQUEST_ID).and_then(|id| RequestId::given(id.to_str().ok()?));
        let id = given.unwrap_or_else(|| RequestId::made(self.draws.rid()));
        let form = ErrorForm::of_request(uri.path(), request.headers());
        Head { method, uri, form, id, client: None, key: None }
    }

    /// `response` with the request's id; an error is written in the form of the client's interface, and logged or counted.
    pub(in crate::http) fn report(&self, head: Head, mut response: Response) -> Response {
        let Head { method, uri, form, id, client, key } = head;
        let status = response.status().as_u16();
        let error = response.extensions_mut().remove::<ApiError>();
        if let Some(error) = &error {
            error::write_body(&mut response, error, form, Some(id.as_str()));
        }
        // Ids are plain text, which a header always holds.
        if let Ok(id) = HeaderValue::from_str(id.as_str()) {
            if form == ErrorForm::Anthropic {
                response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id.clone());
            }
            response.headers_mut().insert(REQUEST_ID, id);
        }
        let Some(refusal) = error.filter(|error| !error.was_accepted()) else {
            tracing::debug!(id = %id.as_str(), %method, path = start_of(uri.path()), status, "served");
            return response;
        };
        if let Some(not_logged) = self.log.admit(Instant::now()) {
            // As strings, which log lines quote and escape.
            let (method, route) = (start_of(method.as_str()), start_of(uri.path()));
            // Values may be secrets that came in the wrong field, and prompts.
            let reason = match tracing::enabled!(tracing::Level::DEBUG) {
                true => refusal.message().to_owned(),
                false => without_values(refusal.message()),
            };
            let reason = start_of(&reason);
            let trace_id = response.extensions().get::<TraceId>().map(tracing::field::display);
            let (id, code) = (tracing::field::display(id.as_str()), tracing::field::display(refusal.code()));
            let client = client.map(tracing::field::display);
            let key = key.as_deref().map(tracing::field::display);
            tracing::info!(id, client, key, method, route, status, code, reason, not_logged, trace_id, "refused");
        }
        response
    }
}

/// A message with the kind of each value that it quotes in place of the value.
fn without_values(message: &str) -> String {
    let mut kept = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(start) = rest.find('"') {
        let (before, quoted) = rest.split_at(start);
        kept.push_str(before);
        kept.push_str("<string>");
        let mut is_escaped = false;
        let end = quoted.char_indices().skip(1).find(|(_, character)| {
            let is_end = *character == '"' && !is_escaped;
            is_escaped = *character == '\\' && !is_escaped;
            is_end
        });
        rest = end.map_or("", |(end, _)| &quoted[end + 1..]);
    }
    kept.push_str(rest);
    let Some((before, got)) = kept.rsplit_once("got ") else { return kept };
    let number = got.find(|character: char| !matches!(character, '0'..='9' | '-' | '+' | '.' | 'e'));
    match number.unwrap_or(got.len()) {
        0 => kept,
        end => format!("{before}got <number>{}", &got[end..]),
    }
}

/// The start of a stranger's text, as long as the log takes.
pub(in crate::http) fn start_of(text: &str) -> &str {
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
    fn a_line_has_the_kinds_of_values_in_their_place() {
        for (message, line) in [
            ("n must be between 1 and 8, got 9", "n must be between 1 and 8, got <number>"),
            ("seed must be an integer, got -1.5e39 (x)", "seed must be an integer, got <number> (x)"),
            ("stop takes at most 16 strings, got 17", "stop takes at most 16 strings, got <number>"),
            ("n must be true, got \"hunter2\"", "n must be true, got <string>"),
            ("a \"x\\\"hunter2\\\\\" b \"y\" c", "a <string> b <string> c"),
            ("a \"hunter2", "a <string>"),
            ("no value", "no value"),
            ("it must be a list, got an object", "it must be a list, got an object"),
        ] {
            assert_eq!(without_values(message), line);
        }
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(start_of("short"), "short");
        assert_eq!(start_of(&"é".repeat(150)).len(), MAX_TEXT_BYTES);
        assert_eq!(start_of(&format!("a{}", "é".repeat(150))).len(), MAX_TEXT_BYTES - 1);
    }
}
