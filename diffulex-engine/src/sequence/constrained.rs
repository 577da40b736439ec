//! The constraint of an answer, and the positions that it is worked out over.
//!
//! Decided positions always lie on an answer that the language has: every step decides tokens of one such answer only, and drafts are
//! rewritten to it, so whatever a strategy accepts and settles can be completed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use diffulex_constraints::Automaton;
use diffulex_protocol::ConstraintReport;

use super::answer::Answer;

/// A constraint of a request, and the part of its answer that must keep to it.
#[derive(Clone, Debug)]
pub struct Constrained {
    automaton: Arc<Automaton>,
    positions: Range<usize>,
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
    /// The language of `automaton`, which was compiled for this request in `took`, at `positions`.
    pub(crate) fn new(automaton: Arc<Automaton>, took: Duration, positions: Range<usize>) -> Self {
        Self { automaton, positions, compile_ms: took.as_secs_f64() * 1e3, forced: Vec::new() }
    }

    /// Positions of its text, up to the limit.
    pub fn positions(&self) -> Range<usize> {
        self.positions.clone()
    }

    /// The automaton over tokens, shared by requests.
    pub fn automaton(&self) -> &Arc<Automaton> {
        &self.automaton
    }

    /// First position at which its text may end. End tokens in a part of an answer do not end the answer, so they need not wait for
    /// what follows the part.
    pub fn ends_from(&self, answer: &Answer) -> usize {
        if self.positions == answer.range() { answer.stops_from() } else { self.positions.start }
    }

    /// Notes a position that was decided where one token was left.
    pub(super) fn note_forced(&mut self, position: usize) {
        self.forced.push(position);
    }
}

/// The report on `all` constraints of an answer at `positions`; `None` if there are none.
pub(super) fn report(all: &[Constrained], positions: Range<usize>) -> Option<ConstraintReport> {
    if all.is_empty() {
        return None;
    }
    let forced = all.iter().flat_map(|constraint| &constraint.forced).filter(|position| positions.contains(position));
    let mut forced: Vec<u32> = forced.map(|position| (position - positions.start) as u32).collect();
    forced.sort_unstable();
    let states = all.iter().map(|constraint| constraint.automaton.n_states() as u32).sum();
    let compile_ms = all.iter().map(|constraint| constraint.compile_ms).sum();
    Some(ConstraintReport { states, compile_ms, forced })
}
