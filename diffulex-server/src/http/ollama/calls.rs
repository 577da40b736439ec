//! Calls of tools as Ollama writes them: each whole, with its arguments as an object.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::http::tools::calls::{Call, CallForm, CallReader, Piece};

/// The beginning of a call's id.
pub(super) const ID_PREFIX: &str = "call_";

#[derive(Serialize)]
pub(super) struct CallObject<'a> {
    id: &'a str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: Map<String, Value>,
}

impl<'a> CallObject<'a> {
    pub(super) fn of(call: &'a Call) -> Self {
        Self { id: &call.id, function: Function { name: &call.name, arguments: call.object() } }
    }
}

/// Text and calls of a whole answer. A call that was cut has no object, and is left out.
pub(super) fn answered<'a>(form: Option<&CallForm>, answer: &'a str) -> (Cow<'a, str>, Vec<Call>) {
    let Some(form) = form else { return (Cow::Borrowed(answer), Vec::new()) };
    let (text, mut calls) = form.apart(answer, ID_PREFIX);
    calls.retain(|call| call.is_whole);
    (text.into(), calls)
}

/// The calls of a stream, put together.
pub(super) struct StreamedCalls {
    reader: CallReader,
    /// The call whose arguments are coming.
    open: Option<Call>,
}

impl StreamedCalls {
    pub(super) fn new(reader: CallReader) -> Self {
        Self { reader, open: None }
    }

    /// The text and the whole calls that the next text of the answer brings.
    pub(super) fn push(&mut self, text: &str) -> (String, Vec<Call>) {
        let pieces = self.reader.push(text);
        self.gather(pieces)
    }

    /// What was held back.
    pub(super) fn finish(&mut self) -> (String, Vec<Call>) {
        let pieces = self.reader.finish();
        self.gather(pieces)
    }

    fn gather(&mut self, pieces: Vec<Piece>) -> (String, Vec<Call>) {
        let (mut text, mut calls) = (String::new(), Vec::new());
        for piece in pieces {
            match (piece, &mut self.open) {
                (Piece::Text(more), _) => text.push_str(&more),
                (Piece::Begin(call), open) => *open = Some(call),
                (Piece::Arguments(more), Some(call)) => call.arguments.push_str(&more),
                (Piece::Arguments(_), None) => {}
                (Piece::End, open) => calls.extend(open.take()),
            }
        }
        (text, calls)
    }
}
