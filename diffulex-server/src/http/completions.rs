//! `POST /v1/completions`: OpenAI's completions. Prompts in, text out, streamed or not. Choice `prompt * n + i` is answer i to
//! a prompt.
//!
//! Never here: chat templates.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use axum::response::Response;
use diffulex_protocol::StreamMode;
use serde::Serialize;

use super::App;
use super::answer::{
    self, DiffusionReport, LogprobProgress, ObjectHead, ReportedTokens, Spacing, TopLogprob, Usage, replies_of,
    token_logprobs, unix_seconds,
};
use super::body::{self, Dialect, Read};
use super::denoise_frames::DenoiseFrames;
use super::error::ApiError;
use super::request::{Order, Reading};
use super::sse::{self, Framer, Frames};
use super::streamed_usage::StreamedUsage;
use crate::frontend::{Frontend, StreamEvent};

/// How a body is read.
const READING: Reading =
    Reading { route: "/v1/completions", is_chat: false, stream_mode: StreamMode::BlockAppend, takes_choices: true };

/// The route.
pub(super) async fn completions(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let Read { value: order, held } =
        body::json(&app, request, Dialect::OpenAi, |app, body| Order::of(app, body, &READING)).await?;
    let Order { model, submission, denoise, wants_logprobs, usage_chunks } = order;
    let (is_stream, stream_mode) = (submission.stream, submission.stream_mode);
    let n_choices = submission.n_choices as usize;
    let streams = app.frontend.submit(submission).await?;
    drop(held);
    let id = format!("cmpl-{}", streams.first().map_or("none", |stream| stream.rid()));
    let created = unix_seconds();
    if is_stream {
        let head = ObjectHead::new(Spacing::Compact, |fields| {
            fields.add("id", &id);
            fields.add("object", OBJECT);
            fields.add("created", &created);
            fields.add("model", &model);
        });
        let framer = CompletionFramer {
            head,
            frontend: app.frontend.clone(),
            choices: streams
                .iter()
                .map(|_| ChoiceProgress { denoise: DenoiseFrames::new(denoise, false), ..ChoiceProgress::default() })
                .collect(),
            wants_logprobs,
            usage: StreamedUsage::new(usage_chunks, &streams, n_choices),
        };
        return sse::respond(streams, framer, Spacing::Compact, stream_mode, app.telemetry.clone()).await;
    }
    let replies = replies_of(streams).await?;
    let mut usage = Usage::default();
    for prompt in replies.chunks(n_choices) {
        let mut of_prompt = Usage::default();
        prompt.iter().for_each(|reply| of_prompt.add_choice(Usage::of(reply)));
        usage.add_prompt(of_prompt);
    }
    let mut choices = Vec::with_capacity(replies.len());
    for (index, reply) in replies.iter().enumerate() {
        choices.push(Choice {
            index,
            text: &reply.text,
            logprobs: wants_logprobs.then(|| Logprobs::of(&app.frontend, reply.into(), &mut 0)),
            finish_reason: Some(reply.finish_reason.openai()),
        });
    }
    let diffulex = replies.first().map(DiffusionReport::of);
    let completion = Completion { id: &id, object: OBJECT, created, model: &model, choices: &choices, usage, diffulex };
    Ok(answer::json(&completion))
}

/// `object` of the answer and of every chunk: OpenAI has one shape for both.
const OBJECT: &str = "text_completion";

/// The answer.
#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    diffulex: Option<DiffusionReport>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

/// Completions' form of token probabilities: lists side by side.
#[derive(Serialize)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    /// The likeliest tokens at each place and the token itself; absent where none were asked for.
    top_logprobs: Option<Vec<BTreeMap<String, f32>>>,
    text_offset: Vec<usize>,
}

impl Logprobs {
    /// `offset` is the first token's, in characters, and is moved on behind the last.
    fn of(frontend: &Frontend, tokens: ReportedTokens<'_>, offset: &mut usize) -> Self {
        let entries = token_logprobs(frontend.text(), tokens);
        let text_offset = entries.iter().map(|entry| {
            let start = *offset;
            // A character counts where it begins, however many tokens it is.
            *offset += entry.bytes.iter().filter(|byte| !is_continuation(**byte)).count();
            start
        });
        let text_offset = text_offset.collect();
        let token_logprobs = entries.iter().map(|entry| entry.logprob).collect();
        let tops = entries.iter().map(|entry| {
            let likeliest = entry.top_logprobs.iter().map(|TopLogprob { token, logprob, .. }| (token, logprob));
            // Tokens may look alike: the likeliest of them stays.
            let all = likeliest.chain([(&entry.token, &entry.logprob)]);
            all.rev().map(|(token, logprob)| (token.clone(), *logprob)).collect()
        });
        let top_logprobs = tokens.has_alternatives().then(|| tops.collect());
        Self {
            top_logprobs,
            tokens: entries.into_iter().map(|entry| entry.token).collect(),
            token_logprobs,
            text_offset,
        }
    }
}

/// A byte of UTF-8 that no character begins with.
fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// How far a streamed choice is.
#[derive(Default)]
struct ChoiceProgress {
    logprobs: LogprobProgress,
    /// Characters of the tokens whose probabilities are out.
    n_characters: usize,
    denoise: DenoiseFrames,
}

struct CompletionFramer {
    /// The first fields of every chunk.
    head: ObjectHead,
    frontend: Frontend,
    choices: Vec<ChoiceProgress>,
    wants_logprobs: bool,
    usage: StreamedUsage,
}

impl CompletionFramer {
    fn logprobs(&mut self, index: usize, tokens: ReportedTokens<'_>) -> Option<Logprobs> {
        if !self.wants_logprobs || tokens.ids.is_empty() {
            return None;
        }
        let offset = &mut self.choices.get_mut(index)?.n_characters;
        Some(Logprobs::of(&self.frontend, tokens, offset))
    }
}

impl Framer for CompletionFramer {
    fn event(&mut self, index: usize, event: StreamEvent, frames: &mut Frames) -> Result<(), ApiError> {
        match event {
            StreamEvent::Delta(delta) => {
                self.usage.note(index, delta.token_offset + delta.token_ids.len() as u32);
                let logprobs = self.logprobs(index, (&delta).into());
                if !delta.text.is_empty() || logprobs.is_some() {
                    let choice = Choice { index, text: &delta.text, logprobs, finish_reason: None };
                    frames.push_object(&self.head, |fields| {
                        fields.add("choices", &[choice]);
                        self.usage.add_to_progress(fields);
                    });
                }
            }
            StreamEvent::Snapshot(snapshot) => {
                let fresh = self.choices.get_mut(index).and_then(|choice| choice.logprobs.fresh(&snapshot));
                let logprobs = fresh.and_then(|fresh| self.logprobs(index, fresh));
                self.usage.note(index, snapshot.committed_len);
                let Some(progress) = self.choices.get_mut(index) else { return Ok(()) };
                frames.push_object(&self.head, |fields| {
                    let choice = Choice { index, text: &snapshot.committed_text, logprobs, finish_reason: None };
                    fields.add("choices", &[choice]);
                    // `text` of the snapshot stands beside, not inside, the choices' text.
                    progress.denoise.add(fields, snapshot);
                    self.usage.add_to_progress(fields);
                });
            }
            StreamEvent::Reply(reply) => {
                self.usage.finish(index, &reply);
                let choices =
                    [Choice { index, text: "", logprobs: None, finish_reason: Some(reply.finish_reason.openai()) }];
                frames.push_object(&self.head, |fields| {
                    fields.add("choices", &choices);
                    fields.add("diffulex", &DiffusionReport::of(&reply));
                    self.usage.add_to_finish(fields);
                });
            }
            StreamEvent::Error(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn close(&mut self, frames: &mut Frames) {
        if let Some(usage) = self.usage.own_chunk() {
            frames.push_object(&self.head, |fields| {
                fields.add("choices", &[(); 0]);
                fields.add("usage", usage);
            });
        }
    }
}
