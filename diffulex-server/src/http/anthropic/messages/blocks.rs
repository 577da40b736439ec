//! Blocks of a message: text, and calls of tools.
//!
//! Where tools are offered, a block begins with its first text or call, as nobody knows before which it will be.

use std::borrow::Cow;

use diffulex_protocol::ServingReply;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::http::answer::sse::{EventHead, Frames};
use crate::http::tools::calls::{Call, CallForm, CallReader, Part, Piece};

/// The beginning of a call's id.
const ID_PREFIX: &str = "toolu_";

/// A block.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block<'a> {
    Text { text: &'a str },
    ToolUse { id: &'a str, name: &'a str, input: Map<String, Value> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta<'a> {
    TextDelta { text: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

/// The content of a whole answer.
pub(super) enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Part>),
}

impl<'a> Content<'a> {
    /// The content of `reply`, whose calls are found by `form`.
    pub(super) fn of(form: Option<&CallForm>, reply: &'a ServingReply) -> Self {
        let parts = form.map(|form| form.parts(&reply.text, ID_PREFIX)).unwrap_or_default();
        if parts.is_empty() { Self::Text(Cow::Borrowed(&reply.text)) } else { Self::Parts(parts) }
    }

    pub(super) fn has_calls(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Parts(parts) => parts.iter().any(|part| matches!(part, Part::Call(_))),
        }
    }

    pub(super) fn blocks(&self) -> Vec<Block<'_>> {
        match self {
            Self::Text(text) => vec![Block::Text { text }],
            Self::Parts(parts) => parts.iter().map(Block::of).collect(),
        }
    }
}

impl<'a> Block<'a> {
    fn of(part: &'a Part) -> Self {
        match part {
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
    /// Where tools are offered.
    reader: Option<CallReader>,
    open: Option<Kind>,
    n_blocks: usize,
    /// Events of the open block, of which there are many.
    delta: EventHead,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Call,
}

impl BlockWriter {
    /// Of an answer whose calls are found by `form`.
    pub(super) fn new(form: Option<&CallForm>) -> Self {
        let reader = form.map(|form| form.reader(ID_PREFIX));
        Self { reader, open: None, n_blocks: 0, delta: delta_head(0) }
    }

    /// Before anything is written.
    pub(super) fn open(&mut self, frames: &mut Frames) {
        if self.reader.is_none() {
            self.begin(Kind::Text, &Block::Text { text: "" }, frames);
        }
    }

    /// The next text of the answer.
    pub(super) fn text(&mut self, text: &str, frames: &mut Frames) {
        // Text held back (an incomplete character, a possible stop string) comes with a later event.
        if text.is_empty() {
            return;
        }
        match &mut self.reader {
            None => self.delta(&Delta::TextDelta { text }, frames),
            Some(reader) => {
                let pieces = reader.push(text);
                self.pieces(&pieces, frames);
            }
        }
    }

    /// The end of the answer. True if there were calls.
    pub(super) fn finish(&mut self, frames: &mut Frames) -> bool {
        let pieces = self.reader.as_mut().map(CallReader::finish).unwrap_or_default();
        self.pieces(&pieces, frames);
        if self.n_blocks == 0 {
            // Clients read the first block of an answer.
            self.begin(Kind::Text, &Block::Text { text: "" }, frames);
        }
        self.end(frames);
        self.reader.as_ref().is_some_and(CallReader::has_calls)
    }

    fn pieces(&mut self, pieces: &[Piece], frames: &mut Frames) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => {
                    if self.open != Some(Kind::Text) {
                        self.begin(Kind::Text, &Block::Text { text: "" }, frames);
                    }
                    self.delta(&Delta::TextDelta { text }, frames);
                }
                Piece::Begin(call) => self.begin(Kind::Call, &Block::begun(call), frames),
                Piece::Arguments(json) => self.delta(&Delta::InputJsonDelta { partial_json: json }, frames),
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
        if self.open.take().is_some() {
            let index = self.n_blocks - 1;
            frames.push_event(&EventHead::new("content_block_stop", |_| ()), |fields| fields.add("index", &index));
        }
    }
}

fn delta_head(index: usize) -> EventHead {
    EventHead::new("content_block_delta", |fields| fields.add("index", &index))
}
