//! Calls of tools as OpenAI's chat writes them: whole, and in chunks.

use diffulex_protocol::ServingReply;
use serde::Serialize;

use crate::http::content::part::{Call, Piece};

/// The beginning of a call's id.
pub(super) const ID_PREFIX: &str = "call_";

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

impl<'a> CallObject<'a> {
    /// A whole call.
    pub(super) fn of(call: &'a Call) -> Self {
        Self { index: None, head: Some(Head::of(call)), function: Function::of(call) }
    }
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

/// Count of a streamed choice's calls.
#[derive(Default)]
pub(super) struct CallCount {
    n_begun: usize,
}

impl CallCount {
    /// A chunk's part of a call; none for other pieces.
    pub(super) fn object<'a>(&mut self, piece: &'a Piece) -> Option<CallObject<'a>> {
        match piece {
            Piece::Thought(_) | Piece::Text(_) | Piece::End => None,
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
