//! `POST /generate`: the native route. A prompt in, the whole answer or frames `append` / `buffer_snapshot`, then `final`.
//!
//! Never here: chat templates, OpenAI's shapes.

use axum::extract::{Request, State};
use axum::response::Response;
use diffulex_protocol::{FinishReason, ServingBufferSnapshot, ServingDelta, ServingInput, ServingReply};
use serde::Serialize;

use super::answer::{self, DiffusionReport, Usage, reply_of, unix_seconds};
use super::body::{self, Dialect, Read};
use super::error::ApiError;
use super::request::{GenerationBody, Order};
use super::sse::{self, Fields, Framer, Frames, ObjectHead, Spacing};
use super::{App, AskedModel, asked_model};
use crate::frontend::{StreamEvent, Submission};

/// What every frame with a snapshot's fields has in `event`.
pub(super) const SNAPSHOT_EVENT: &str = "buffer_snapshot";

/// The route.
pub(super) async fn generate(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let Read { value: order, held } = body::json(&app, request, Dialect::Native, order).await?;
    let Order { model, submission, .. } = order;
    let (is_stream, stream_mode) = (submission.stream, submission.stream_mode);
    let mut streams = app.frontend.submit(submission).await?;
    drop(held);
    let head = Head { model, created: unix_seconds() };
    if is_stream {
        return sse::respond(streams, GenerateFramer { head }, Spacing::Python, stream_mode, app.telemetry).await;
    }
    match streams.pop() {
        Some(stream) => {
            let reply = reply_of(stream).await?;
            Ok(answer::json(&Answer::of(&reply, &head, None)))
        }
        None => Err(diffulex_engine::RequestError::engine("the request was not accepted").into()),
    }
}

fn order(app: &App, mut body: GenerationBody) -> Result<Order, ApiError> {
    let AskedModel { name: model, adapter } = asked_model(app, body.model.take())?;
    if body.n_choices()? > 1 {
        return Err(ApiError::invalid("n", "n is 1 on this route; /v1/chat/completions takes more"));
    }
    let submission = Submission {
        route: "/generate",
        sampling_params: body.sampling_params(app.options.default_temperature)?,
        input: ServingInput::Prompt { prompt: body.take_prompt()? },
        stream: body.stream.unwrap_or(false),
        stream_mode: body.stream_mode.unwrap_or_default(),
        snapshot: body.snapshot.unwrap_or_default(),
        suffix: body.take_suffix()?,
        fills_masks: true,
        adapter,
        user: body.user.take(),
        n_choices: 1,
    };
    Ok(Order { model, submission, wants_logprobs: body.wants_logprobs(), wants_usage: body.wants_usage() })
}

struct Head {
    model: String,
    created: u64,
}

/// Diffulex's `ServingReply.to_dict`, and what OpenAI's clients would miss.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'static str>,
    id: &'a str,
    text: &'a str,
    token_ids: &'a [u32],
    nfe: u32,
    finish_reason: FinishReason,
    full_text: &'a str,
    full_token_ids: &'a [u32],
    engine_decode_time_s: f64,
    engine_decode_tokens: u32,
    engine_decode_tps: Option<f64>,
    finished: bool,
    #[serde(skip_serializing_if = "<[f32]>::is_empty")]
    confidences: &'a [f32],
    created: u64,
    model: &'a str,
    usage: Usage,
    diffulex: DiffusionReport,
}

impl<'a> Answer<'a> {
    fn of(reply: &'a ServingReply, head: &'a Head, event: Option<&'static str>) -> Self {
        // As Diffulex: an engine that fills nothing after the answer reports the answer itself.
        let (full_text, full_token_ids) = if reply.full_token_ids.is_empty() {
            (&reply.text, &reply.token_ids)
        } else {
            (&reply.full_text, &reply.full_token_ids)
        };
        Self {
            event,
            id: &reply.rid,
            text: &reply.text,
            token_ids: &reply.token_ids,
            nfe: reply.nfe,
            finish_reason: reply.finish_reason,
            full_text,
            full_token_ids,
            engine_decode_time_s: reply.engine_decode_time_s,
            engine_decode_tokens: reply.engine_decode_tokens,
            engine_decode_tps: reply.engine_decode_tps,
            finished: true,
            confidences: &reply.confidences,
            created: head.created,
            model: &head.model,
            usage: Usage::of(reply),
            diffulex: DiffusionReport::of(reply),
        }
    }
}

#[derive(Serialize)]
struct Append<'a> {
    event: &'static str,
    id: &'a str,
    seq: u32,
    token_offset: u32,
    text: &'a str,
    token_ids: &'a [u32],
    nfe: u32,
    finished: bool,
    engine_decode_time_s: f64,
    engine_decode_tokens: u32,
    engine_decode_tps: Option<f64>,
    #[serde(skip_serializing_if = "<[f32]>::is_empty")]
    confidences: &'a [f32],
}

impl<'a> Append<'a> {
    fn of(delta: &'a ServingDelta) -> Self {
        Self {
            event: "append",
            id: &delta.rid,
            seq: delta.seq,
            token_offset: delta.token_offset,
            text: &delta.text,
            token_ids: &delta.token_ids,
            nfe: delta.nfe,
            finished: delta.finished,
            engine_decode_time_s: delta.engine_decode_time_s,
            engine_decode_tokens: delta.engine_decode_tokens,
            engine_decode_tps: delta.engine_decode_tps,
            confidences: &delta.confidences,
        }
    }
}

/// Adds the fields of a snapshot, which chat frames carry too.
pub(super) fn add_snapshot(fields: &mut Fields<'_>, snapshot: &ServingBufferSnapshot) {
    fields.add("seq", &snapshot.seq);
    fields.add("token_offset", &snapshot.token_offset);
    fields.add("absolute_start", &snapshot.absolute_start);
    fields.add("absolute_end", &snapshot.absolute_end);
    fields.add("text", &snapshot.text);
    fields.add("token_ids", &snapshot.token_ids);
    fields.add("nfe", &snapshot.nfe);
    fields.add("finished", &snapshot.finished);
    fields.add("engine_decode_time_s", &snapshot.engine_decode_time_s);
    fields.add("engine_decode_tokens", &snapshot.engine_decode_tokens);
    fields.add("engine_decode_tps", &snapshot.engine_decode_tps);
    fields.add("committed_len", &snapshot.committed_len);
    fields.add("committed_text", &snapshot.committed_text);
    fields.add("mask_positions", &snapshot.mask_positions);
    fields.add("pieces", &snapshot.pieces);
    fields.add("confidences", &snapshot.confidences);
    fields.add("block_size", &snapshot.block_size);
}

struct GenerateFramer {
    head: Head,
}

impl Framer for GenerateFramer {
    fn event(&mut self, _choice_idx: usize, event: StreamEvent, frames: &mut Frames) -> Result<(), ApiError> {
        match event {
            StreamEvent::Delta(delta) => frames.push(&Append::of(&delta)),
            StreamEvent::Snapshot(snapshot) => frames.push_object(&ObjectHead::default(), |fields| {
                fields.add("event", SNAPSHOT_EVENT);
                fields.add("id", &snapshot.rid);
                add_snapshot(fields, &snapshot);
            }),
            StreamEvent::Reply(reply) => frames.push(&Answer::of(&reply, &self.head, Some("final"))),
            StreamEvent::Error(error) => return Err(error.into()),
        }
        Ok(())
    }
}
