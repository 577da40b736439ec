//! The parts that answers of all generation routes share: JSON objects written field by field, usage, the report of a
//! diffusion model, the wait for a reply.
//!
//! Never here: a route's shape.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use diffulex_engine::TextModel;
use diffulex_protocol::{
    Alternatives, ConstraintReport, FinishReason, ServingBufferSnapshot, ServingDelta, ServingReply,
};
use serde::Serialize;

use crate::frontend::{EventStream, StreamEvent};
use crate::http::answer::error::ApiError;

/// Tokens, as OpenAI counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(in crate::http) struct Usage {
    /// Of the prompt.
    pub(in crate::http) prompt_tokens: u32,
    /// Of the answer.
    pub(in crate::http) completion_tokens: u32,
    /// Of both.
    pub(in crate::http) total_tokens: u32,
    /// Where they came from.
    pub(in crate::http) prompt_tokens_details: PromptTokensDetails,
    /// What they are; absent where thoughts are not told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) completion_tokens_details: Option<CompletionTokensDetails>,
}

/// OpenAI's breakdown of prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(in crate::http) struct PromptTokensDetails {
    /// Found in the prefix cache.
    pub(in crate::http) cached_tokens: u32,
}

/// OpenAI's breakdown of an answer's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(in crate::http) struct CompletionTokensDetails {
    /// Of thoughts, with their marks.
    pub(in crate::http) reasoning_tokens: u32,
}

impl CompletionTokensDetails {
    /// Both together; `None` without either.
    fn sum(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let reasoning_tokens = [one, other].into_iter().flatten().map(|details| details.reasoning_tokens);
        reasoning_tokens.reduce(|one, other| one + other).map(|reasoning_tokens| Self { reasoning_tokens })
    }
}

impl Usage {
    /// The usage of one reply.
    pub(in crate::http) fn of(reply: &ServingReply) -> Self {
        let completion_tokens = reply.written_tokens();
        Self {
            prompt_tokens: reply.prompt_tokens,
            completion_tokens,
            total_tokens: reply.prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: reply.cached_tokens },
            completion_tokens_details: None,
        }
    }

    /// Adds another prompt with its choices.
    pub(in crate::http) fn add_prompt(&mut self, prompt: Self) {
        self.prompt_tokens += prompt.prompt_tokens;
        self.completion_tokens += prompt.completion_tokens;
        self.total_tokens += prompt.total_tokens;
        self.prompt_tokens_details.cached_tokens += prompt.prompt_tokens_details.cached_tokens;
        self.add_details(prompt.completion_tokens_details);
    }

    /// One prompt with several choices: the prompt counts once, as OpenAI does.
    pub(in crate::http) fn add_choice(&mut self, choice: Self) {
        self.prompt_tokens = choice.prompt_tokens;
        self.completion_tokens += choice.completion_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
        self.prompt_tokens_details = choice.prompt_tokens_details;
        self.add_details(choice.completion_tokens_details);
    }

    /// Adds what the tokens of another answer are.
    pub(in crate::http) fn add_details(&mut self, details: Option<CompletionTokensDetails>) {
        self.completion_tokens_details = CompletionTokensDetails::sum(self.completion_tokens_details, details);
    }
}

/// The `diffulex` object of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::http) struct DiffusionReport {
    /// Forward passes charged.
    pub(in crate::http) nfe: u32,
    /// Of them: denoised a block.
    pub(in crate::http) nfe_denoise: u32,
    /// Of them: encoded the prompt only.
    pub(in crate::http) nfe_prefill: u32,
    /// Of them: wrote K/V of finished blocks only.
    pub(in crate::http) nfe_commit: u32,
    /// Of them: scored a token of the prompt; absent where that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) nfe_score: Option<u32>,
    /// Beside them: wrote K/V again after a preemption.
    pub(in crate::http) nfe_rebuild: u32,
    /// Tokens of the answer per denoise or commit forward; absent when there was none.
    pub(in crate::http) tokens_per_forward: Option<f64>,
    /// The engine's own reason.
    pub(in crate::http) finish_reason: FinishReason,
    /// Prompt tokens found in the prefix cache.
    pub(in crate::http) cached_tokens: u32,
    /// The seed that draws this text again.
    pub(in crate::http) seed: Option<u64>,
    /// Seconds from the worker's receipt to the first forward.
    pub(in crate::http) queue_time_s: f64,
    /// Seconds of the steps the request took part in.
    pub(in crate::http) engine_decode_time_s: f64,
    /// Times the request lost its pages.
    pub(in crate::http) preemptions: u32,
    /// What the constraint was and did; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) constraint: Option<ConstraintReport>,
}

impl DiffusionReport {
    /// The report of one reply.
    pub(in crate::http) fn of(reply: &ServingReply) -> Self {
        let counts = reply.nfe_counts;
        let n_forwards = counts.decoding();
        Self {
            nfe: reply.nfe,
            nfe_denoise: counts.denoise,
            nfe_prefill: counts.prefill,
            nfe_commit: counts.commit,
            nfe_score: reply.prompt_scores.as_ref().map(|scores| scores.nfe),
            nfe_rebuild: counts.rebuild,
            tokens_per_forward: (n_forwards > 0).then(|| f64::from(reply.written_tokens()) / f64::from(n_forwards)),
            finish_reason: reply.finish_reason,
            cached_tokens: reply.cached_tokens,
            seed: reply.seed,
            queue_time_s: reply.queue_time_s,
            engine_decode_time_s: reply.engine_decode_time_s,
            preemptions: reply.preemptions,
            constraint: reply.constraint.clone(),
        }
    }
}

/// One entry of chat's `logprobs.content`: a token and the logarithm of its probability when it was committed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::http) struct TokenLogprob {
    /// The token decoded alone.
    pub(in crate::http) token: String,
    /// Natural logarithm, 0 at most.
    pub(in crate::http) logprob: f32,
    /// The token's bytes; where it is a part of a character, that part.
    pub(in crate::http) bytes: Vec<u8>,
    /// The likeliest tokens at its place, in falling order, as many as were asked for.
    pub(in crate::http) top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest tokens at a place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::http) struct TopLogprob {
    /// As [`TokenLogprob`]'s.
    pub(in crate::http) token: String,
    /// As [`TokenLogprob`]'s.
    pub(in crate::http) logprob: f32,
    /// As [`TokenLogprob`]'s.
    pub(in crate::http) bytes: Vec<u8>,
}

/// Tokens with what is reported of each.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct ReportedTokens<'a> {
    pub(in crate::http) ids: &'a [u32],
    /// Probability of each.
    confidences: &'a [f32],
    /// The likeliest at the place of each; empty if they were not asked for.
    alternatives: &'a [Alternatives],
}

impl ReportedTokens<'_> {
    /// Alternatives were asked for.
    pub(in crate::http) fn has_alternatives(&self) -> bool {
        !self.alternatives.is_empty()
    }
}

impl<'a> From<&'a ServingReply> for ReportedTokens<'a> {
    fn from(reply: &'a ServingReply) -> Self {
        Self { ids: &reply.token_ids, confidences: &reply.confidences, alternatives: &reply.alternatives }
    }
}

impl<'a> From<&'a ServingDelta> for ReportedTokens<'a> {
    fn from(delta: &'a ServingDelta) -> Self {
        Self { ids: &delta.token_ids, confidences: &delta.confidences, alternatives: &delta.alternatives }
    }
}

/// Count of the tokens of a streamed choice with reported probabilities.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct LogprobProgress {
    /// Tokens whose probabilities are.
    n_reported: u32,
}

impl LogprobProgress {
    /// The tokens that became final with this snapshot, and their probabilities.
    pub(in crate::http) fn fresh<'a>(&mut self, snapshot: &'a ServingBufferSnapshot) -> Option<ReportedTokens<'a>> {
        let first = self.n_reported.max(snapshot.token_offset);
        if snapshot.committed_len <= first {
            return None;
        }
        self.n_reported = snapshot.committed_len;
        let fresh = (first - snapshot.token_offset) as usize..(snapshot.committed_len - snapshot.token_offset) as usize;
        Some(ReportedTokens {
            ids: snapshot.token_ids.get(fresh.clone())?,
            confidences: snapshot.confidences.get(fresh.clone())?,
            alternatives: snapshot.alternatives.get(fresh).unwrap_or_default(),
        })
    }
}

/// Tokens with their probabilities.
pub(in crate::http) fn token_logprobs(text: &TextModel, tokens: ReportedTokens<'_>) -> Vec<TokenLogprob> {
    let of_token = |(index, (id, confidence)): (usize, (&u32, &f32))| {
        let TopLogprob { token, logprob, bytes } = logprob(text, *id, *confidence);
        let likeliest = tokens.alternatives.get(index).map(Vec::as_slice).unwrap_or_default();
        let top_logprobs = likeliest.iter().map(|(id, probability)| self::logprob(text, *id, *probability)).collect();
        TokenLogprob { token, logprob, bytes, top_logprobs }
    };
    tokens.ids.iter().zip(tokens.confidences).enumerate().map(of_token).collect()
}

fn logprob(text: &TextModel, id: u32, probability: f32) -> TopLogprob {
    let bytes = text.bytes(id);
    // A probability of exactly 0 would be -inf, which is no JSON number.
    let logprob = probability.max(f32::MIN_POSITIVE).ln();
    TopLogprob { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
}

/// Waits for the answers of all choices of a request that is not streamed. An error drops the others, which aborts them.
pub(in crate::http) async fn replies_of(streams: Vec<EventStream>) -> Result<Vec<ServingReply>, ApiError> {
    let mut replies = Vec::with_capacity(streams.len());
    for stream in streams {
        replies.push(reply_of(stream).await?);
    }
    Ok(replies)
}

/// Waits for the answer of a request of one choice that is not streamed.
pub(in crate::http) async fn only_reply(mut streams: Vec<EventStream>) -> Result<ServingReply, ApiError> {
    match streams.pop() {
        Some(stream) => reply_of(stream).await,
        None => Err(diffulex_engine::RequestError::engine("the request was not accepted").into()),
    }
}

/// Waits for the answer of a request that is not streamed.
pub(in crate::http) async fn reply_of(mut stream: EventStream) -> Result<ServingReply, ApiError> {
    while let Some(event) = stream.next_event().await {
        match event {
            StreamEvent::Reply(reply) => return Ok(*reply),
            StreamEvent::Error(error) => return Err(ApiError::of_event(error, &stream)),
            StreamEvent::Delta(_) | StreamEvent::Snapshot(_) => {}
        }
    }
    Err(diffulex_engine::RequestError::engine("the request ended without an answer").into())
}

/// Spacing of JSON in a frame or an answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) enum Spacing {
    /// As Python's `json.dumps` does; scripts search Diffulex's frames for `"event": "final"`.
    Python,
    /// None.
    Compact,
}

/// The first fields of objects, written.
#[derive(Debug, Default)]
pub(in crate::http) struct ObjectHead(Vec<u8>);

impl ObjectHead {
    /// The fields that `write` adds.
    pub(in crate::http) fn new(spacing: Spacing, write: impl FnOnce(&mut Fields<'_>)) -> Self {
        let mut bytes = Vec::new();
        write(&mut Fields { bytes: &mut bytes, spacing, needs_comma: false });
        Self(bytes)
    }

    /// The written fields, without the brace.
    pub(in crate::http) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The fields of an object under construction.
pub(in crate::http) struct Fields<'a> {
    bytes: &'a mut Vec<u8>,
    spacing: Spacing,
    needs_comma: bool,
}

impl<'a> Fields<'a> {
    /// Fields that follow others in `bytes`.
    pub(in crate::http) fn after_first(bytes: &'a mut Vec<u8>, spacing: Spacing) -> Self {
        Self { bytes, spacing, needs_comma: true }
    }

    /// Adds a field. Names are our own words, which need no escaping.
    pub(in crate::http) fn add(&mut self, name: &'static str, value: &(impl Serialize + ?Sized)) {
        self.add_name(name);
        write_json(self.bytes, self.spacing, value);
    }

    /// Adds a field, an object of the fields that `write` adds.
    pub(in crate::http) fn add_object(&mut self, name: &'static str, write: impl FnOnce(&mut Fields<'_>)) {
        self.add_name(name);
        write_object(self.bytes, self.spacing, &ObjectHead::default(), write);
    }

    fn add_name(&mut self, name: &str) {
        let (comma, colon): (&[u8], &[u8]) = match self.spacing {
            Spacing::Compact => (b",\"", b"\":"),
            Spacing::Python => (b", \"", b"\": "),
        };
        self.bytes.extend_from_slice(if self.needs_comma { comma } else { b"\"" });
        self.needs_comma = true;
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(colon);
    }

    /// [`Self::add`] of a value whose own spaces nobody looks for.
    pub(in crate::http) fn add_compact(&mut self, name: &'static str, value: &(impl Serialize + ?Sized)) {
        self.add_name(name);
        write_json(self.bytes, Spacing::Compact, value);
    }
}

pub(in crate::http) fn write_json(bytes: &mut Vec<u8>, spacing: Spacing, value: &(impl Serialize + ?Sized)) {
    let written = match spacing {
        Spacing::Compact => serde_json::to_writer(bytes, value),
        Spacing::Python => value.serialize(&mut serde_json::Serializer::with_formatter(bytes, PythonSpacing)),
    };
    // Frames are strings and numbers written to memory: there is nothing to fail.
    if let Err(error) = written {
        tracing::error!(%error, "a frame could not be written");
    }
}

/// Adds an object that starts as `head` and has the fields that `write` adds.
pub(in crate::http) fn write_object(
    bytes: &mut Vec<u8>,
    spacing: Spacing,
    head: &ObjectHead,
    write: impl FnOnce(&mut Fields<'_>),
) {
    bytes.push(b'{');
    bytes.extend_from_slice(&head.0);
    write(&mut Fields { bytes, spacing, needs_comma: !head.0.is_empty() });
    bytes.push(b'}');
}

/// `json.dumps` with its default separators.
struct PythonSpacing;

impl serde_json::ser::Formatter for PythonSpacing {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Room for an answer. Chosen by us: what a few dozen tokens and their report take, so that their memory is never moved.
const ANSWER_BYTES: usize = 1536;

/// An answer of status 200. As `axum::Json`, written at once instead of in pieces.
pub(in crate::http) fn json(answer: &impl Serialize) -> Response {
    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
    // Answers are strings and numbers written to memory: there is nothing to fail.
    if let Err(error) = serde_json::to_writer(&mut bytes, answer) {
        tracing::error!(%error, "an answer could not be written");
    }
    of_bytes(bytes)
}

/// An answer of status 200: an object with the fields that `write` adds.
pub(in crate::http) fn object(write: impl FnOnce(&mut Fields<'_>)) -> Response {
    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
    write_object(&mut bytes, Spacing::Compact, &ObjectHead::default(), write);
    of_bytes(bytes)
}

fn of_bytes(bytes: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(bytes));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Unix time in seconds.
pub(in crate::http) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_written_field_by_field_is_what_serde_writes() {
        #[derive(Serialize)]
        struct Whole<'a> {
            id: &'a str,
            created: u64,
            confidences: &'a [f32],
            piece: Option<&'a str>,
        }
        let whole = Whole { id: "a\"b\n", created: 7, confidences: &[0.9, 1.0, f32::NAN], piece: None };
        for spacing in [Spacing::Compact, Spacing::Python] {
            let mut plain = Vec::new();
            write_json(&mut plain, spacing, &whole);
            let rest = |fields: &mut Fields<'_>| {
                fields.add("confidences", whole.confidences);
                fields.add("piece", &whole.piece);
            };
            let start = |fields: &mut Fields<'_>| {
                fields.add("id", whole.id);
                fields.add("created", &whole.created);
            };
            let mut written = Vec::new();
            write_object(&mut written, spacing, &ObjectHead::new(spacing, start), rest);
            let mut without_head = Vec::new();
            write_object(&mut without_head, spacing, &ObjectHead::default(), |fields| {
                start(fields);
                rest(fields);
            });
            assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&plain));
            assert_eq!(without_head, plain);
        }
    }
}
