//! Usage of a streamed answer of OpenAI's kind: where it stands among the chunks.
//!
//! Clients that see it twice add it up twice, so it is on the last choice's finish chunk or in a chunk of its own, never both.
//! Never here: answers that are not streamed.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::frontend::EventStream;
use crate::http::answer::parts::{Fields, ObjectHead, Usage};
use crate::http::answer::sse::Frames;

/// OpenAI's `stream_options`.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(in crate::http) struct StreamOptions {
    /// A last chunk with the usage.
    include_usage: Option<bool>,
    /// With that, the usage so far on all others.
    continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    /// The chunks that they ask for.
    pub(in crate::http) fn chunks(self) -> UsageChunks {
        match (self.include_usage == Some(true), self.continuous_usage_stats == Some(true)) {
            (false, _) => UsageChunks::Finish,
            (true, false) => UsageChunks::Own,
            (true, true) => UsageChunks::Every,
        }
    }
}

/// Chunks with the usage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::http) enum UsageChunks {
    /// The finish chunk of the choice that ends last.
    #[default]
    Finish,
    /// One of their own, after all others (`include_usage`).
    Own,
    /// That, and every other with the tokens so far (`continuous_usage_stats`).
    Every,
}

/// Usage of an answer that is being streamed.
#[derive(Debug)]
pub(in crate::http) struct StreamedUsage {
    chunks: UsageChunks,
    /// Tokens of the answer so far, by choice.
    n_written: Vec<u32>,
    n_open: usize,
    /// Choices of one prompt.
    n_choices: usize,
    /// Cached tokens of each prompt.
    n_cached: Vec<u32>,
    usage: Usage,
}

impl StreamedUsage {
    /// Usage of `streams`, `n_choices` (1 at least) per prompt. A prompt counts once, as OpenAI does.
    pub(in crate::http) fn new(chunks: UsageChunks, streams: &[EventStream], n_choices: usize) -> Self {
        let n_choices = n_choices.max(1);
        let prompt_tokens = streams.iter().step_by(n_choices).map(EventStream::prompt_tokens).sum();
        let usage = Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() };
        let n_cached = vec![0; streams.len().div_ceil(n_choices)];
        Self { chunks, n_written: vec![0; streams.len()], n_open: streams.len(), n_choices, n_cached, usage }
    }

    /// Choice `index` has `n_tokens` by now.
    pub(in crate::http) fn note(&mut self, index: usize, n_tokens: u32) {
        if let Some(n_written) = self.n_written.get_mut(index) {
            *n_written = n_tokens;
            self.usage.completion_tokens = self.n_written.iter().sum();
            self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
        }
    }

    /// Choice `index` has ended with `usage`.
    pub(in crate::http) fn finish(&mut self, index: usize, usage: Usage) {
        let Usage { completion_tokens, prompt_tokens_details, completion_tokens_details, .. } = usage;
        self.usage.add_details(completion_tokens_details);
        if let Some(n_cached) = self.n_cached.get_mut(index / self.n_choices) {
            *n_cached = prompt_tokens_details.cached_tokens;
        }
        self.usage.prompt_tokens_details.cached_tokens = self.n_cached.iter().sum();
        self.n_open = self.n_open.saturating_sub(1);
        self.note(index, completion_tokens);
    }

    /// Adds the usage to a chunk with progress.
    pub(in crate::http) fn add_to_progress(&self, fields: &mut Fields<'_>) {
        if self.chunks == UsageChunks::Every {
            fields.add("usage", &self.usage);
        }
    }

    /// Adds the usage to a choice's finish chunk.
    pub(in crate::http) fn add_to_finish(&self, fields: &mut Fields<'_>) {
        if self.chunks == UsageChunks::Finish && self.n_open == 0 {
            fields.add("usage", &self.usage);
        }
        self.add_to_progress(fields);
    }

    /// Adds the chunk of its own, where there is one, to the frames that begin with `head`.
    pub(in crate::http) fn add_own_chunk(&self, head: &ObjectHead, frames: &mut Frames) {
        if self.chunks != UsageChunks::Finish {
            frames.push_object(head, |fields| {
                fields.add("choices", &[(); 0]);
                fields.add("usage", &self.usage);
            });
        }
    }
}
