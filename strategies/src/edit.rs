//! What a rule may propose.

use crate::view::Candidate;

/// A change of one position of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edit {
    /// Write a token where a mask is.
    Fill {
        /// Index into the block.
        row: usize,
        /// The token.
        token: u32,
        /// Its probability.
        confidence: f32,
    },
}

impl From<Candidate> for Edit {
    fn from(candidate: Candidate) -> Self {
        Self::Fill { row: candidate.row, token: candidate.token, confidence: candidate.confidence }
    }
}
