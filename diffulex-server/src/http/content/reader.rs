//! The pieces of an answer as it is committed: thoughts are told apart first, and calls are looked for in what is left.

use super::part::Piece;
use crate::http::reasoning::reader::{ReasoningReader, Told};
use crate::http::tools::calls::CallReader;

/// Reads one answer.
#[derive(Debug)]
pub(in crate::http) struct ContentReader {
    reasoning: Option<ReasoningReader>,
    calls: Option<CallReader>,
}

impl ContentReader {
    pub(super) fn new(reasoning: Option<ReasoningReader>, calls: Option<CallReader>) -> Self {
        Self { reasoning, calls }
    }

    /// Reads on in committed text.
    pub(in crate::http) fn push(&mut self, text: &str) -> Vec<Piece> {
        let told = match &mut self.reasoning {
            _ if text.is_empty() => Vec::new(),
            None => vec![Told::Text(text.to_owned())],
            Some(reader) => reader.push(text),
        };
        self.pieces(told)
    }

    /// What was held back: the answer is over.
    pub(in crate::http) fn finish(&mut self) -> Vec<Piece> {
        let told = self.reasoning.as_mut().map(ReasoningReader::finish).unwrap_or_default();
        let mut pieces = self.pieces(told);
        pieces.extend(self.calls.iter_mut().flat_map(CallReader::finish));
        pieces
    }

    /// There was a call.
    pub(in crate::http) fn has_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(CallReader::has_calls)
    }

    fn pieces(&mut self, told: Vec<Told>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for part in told {
            match (part, &mut self.calls) {
                (Told::Thought(thought), _) => pieces.push(Piece::Thought(thought)),
                (Told::Text(text), None) => pieces.push(Piece::Text(text)),
                (Told::Text(text), Some(calls)) => pieces.extend(calls.push(&text)),
            }
        }
        pieces
    }
}
