//! The server of `--speech-upstream`: what is sent to it, which of its answers are passed on, and how long they may take.
//!
//! An answer is passed on if it is sound of status 200, and nothing else: what a server says here is read by pages of this
//! server's origin. Never here: the check of a request's body.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use reqwest::Url;
use serde_json::Value;
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream;

use crate::frontend::{Frontend, PassedOn, Requester};
use crate::http::answer::error::ApiError;
use crate::observe::telemetry::{CallOutcome, Telemetry};
use crate::outbound::secrets::{SecretKey, SecretUrl};
use crate::outbound::{self, AnswerError, ClientError};

/// Longest wait for a connection. Chosen by us: the server is near, or it is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// OpenAI's route.
const ROUTE: &str = "/v1/audio/speech";

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Headers of a request that are sent on. Keys and cookies are the client's own.
const SENT: [HeaderName; 5] = [header::ACCEPT, header::ACCEPT_ENCODING, REQUEST_ID, TRACEPARENT, TRACESTATE];

/// Headers of an answer that are passed on; the last three are SGLang-Omni's.
const PASSED: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::CONTENT_DISPOSITION,
    HeaderName::from_static("x-prompt-tokens"),
    HeaderName::from_static("x-completion-tokens"),
    HeaderName::from_static("x-engine-time"),
];

/// Where requests for speech are passed on to.
#[derive(Clone, Debug)]
pub struct SpeechOptions {
    /// Another server with OpenAI's route.
    pub url: SecretUrl,
    /// Its key.
    pub key: Option<SecretKey>,
    /// Certificates that it is trusted by; `None` is the system's.
    pub authority: Option<PathBuf>,
    /// Requests that it answers at the same time at most; each takes a file descriptor.
    pub max_calls: usize,
}

/// Another server that speaks.
#[derive(Debug)]
pub(in crate::http) struct SpeechUpstream {
    client: reqwest::Client,
    url: Url,
    key: Option<SecretKey>,
    max_calls: usize,
}

impl SpeechUpstream {
    pub(in crate::http) fn new(options: &SpeechOptions) -> Result<Self, ClientError> {
        let SpeechOptions { url, key, authority, max_calls } = options;
        let client = outbound::client(url, authority.as_deref())?.connect_timeout(CONNECT_TIMEOUT).build()?;
        Ok(Self { client, url: url.at(ROUTE), key: key.clone(), max_calls: *max_calls })
    }

    /// Its answer to `body`, of a client that sent `headers`, as it comes.
    pub(super) async fn pass_on(
        &self,
        frontend: &Frontend,
        requester: Requester,
        headers: &HeaderMap,
        body: &Value,
    ) -> Result<Response, ApiError> {
        let telemetry = frontend.telemetry();
        let place = frontend.pass_on(self.max_calls).inspect_err(|_| telemetry.count_call(CallOutcome::Refused))?;
        let mut call = Call {
            telemetry: Arc::clone(telemetry),
            outcome: CallOutcome::Cancelled,
            start: Instant::now(),
            n_bytes: 0,
            requester,
            _place: place,
        };
        let limit = frontend.request_timeout();
        let answer = self.answer(headers, body);
        let answered = match limit {
            Some(limit) => tokio::time::timeout(limit, answer).await.unwrap_or(Err(CallError::TimedOut(limit))),
            None => answer.await,
        };
        match answered {
            Ok(answer) => Ok(passed(answer, call, limit)),
            Err(error) => {
                call.outcome = error.outcome();
                Err(error.into())
            }
        }
    }

    /// The head of an answer that may be passed on.
    async fn answer(&self, headers: &HeaderMap, body: &Value) -> Result<reqwest::Response, CallError> {
        let mut sent: HeaderMap =
            SENT.iter().filter_map(|name| Some((name.clone(), headers.get(name)?.clone()))).collect();
        sent.entry(header::ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
        let accepted = sent[header::ACCEPT_ENCODING].clone();
        if let Some(key) = &self.key {
            sent.insert(header::AUTHORIZATION, key.bearer());
        }
        let answer = self.client.post(self.url.clone()).headers(sent).json(body).send().await?;
        match answer.status() {
            StatusCode::OK => {}
            status @ (StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY) => {
                return Err(refusal(status, answer).await?);
            }
            status => return Err(CallError::Status(status)),
        }
        check_kind(answer.headers(), wants_events(body))?;
        check_encoding(answer.headers(), &accepted)?;
        Ok(answer)
    }
}

/// An answer that is not passed on.
#[derive(Debug, thiserror::Error)]
enum CallError {
    /// It did not come.
    #[error("the speech server does not answer")]
    NoAnswer(#[from] AnswerError),
    /// It did not come in time.
    #[error("the speech server did not answer within {} s (--request-timeout-seconds)", .0.as_secs_f64())]
    TimedOut(Duration),
    /// Another status.
    #[error("the speech server answers {0}")]
    Status(StatusCode),
    /// Another kind, or of none.
    #[error("the speech server's answer is not sound: its content-type is {0}")]
    Kind(String),
    /// In a coding that the client does not read.
    #[error("the speech server's answer has the content-encoding {0:?}, which was not asked for")]
    Encoding(String),
    /// The request's body is wrong for that server.
    #[error("the speech server refuses the request: {0}")]
    Refused(String),
}

impl From<reqwest::Error> for CallError {
    fn from(error: reqwest::Error) -> Self {
        Self::NoAnswer(error.into())
    }
}

impl CallError {
    fn outcome(&self) -> CallOutcome {
        match self {
            Self::TimedOut(_) => CallOutcome::TimedOut,
            Self::NoAnswer(_) | Self::Status(_) | Self::Kind(_) | Self::Encoding(_) | Self::Refused(_) => {
                CallOutcome::Failed
            }
        }
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        let (status, code) = match &error {
            CallError::TimedOut(_) => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            CallError::Refused(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            CallError::NoAnswer(why) => {
                // The client is not told where the upstream is.
                tracing::warn!(error = %why, "the speech upstream did not answer");
                (StatusCode::BAD_GATEWAY, "upstream_failed")
            }
            CallError::Status(_) | CallError::Kind(_) | CallError::Encoding(_) => {
                (StatusCode::BAD_GATEWAY, "upstream_failed")
            }
        };
        Self::new(status, code, error.to_string())
    }
}

/// Events are asked for: by OpenAI's field, or by SGLang-Omni's.
fn wants_events(body: &Value) -> bool {
    body["stream_format"] == "sse" || body["stream"] == true
}

/// The media type of a body: small letters, no parameters. `None` where there is not exactly one.
fn essence(headers: &HeaderMap) -> Option<String> {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let kind = kinds.next()?.to_str().ok()?;
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kinds.next().is_none().then_some(essence)
}

fn check_kind(headers: &HeaderMap, wants_events: bool) -> Result<(), CallError> {
    let Some(essence) = essence(headers) else { return Err(CallError::Kind("not given once".to_owned())) };
    let is_sound = essence.starts_with("audio/") || essence == "application/octet-stream";
    if is_sound || wants_events && essence == "text/event-stream" {
        return Ok(());
    }
    Err(CallError::Kind(format!("{:?}", outbound::excerpt(&essence))))
}

fn check_encoding(headers: &HeaderMap, accepted: &HeaderValue) -> Result<(), CallError> {
    let accepted = accepted.to_str().unwrap_or_default().to_ascii_lowercase();
    let takes = |coding: &str| {
        accepted
            .split(',')
            .any(|one| matches!(one.split(';').next(), Some(name) if name.trim() == coding || name.trim() == "*"))
    };
    for value in headers.get_all(header::CONTENT_ENCODING) {
        let codings = value.to_str().unwrap_or("?").to_ascii_lowercase();
        if !codings.split(',').map(str::trim).all(|coding| coding == "identity" || takes(coding)) {
            return Err(CallError::Encoding(outbound::excerpt(&codings).to_owned()));
        }
    }
    Ok(())
}

/// The upstream's word about a body that it refuses; one without words, as of a proxy, is a failure of its own.
async fn refusal(status: StatusCode, answer: reqwest::Response) -> Result<CallError, CallError> {
    if essence(answer.headers()).as_deref() != Some("application/json") {
        return Err(CallError::Status(status));
    }
    let body: Value = match outbound::read(answer).await {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        Err(AnswerError::TooLarge) => Value::Null,
        Err(error @ AnswerError::Http(_)) => return Err(error.into()),
    };
    // OpenAI's, Ollama's, FastAPI's of a text and of a list, and plain ones.
    let words = ["/error/message", "/error", "/detail", "/detail/0/msg", "/message"];
    let words = words.iter().find_map(|place| body.pointer(place)?.as_str());
    let Some(words) = words else { return Err(CallError::Status(status)) };
    let field = body.pointer("/detail/0/loc").and_then(Value::as_array).and_then(|place| place.last()?.as_str());
    let field = field.map(|field| format!("{}: ", outbound::excerpt(field))).unwrap_or_default();
    Ok(CallError::Refused(format!("{field}{}", outbound::excerpt(words))))
}

/// A request that is being passed on.
struct Call {
    telemetry: Arc<Telemetry>,
    /// If it ended now.
    outcome: CallOutcome,
    start: Instant,
    /// Of the answer.
    n_bytes: u64,
    /// Its key counts it until it has ended.
    requester: Requester,
    _place: PassedOn,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.telemetry.count_call(self.outcome);
        let total_ms = (self.start.elapsed().as_secs_f64() * 1e4).round() / 10.0;
        // Refusals have lines that tell more.
        if self.n_bytes > 0 || matches!(self.outcome, CallOutcome::Answered | CallOutcome::Cancelled) {
            let client = self.requester.client.map(tracing::field::display);
            let key = self.requester.key.as_ref().map(|key| tracing::field::display(key.name()));
            tracing::info!(client, key, route = %ROUTE, outcome = %self.outcome.as_str(), bytes = self.n_bytes, total_ms, "passed on");
        }
    }
}

/// The answer to the client.
fn passed(answer: reqwest::Response, call: Call, limit: Option<Duration>) -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    for name in PASSED {
        for value in answer.headers().get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let deadline = limit.map(|limit| Box::pin(tokio::time::sleep_until(call.start + limit)));
    let length = answer.content_length();
    *response.body_mut() = Body::from_stream(Sound { bytes: Box::pin(answer.bytes_stream()), length, call, deadline });
    response
}

/// An answer's body, which breaks off if the upstream does, and when its time is over.
struct Sound<S> {
    bytes: Pin<Box<S>>,
    /// As the upstream declares it; nothing is asked for beyond.
    length: Option<u64>,
    call: Call,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S: Stream<Item = reqwest::Result<Bytes>>> Stream for Sound<S> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(deadline) = &mut this.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            this.call.outcome = CallOutcome::TimedOut;
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        this.bytes.as_mut().poll_next(context).map(|next| match next {
            Some(Ok(bytes)) => {
                this.call.n_bytes += bytes.len() as u64;
                if this.length == Some(this.call.n_bytes) {
                    this.call.outcome = CallOutcome::Answered;
                }
                Some(Ok(bytes))
            }
            Some(Err(error)) => {
                tracing::warn!(error = %AnswerError::from(error), "the speech upstream broke off");
                this.call.outcome = CallOutcome::Failed;
                Some(Err(io::ErrorKind::ConnectionAborted.into()))
            }
            None => {
                this.call.outcome = CallOutcome::Answered;
                None
            }
        })
    }
}
