//! `POST /generate`: the native route. A prompt in, the whole answer or frames `append` / `buffer_snapshot`, then `final`.
//!
//! Never here: chat templates, OpenAI's shapes.

use axum::extract::{Request, State};
use axum::response::Response;
use diffulex_protocol::{ServingReply, StreamMode};

use super::App;
use super::answer::{self, DiffusionReport, Fields, ObjectHead, Spacing, Usage, reply_of, unix_seconds};
use super::body::{self, Dialect, Read};
use super::denoise_frames::{DenoiseForm, DenoiseFrames, EventFields};
use super::error::ApiError;
use super::request::{Order, Reading};
use super::sse::{self, Framer, Frames};
use crate::frontend::{ContextName, EventStream, Frontend, StreamEvent};

/// How a body is read.
const READING: Reading =
    Reading { route: "/generate", is_chat: false, stream_mode: StreamMode::Denoise, takes_choices: false };

/// The route.
pub(super) async fn generate(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let Read { value: order, held } =
        body::json(&app, request, Dialect::Native, |app, body| Order::of(app, body, &READING)).await?;
    let Order { model, submission, denoise, .. } = order;
    let (is_stream, stream_mode) = (submission.stream, submission.stream_mode);
    let streams = app.frontend.submit(submission).await?;
    drop(held);
    respond(app, streams, is_stream.then_some(stream_mode), AnswerForm::new(model, denoise)).await
}

/// The answer of a request in the form of this route, or its stream.
pub(super) async fn respond(
    app: App,
    mut streams: Vec<EventStream>,
    stream_mode: Option<StreamMode>,
    form: AnswerForm,
) -> Result<Response, ApiError> {
    let AnswerForm { head, denoise } = form;
    if let Some(stream_mode) = stream_mode {
        let framer = GenerateFramer { head, denoise: DenoiseFrames::new(denoise, true) };
        return sse::respond(streams, framer, Spacing::Python, stream_mode, app.telemetry.clone()).await;
    }
    match streams.pop() {
        Some(stream) => {
            let mut reply = reply_of(stream).await?;
            Ok(answer::object(|fields| add_answer(fields, &mut reply, &head)))
        }
        None => Err(diffulex_engine::RequestError::engine("the request was not accepted").into()),
    }
}

/// How an answer is written.
pub(super) struct AnswerForm {
    head: Head,
    denoise: DenoiseForm,
}

impl AnswerForm {
    /// An answer under `model`'s name, its frames in the form `denoise`.
    pub(super) fn new(model: String, denoise: DenoiseForm) -> Self {
        Self { head: Head { model, created: unix_seconds(), context: None }, denoise }
    }

    /// The same with the context that the request extends.
    pub(super) fn on_context(mut self, app: &App, name: ContextName) -> Self {
        self.head.context = Some((app.frontend.clone(), name));
        self
    }
}

struct Head {
    model: String,
    created: u64,
    /// The context that the request extends, as it is when the answer is written.
    context: Option<(Frontend, ContextName)>,
}

/// Fields of a reply that answers report in `usage` and `diffulex`, where Diffulex's `ServingReply.to_dict` has none.
const REPORTED_APART: [&str; 9] = [
    "prompt_tokens",
    "given_tokens",
    "cached_tokens",
    "nfe_counts",
    "queue_time_s",
    "end_token",
    "seed",
    "preemptions",
    "context",
];

/// Adds an answer: the reply's fields and those that OpenAI's clients would miss.
fn add_answer(fields: &mut Fields<'_>, reply: &mut ServingReply, head: &Head) {
    reply.finished = true;
    // As Diffulex: an engine that fills nothing after the answer reports the answer itself.
    if reply.full_token_ids.is_empty() {
        reply.full_text.clone_from(&reply.text);
        reply.full_token_ids.clone_from(&reply.token_ids);
    }
    reply.visit_fields(&mut EventFields { fields, left_out: &REPORTED_APART });
    if let Some((frontend, name)) = &head.context {
        // One that expires at this very moment has no fields.
        fields.add("context", &frontend.context(*name).ok());
    }
    fields.add("created", &head.created);
    fields.add("model", &head.model);
    fields.add("usage", &Usage::of(reply));
    fields.add("diffulex", &DiffusionReport::of(reply));
}

struct GenerateFramer {
    head: Head,
    denoise: DenoiseFrames,
}

impl Framer for GenerateFramer {
    fn event(&mut self, _choice_idx: usize, event: StreamEvent, frames: &mut Frames) -> Result<(), ApiError> {
        match event {
            StreamEvent::Delta(delta) => frames.push_object(&ObjectHead::default(), |fields| {
                fields.add("event", "append");
                delta.visit_fields(&mut EventFields { fields, left_out: &[] });
            }),
            StreamEvent::Snapshot(snapshot) => {
                frames.push_object(&ObjectHead::default(), |fields| self.denoise.add(fields, snapshot));
            }
            StreamEvent::Reply(mut reply) => frames.push_object(&ObjectHead::default(), |fields| {
                fields.add("event", "final");
                add_answer(fields, &mut reply, &self.head);
            }),
            StreamEvent::Error(error) => return Err(error.into()),
        }
        Ok(())
    }
}
