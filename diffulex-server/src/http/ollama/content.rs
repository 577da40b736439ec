//! Content of answers as Ollama writes it: thoughts, text, and calls of tools, each whole, with its arguments as an object.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::http::content::form::ContentForm;
use crate::http::content::part::{Call, Piece};
use crate::http::content::reader::ContentReader;

/// The beginning of a call's id.
const ID_PREFIX: &str = "call_";

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

/// Content of a line.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) thoughts: Option<String>,
    pub(super) text: String,
    pub(super) calls: Vec<Call>,
}

impl Content {
    /// That of a whole answer. A call that was cut has no object, and is left out.
    pub(super) fn of(form: &ContentForm, answer: &str) -> Self {
        let mut reader = StreamedContent::new(form);
        let mut content = reader.push(answer);
        let rest = reader.finish();
        content.text.push_str(&rest.text);
        content.calls.extend(rest.calls);
        content.thoughts = match (content.thoughts, rest.thoughts) {
            (Some(first), Some(rest)) => Some(first + &rest),
            (first, rest) => first.or(rest),
        };
        content
    }

    pub(super) fn is_empty(&self) -> bool {
        self.thoughts.is_none() && self.text.is_empty() && self.calls.is_empty()
    }
}

/// The content of a stream, calls put together.
pub(super) struct StreamedContent {
    reader: ContentReader,
    /// The call whose arguments are coming.
    open: Option<Call>,
}

impl StreamedContent {
    pub(super) fn new(form: &ContentForm) -> Self {
        Self { reader: form.reader(ID_PREFIX), open: None }
    }

    /// What the next text of the answer brings.
    pub(super) fn push(&mut self, text: &str) -> Content {
        let pieces = self.reader.push(text);
        self.gather(pieces)
    }

    /// What was held back.
    pub(super) fn finish(&mut self) -> Content {
        let pieces = self.reader.finish();
        self.gather(pieces)
    }

    fn gather(&mut self, pieces: Vec<Piece>) -> Content {
        let mut content = Content::default();
        for piece in pieces {
            match (piece, &mut self.open) {
                (Piece::Thought(more), _) => content.thoughts.get_or_insert_default().push_str(&more),
                (Piece::Text(more), _) => content.text.push_str(&more),
                (Piece::Begin(call), open) => *open = Some(call),
                (Piece::Arguments(more), Some(call)) => call.arguments.push_str(&more),
                (Piece::Arguments(_), None) => {}
                (Piece::End, open) => content.calls.extend(open.take()),
            }
        }
        content
    }
}
