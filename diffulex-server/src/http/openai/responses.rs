//! `POST /v1/responses`: OpenAI's responses, streamed as typed events or not.
//!
//! The events of a response are in a fixed order, numbered from 0, and name the response and its one item by ids that never
//! change. In mode `denoise`, a delta also carries the snapshot in `diffulex`, and its text may be empty: the npm client's
//! helper throws at an event of a type that it does not know. Never here: storage.

pub(in crate::http) mod input;

use axum::extract::{Request, State};
use axum::response::Response;
use diffulex_protocol::ServingReply;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::frontend::{Frontend, StreamEvent};
use crate::http::answer::denoise_frames::{DenoiseForm, DenoiseFrames};
use crate::http::answer::error::ApiError;
use crate::http::answer::parts::{
    self, DiffusionReport, Fields, Spacing, TokenLogprob, only_reply, token_logprobs, unix_seconds,
};
use crate::http::answer::sse::{self, EventHead, Framer, Frames, StreamForm};
use crate::http::answer::streamed_logprobs::StreamedLogprobs;
use crate::http::app::App;
use crate::http::request::body::Dialect;
use crate::http::request::generation;
use crate::http::request::interface::InterfaceBody;
use input::{ResponsesFields, Settings};

/// The route.
pub(in crate::http) async fn responses(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    respond(app, request).await.map_err(|error| error.with_names(&input::NAMES))
}

async fn respond(app: App, request: Request) -> Result<Response, ApiError> {
    let read = |app: &App, body: InterfaceBody<ResponsesFields>| input::parse(app, body);
    let (streams, (form, settings)) = generation::submit(&app, request, Dialect::OpenAi, read).await?;
    let rid = streams.first().map_or("none", |stream| stream.rid());
    let head = Head {
        id: format!("resp_{rid}"),
        item_id: format!("msg_{rid}"),
        created_at: unix_seconds(),
        model: form.model,
        wants_logprobs: form.wants_logprobs,
        settings,
    };
    if form.is_stream {
        return sse::respond(
            streams,
            ResponseFramer::new(head, form.denoise, &app.frontend),
            Spacing::Compact,
            app.telemetry.clone(),
        )
        .await;
    }
    let reply = only_reply(streams).await?;
    let logprobs = head.logprobs(&reply, &app.frontend);
    Ok(parts::json(&head.finished(&reply, &logprobs)))
}

/// The parts of a response that do not change.
struct Head {
    id: String,
    item_id: String,
    created_at: u64,
    model: String,
    wants_logprobs: bool,
    settings: Settings,
}

/// A response; official clients miss fields that are left out.
#[derive(Serialize)]
struct ResponseObject<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    status: &'static str,
    background: bool,
    error: Option<Failure<'a>>,
    incomplete_details: Option<Incomplete>,
    instructions: Option<&'a str>,
    max_output_tokens: Option<u32>,
    model: &'a str,
    output: Vec<OutputItem<'a>>,
    parallel_tool_calls: bool,
    previous_response_id: Option<()>,
    reasoning: ReasoningReport<'a>,
    store: bool,
    temperature: f32,
    text: TextReport,
    tool_choice: &'static str,
    tools: [(); 0],
    top_logprobs: u32,
    top_p: f32,
    truncation: &'static str,
    usage: Option<ResponseUsage>,
    metadata: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diffulex: Option<DiffusionReport>,
}

#[derive(Clone, Copy, Serialize)]
struct Failure<'a> {
    code: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
struct Incomplete {
    reason: &'static str,
}

#[derive(Serialize)]
struct ReasoningReport<'a> {
    effort: Option<&'a str>,
    summary: Option<()>,
}

#[derive(Serialize)]
struct TextReport {
    format: FormatReport,
}

#[derive(Serialize)]
struct FormatReport {
    #[serde(rename = "type")]
    kind: &'static str,
}

/// The one item of an answer: a message.
#[derive(Serialize)]
struct OutputItem<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    status: &'static str,
    role: &'static str,
    content: Vec<Part<'a>>,
}

#[derive(Serialize)]
struct Part<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
    annotations: [(); 0],
    logprobs: &'a [TokenLogprob],
}

impl<'a> Part<'a> {
    fn of(text: &'a str, logprobs: &'a [TokenLogprob]) -> Self {
        Self { kind: "output_text", text, annotations: [], logprobs }
    }
}

#[derive(Serialize)]
struct ResponseUsage {
    input_tokens: u32,
    input_tokens_details: InputDetails,
    output_tokens: u32,
    output_tokens_details: OutputDetails,
    total_tokens: u32,
}

#[derive(Serialize)]
struct InputDetails {
    cached_tokens: u32,
    /// OpenAI bills these; here every prompt may be cached.
    cache_write_tokens: u32,
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: u32,
}

impl ResponseUsage {
    fn of(reply: &ServingReply) -> Self {
        let output_tokens = reply.written_tokens();
        Self {
            input_tokens: reply.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: reply.cached_tokens, cache_write_tokens: 0 },
            output_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: 0 },
            total_tokens: reply.prompt_tokens + output_tokens,
        }
    }
}

/// `status` of an answer.
fn status_of(reply: &ServingReply) -> &'static str {
    match reply.finish_reason.openai() {
        "length" => "incomplete",
        _ => "completed",
    }
}

impl Head {
    fn object<'a>(&'a self, status: &'static str, output: Vec<OutputItem<'a>>) -> ResponseObject<'a> {
        let Settings { instructions, max_output_tokens, metadata, temperature, top_p, top_logprobs, effort } =
            &self.settings;
        ResponseObject {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            completed_at: None,
            status,
            background: false,
            error: None,
            incomplete_details: None,
            instructions: instructions.as_deref(),
            max_output_tokens: *max_output_tokens,
            model: &self.model,
            output,
            parallel_tool_calls: true,
            previous_response_id: None,
            reasoning: ReasoningReport { effort: effort.as_deref(), summary: None },
            store: false,
            temperature: *temperature,
            text: TextReport { format: FormatReport { kind: "text" } },
            tool_choice: "auto",
            tools: [],
            top_logprobs: *top_logprobs,
            top_p: *top_p,
            truncation: "disabled",
            usage: None,
            metadata,
            diffulex: None,
        }
    }

    fn item<'a>(&'a self, status: &'static str, content: Vec<Part<'a>>) -> OutputItem<'a> {
        OutputItem { id: &self.item_id, kind: "message", status, role: "assistant", content }
    }

    /// The log-probabilities of an answer, where they are wanted.
    fn logprobs(&self, reply: &ServingReply, frontend: &Frontend) -> Vec<TokenLogprob> {
        if self.wants_logprobs { token_logprobs(frontend.text(), reply.into()) } else { Vec::new() }
    }

    fn finished<'a>(&'a self, reply: &'a ServingReply, logprobs: &'a [TokenLogprob]) -> ResponseObject<'a> {
        let status = status_of(reply);
        let item = self.item(status, vec![Part::of(&reply.text, logprobs)]);
        ResponseObject {
            completed_at: (status == "completed").then(unix_seconds),
            incomplete_details: (status == "incomplete").then_some(Incomplete { reason: "max_output_tokens" }),
            usage: Some(ResponseUsage::of(reply)),
            diffulex: Some(DiffusionReport::of(reply)),
            ..self.object(status, vec![item])
        }
    }
}

struct ResponseFramer {
    head: Head,
    /// Of the events of which there are many.
    delta: EventHead,
    denoise: DenoiseFrames,
    frontend: Frontend,
    logprobs: StreamedLogprobs,
    sequence_number: u64,
}

impl ResponseFramer {
    fn new(head: Head, denoise: DenoiseForm, frontend: &Frontend) -> Self {
        let delta = EventHead::new("response.output_text.delta", |fields| {
            fields.add("item_id", &head.item_id);
            fields.add("output_index", &0);
            fields.add("content_index", &0);
        });
        Self {
            delta,
            denoise: DenoiseFrames::new(denoise, false),
            logprobs: StreamedLogprobs::new(frontend, head.wants_logprobs),
            frontend: frontend.clone(),
            sequence_number: 0,
            head,
        }
    }

    fn delta(
        &mut self,
        text: &str,
        logprobs: &[TokenLogprob],
        frames: &mut Frames,
        write: impl FnOnce(&mut Fields<'_>),
    ) {
        frames.push_event(&self.delta, |fields| {
            fields.add("sequence_number", &self.sequence_number);
            fields.add("delta", text);
            fields.add("logprobs", logprobs);
            write(fields);
        });
        self.sequence_number += 1;
    }

    fn push(&mut self, name: &'static str, frames: &mut Frames, write: impl FnOnce(&Head, &mut Fields<'_>)) {
        let head = EventHead::new(name, |fields| fields.add("sequence_number", &self.sequence_number));
        frames.push_event(&head, |fields| write(&self.head, fields));
        self.sequence_number += 1;
    }

    fn finish(&mut self, reply: &ServingReply, frames: &mut Frames) {
        let logprobs = self.head.logprobs(reply, &self.frontend);
        let part = || Part::of(&reply.text, &logprobs);
        let status = status_of(reply);
        self.push("response.output_text.done", frames, |head, fields| {
            fields.add("item_id", &head.item_id);
            fields.add("output_index", &0);
            fields.add("content_index", &0);
            fields.add("text", &reply.text);
            fields.add("logprobs", &logprobs);
        });
        self.push("response.content_part.done", frames, |head, fields| {
            fields.add("item_id", &head.item_id);
            fields.add("output_index", &0);
            fields.add("content_index", &0);
            fields.add("part", &part());
        });
        self.push("response.output_item.done", frames, |head, fields| {
            fields.add("output_index", &0);
            fields.add("item", &head.item(status, vec![part()]));
        });
        let name = if status == "completed" { "response.completed" } else { "response.incomplete" };
        self.push(name, frames, |head, fields| fields.add("response", &head.finished(reply, &logprobs)));
    }
}

impl Framer for ResponseFramer {
    const FORM: StreamForm = StreamForm::Events;

    fn open(&mut self, frames: &mut Frames) {
        for name in ["response.created", "response.in_progress"] {
            self.push(name, frames, |head, fields| fields.add("response", &head.object("in_progress", Vec::new())));
        }
        self.push("response.output_item.added", frames, |head, fields| {
            fields.add("output_index", &0);
            fields.add("item", &head.item("in_progress", Vec::new()));
        });
        self.push("response.content_part.added", frames, |head, fields| {
            fields.add("item_id", &head.item_id);
            fields.add("output_index", &0);
            fields.add("content_index", &0);
            fields.add("part", &Part::of("", &[]));
        });
    }

    fn event(&mut self, _choice_idx: usize, event: StreamEvent, frames: &mut Frames) -> Result<(), ApiError> {
        match event {
            StreamEvent::Delta(delta) => {
                let logprobs = self.logprobs.of_delta(&delta);
                // Text held back (an incomplete character, a possible stop string) comes with a later event.
                if !delta.text.is_empty() || !logprobs.is_empty() {
                    self.delta(&delta.text, &logprobs, frames, |_| ());
                }
            }
            StreamEvent::Snapshot(snapshot) => {
                let logprobs = self.logprobs.of_snapshot(&snapshot);
                // Frames of changes need the text, too.
                let text = snapshot.committed_text.clone();
                let mut denoise = std::mem::take(&mut self.denoise);
                self.delta(&text, &logprobs, frames, |fields| {
                    fields.add_object("diffulex", |fields| denoise.add(fields, snapshot));
                });
                self.denoise = denoise;
            }
            StreamEvent::Reply(reply) => self.finish(&reply, frames),
            StreamEvent::Error(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        let failure = Failure { code: error.code(), message: error.message() };
        self.push("response.failed", frames, |head, fields| {
            fields.add("response", &ResponseObject { error: Some(failure), ..head.object("failed", Vec::new()) });
        });
    }
}
