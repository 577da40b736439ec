//! The constraint of an answer, and the positions that it is worked out over.
//!
//! Decided positions always lie on an answer that the language has: every step decides tokens of one such answer only, and drafts are
//! rewritten to it, so whatever a strategy accepts and settles can be completed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use diffulex_constraints::Automaton;
use diffulex_protocol::ConstraintReport;

/// The constraint of a request.
#[derive(Clone, Debug)]
pub struct Constrained {
    automaton: Arc<Automaton>,
    compile_ms: f64,
    /// Positions that were decided where one token was left.
    forced: Vec<usize>,
}

/// An answer that the language has, over the positions that are not decided and those between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The first position.
    pub start: usize,
    /// Tokens that drafts are rewritten to, one per position.
    pub drafts: Vec<u32>,
    /// Probability of each draft's token.
    pub confidences: Vec<f32>,
    /// Whether one token was left at the position.
    pub is_forced: Vec<bool>,
}

impl Path {
    /// Its positions.
    pub fn positions(&self) -> Range<usize> {
        self.start..self.start + self.drafts.len()
    }
}

impl Constrained {
    /// The language of `automaton`, which was compiled for this request in `took`.
    pub(crate) fn new(automaton: Arc<Automaton>, took: Duration) -> Self {
        Self { automaton, compile_ms: took.as_secs_f64() * 1e3, forced: Vec::new() }
    }

    /// The automaton over tokens, shared by requests.
    pub fn automaton(&self) -> &Arc<Automaton> {
        &self.automaton
    }

    /// Notes a position that was decided where one token was left.
    pub(super) fn note_forced(&mut self, position: usize) {
        self.forced.push(position);
    }

    /// The report on an answer at `positions`.
    pub(super) fn report(&self, positions: Range<usize>) -> ConstraintReport {
        let mut forced: Vec<u32> = self
            .forced
            .iter()
            .filter(|position| positions.contains(position))
            .map(|position| (position - positions.start) as u32)
            .collect();
        forced.sort_unstable();
        ConstraintReport { states: self.automaton.n_states() as u32, compile_ms: self.compile_ms, forced }
    }
}
