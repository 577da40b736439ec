//! Calls of tools as OpenAI's chat writes them: whole, and in chunks.

use std::borrow::Cow;

use diffulex_protocol::ServingReply;
use serde::Serialize;

use crate::http::tools::calls::{Call, CallForm, CallReader, Piece};

/// The beginning of a call's id.
const ID_PREFIX: &str = "call_";

/// An answer with its calls apart.
pub(super) struct Answered<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) calls: Vec<Call>,
}

impl<'a> Answered<'a> {
    /// The parts of `reply`, whose calls are found by `form`.
    pub(super) fn of(form: Option<&CallForm>, reply: &'a ServingReply) -> Self {
        let Some(form) = form else { return Self { text: Cow::Borrowed(&reply.text), calls: Vec::new() } };
        let (text, calls) = form.apart(&reply.text, ID_PREFIX);
        Self { text: text.into(), calls }
    }

    /// The text; none beside calls alone.
    pub(super) fn content(&self) -> Option<&str> {
        Some(self.text.as_ref()).filter(|text| !text.is_empty() || self.calls.is_empty())
    }

    /// The calls as a message has them.
    pub(super) fn call_objects(&self) -> Vec<CallObject<'_>> {
        let object = |call| CallObject { index: None, head: Some(Head::of(call)), function: Function::of(call) };
        self.calls.iter().map(object).collect()
    }
}

/// OpenAI's reason for the end of an answer.
pub(super) fn finish_reason(reply: &ServingReply, has_calls: bool) -> &'static str {
    match reply.finish_reason.openai() {
        "stop" if has_calls => "tool_calls",
        reason => reason,
    }
}

/// A call, or in a chunk a part of one.
#[derive(Serialize)]
pub(super) struct CallObject<'a> {
    /// In chunks: which.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    head: Option<Head<'a>>,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Head<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
}

impl<'a> Head<'a> {
    fn of(call: &'a Call) -> Self {
        Self { id: &call.id, kind: "function" }
    }
}

#[derive(Serialize)]
struct Function<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

impl<'a> Function<'a> {
    fn of(call: &'a Call) -> Self {
        Self { name: Some(&call.name), arguments: &call.arguments }
    }
}

/// The calls of a streamed choice so far.
pub(super) struct StreamedCalls {
    reader: CallReader,
    n_begun: usize,
}

impl StreamedCalls {
    /// None yet, of an answer whose calls are found by `form`.
    pub(super) fn new(form: &CallForm) -> Self {
        Self { reader: form.reader(ID_PREFIX), n_begun: 0 }
    }

    /// What the next text of the answer is.
    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.reader.push(text)
    }

    /// What was held back.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        self.reader.finish()
    }

    /// There was a call.
    pub(super) fn has_calls(&self) -> bool {
        self.reader.has_calls()
    }

    /// A chunk's part of a call; none for other pieces.
    pub(super) fn object<'a>(&mut self, piece: &'a Piece) -> Option<CallObject<'a>> {
        match piece {
            Piece::Text(_) | Piece::End => None,
            Piece::Begin(call) => {
                self.n_begun += 1;
                let index = Some(self.n_begun - 1);
                Some(CallObject { index, head: Some(Head::of(call)), function: Function::of(call) })
            }
            Piece::Arguments(arguments) => {
                let function = Function { name: None, arguments };
                Some(CallObject { index: Some(self.n_begun.saturating_sub(1)), head: None, function })
            }
        }
    }
}
