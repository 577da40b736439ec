//! The parts of an answer, whole and in pieces.

use serde_json::{Map, Value};

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::http) struct Call {
    /// Unique.
    pub(in crate::http) id: String,
    /// The tool.
    pub(in crate::http) name: String,
    /// JSON of the arguments: an object, unless the answer was cut inside of it.
    pub(in crate::http) arguments: String,
    /// It was not cut.
    pub(in crate::http) is_whole: bool,
}

impl Call {
    /// The arguments as an object; empty where the answer was cut.
    pub(in crate::http) fn object(&self) -> Map<String, Value> {
        serde_json::from_str(&self.arguments).unwrap_or_default()
    }
}

/// A piece of an answer, in order.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) enum Piece {
    /// What the model thinks.
    Thought(String),
    /// Text outside of calls.
    Text(String),
    /// A call begins; its arguments are empty.
    Begin(Call),
    /// Arguments of the call that was begun last.
    Arguments(String),
    /// That call is complete. Missing where the answer was cut inside of it.
    End,
}

/// A part of an answer that is complete.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) enum Part {
    /// What the model thought.
    Thought(String),
    /// Text outside of calls.
    Text(String),
    Call(Call),
}

/// The parts of an answer that is complete, in order; no two thoughts or texts in a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::http) struct Parts(pub(in crate::http) Vec<Part>);

impl Parts {
    /// Adds what comes next.
    pub(super) fn add(&mut self, piece: Piece) {
        match (piece, self.0.last_mut()) {
            (Piece::Thought(more), Some(Part::Thought(last))) | (Piece::Text(more), Some(Part::Text(last))) => {
                last.push_str(&more);
            }
            (Piece::Thought(thought), _) => self.0.push(Part::Thought(thought)),
            (Piece::Text(text), _) => self.0.push(Part::Text(text)),
            (Piece::Begin(call), _) => self.0.push(Part::Call(call)),
            (Piece::Arguments(more), Some(Part::Call(call))) => call.arguments.push_str(&more),
            (Piece::End, Some(Part::Call(call))) => call.is_whole = true,
            (Piece::Arguments(_) | Piece::End, _) => {}
        }
    }

    /// All of its text.
    pub(in crate::http) fn text(&self) -> String {
        self.0.iter().filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None }).collect()
    }

    /// All of its thoughts; none if there are none.
    pub(in crate::http) fn thoughts(&self) -> Option<String> {
        let thoughts =
            self.0.iter().filter_map(|part| if let Part::Thought(thought) = part { Some(&**thought) } else { None });
        let thoughts: String = thoughts.collect();
        Some(thoughts).filter(|thoughts| !thoughts.is_empty())
    }

    /// Its calls.
    pub(in crate::http) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.0.iter().filter_map(|part| if let Part::Call(call) = part { Some(call) } else { None })
    }

    /// It has a call.
    pub(in crate::http) fn has_calls(&self) -> bool {
        self.calls().next().is_some()
    }
}
