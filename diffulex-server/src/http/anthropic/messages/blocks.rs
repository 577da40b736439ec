//! Blocks of a message: thoughts, text, and calls of tools.
//!
//! Where an answer is not text alone, a block begins with its first part, as nobody knows before which it will be.

use diffulex_protocol::ServingReply;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::http::answer::sse::{EventHead, Frames};
use crate::http::content::form::ContentForm;
use crate::http::content::part::{Call, Part, Parts, Piece};
use crate::http::content::reader::ContentReader;

/// The beginning of a call's id.
const ID_PREFIX: &str = "toolu_";

/// What Anthropic signs thoughts with, to know its own again. Here thoughts of any origin are taken, so there is nothing to sign.
const SIGNATURE: &str = "";

/// A block.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block<'a> {
    Thinking { thinking: &'a str, signature: &'static str },
    Text { text: &'a str },
    ToolUse { id: &'a str, name: &'a str, input: Map<String, Value> },
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

/// The parts of `reply`: one at least, as clients read the first block of an answer.
pub(super) fn parts_of(form: &ContentForm, reply: &ServingReply) -> Parts {
    let mut parts = form.parts(&reply.text, ID_PREFIX);
    if parts.0.is_empty() {
        parts.0.push(Part::Text(String::new()));
    }
    parts
}

impl<'a> Block<'a> {
    pub(super) fn of(part: &'a Part) -> Self {
        match part {
            Part::Thought(thinking) => Self::Thinking { thinking, signature: SIGNATURE },
            Part::Text(text) => Self::Text { text },
            Part::Call(call) => Self::ToolUse { id: &call.id, name: &call.name, input: call.object() },
        }
    }

    fn begun(call: &'a Call) -> Self {
        Self::ToolUse { id: &call.id, name: &call.name, input: Map::new() }
    }
}

/// Writes the events of a stream's blocks.
pub(super) struct BlockWriter {
    reader: ContentReader,
    /// Nothing but text can come.
    is_text_alone: bool,
    open: Option<Kind>,
    n_blocks: usize,
    /// Events of the open block, of which there are many.
    delta: EventHead,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Thinking,
    Text,
    Call,
}

impl BlockWriter {
    /// Of an answer whose parts are found by `form`.
    pub(super) fn new(form: &ContentForm) -> Self {
        let (reader, is_text_alone) = (form.reader(ID_PREFIX), form.is_text_alone());
        Self { reader, is_text_alone, open: None, n_blocks: 0, delta: delta_head(0) }
    }

    /// Before anything is written.
    pub(super) fn open(&mut self, frames: &mut Frames) {
        if self.is_text_alone {
            self.begin(Kind::Text, &Block::Text { text: "" }, frames);
        }
    }

    /// The next text of the answer.
    pub(super) fn text(&mut self, text: &str, frames: &mut Frames) {
        let pieces = self.reader.push(text);
        self.pieces(&pieces, frames);
    }

    /// The end of the answer. True if there were calls.
    pub(super) fn finish(&mut self, frames: &mut Frames) -> bool {
        let pieces = self.reader.finish();
        self.pieces(&pieces, frames);
        if self.n_blocks == 0 {
            // Clients read the first block of an answer.
            self.begin(Kind::Text, &Block::Text { text: "" }, frames);
        }
        self.end(frames);
        self.reader.has_calls()
    }

    fn pieces(&mut self, pieces: &[Piece], frames: &mut Frames) {
        for piece in pieces {
            match piece {
                Piece::Thought(thinking) => {
                    if self.open != Some(Kind::Thinking) {
                        self.begin(Kind::Thinking, &Block::Thinking { thinking: "", signature: SIGNATURE }, frames);
                    }
                    self.delta(&Delta::Thinking { thinking }, frames);
                }
                Piece::Text(text) => {
                    if self.open != Some(Kind::Text) {
                        self.begin(Kind::Text, &Block::Text { text: "" }, frames);
                    }
                    self.delta(&Delta::Text { text }, frames);
                }
                Piece::Begin(call) => self.begin(Kind::Call, &Block::begun(call), frames),
                Piece::Arguments(json) => self.delta(&Delta::InputJson { partial_json: json }, frames),
                Piece::End => self.end(frames),
            }
        }
    }

    fn begin(&mut self, kind: Kind, block: &Block<'_>, frames: &mut Frames) {
        self.end(frames);
        self.delta = delta_head(self.n_blocks);
        frames.push_event(&EventHead::new("content_block_start", |_| ()), |fields| {
            fields.add("index", &self.n_blocks);
            fields.add("content_block", block);
        });
        self.open = Some(kind);
        self.n_blocks += 1;
    }

    fn delta(&self, delta: &Delta<'_>, frames: &mut Frames) {
        frames.push_event(&self.delta, |fields| fields.add("delta", delta));
    }

    fn end(&mut self, frames: &mut Frames) {
        if self.open == Some(Kind::Thinking) {
            self.delta(&Delta::Signature { signature: SIGNATURE }, frames);
        }
        if self.open.take().is_some() {
            let index = self.n_blocks - 1;
            frames.push_event(&EventHead::new("content_block_stop", |_| ()), |fields| fields.add("index", &index));
        }
    }
}

fn delta_head(index: usize) -> EventHead {
    EventHead::new("content_block_delta", |fields| fields.add("index", &index))
}
