//! Edits that a strategy may propose.

use crate::contract::view::{Candidate, MAX_TOP_K};

/// The network's input at an undecided position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input {
    /// A token, which may be the mask.
    Token(u32),
    /// A token drawn uniformly from the vocabulary, anew at each step.
    Noise,
    /// A weighted sum of embeddings.
    Blend(TokenBlend),
}

/// Weighted sum of the embeddings of tokens and the mask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBlend {
    /// Tokens and their weights, 0 or more; entries of weight 0 are unused.
    pub tokens: [(u32, f32); MAX_TOP_K + 1],
    /// Weight of the mask's embedding, 0 or more.
    pub mask: f32,
    /// Rescale the sum to the weighted sum of the embeddings' norms.
    pub keeps_length: bool,
}

/// A change of one position of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edit {
    /// Replace a mask by a final token.
    Fill {
        /// Index into the block.
        row: usize,
        /// The token.
        token: u32,
        /// Its probability.
        confidence: f32,
    },
    /// Replace a mask or a draft by a draft, which may be replaced until the block settles.
    Draft {
        /// Index into the block.
        row: usize,
        /// The token.
        token: u32,
        /// Its probability.
        confidence: f32,
        /// The network's input at this position in the next step.
        input: Input,
    },
    /// Replace a draft by the mask.
    Mask {
        /// Index into the block.
        row: usize,
    },
}

impl Edit {
    /// Writes a candidate as a final token.
    pub fn fill(&Candidate { row, token, confidence, .. }: &Candidate) -> Self {
        Self::Fill { row, token, confidence }
    }

    /// Writes a candidate as a draft; the network's input is the token itself.
    pub fn draft(&Candidate { row, token, confidence, .. }: &Candidate) -> Self {
        Self::Draft { row, token, confidence, input: Input::Token(token) }
    }
}

/// Edits of one block in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// Edits, in the order of application.
    pub edits: Vec<Edit>,
    /// The drafts become final after these edits, as soon as the block has no masks and all preceding blocks are decided.
    pub settles: bool,
}

impl Proposal {
    /// Writes the candidates as final tokens.
    pub fn fill(accepted: &[Candidate]) -> Self {
        Self { edits: accepted.iter().map(Edit::fill).collect(), settles: true }
    }
}
