//! Edits: the proposals of a rule.

use crate::contract::view::{Candidate, MAX_TOP_K};

/// The network's input at an undecided position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input {
    /// A token, which may be the mask.
    Token(u32),
    /// A token drawn at random from the whole vocabulary, another one at each step.
    Noise,
    /// Something between tokens and the mask.
    Blend(TokenBlend),
}

/// A sum of embeddings by weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBlend {
    /// Tokens and their weights, 0 or more; those with weight 0 take no part.
    pub tokens: [(u32, f32); MAX_TOP_K + 1],
    /// Weight of the mask, 0 or more.
    pub mask: f32,
    /// The sum is brought to the length that the embeddings' lengths sum up to by the same weights.
    pub keeps_length: bool,
}

/// A change of one position of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edit {
    /// Write a token where a mask is, for good.
    Fill {
        /// Index into the block.
        row: usize,
        /// The token.
        token: u32,
        /// Its probability.
        confidence: f32,
    },
    /// Write a token where a mask or another draft is; it may be replaced until the block settles.
    Draft {
        /// Index into the block.
        row: usize,
        /// The token.
        token: u32,
        /// Its probability.
        confidence: f32,
        /// The network's input there in the next step.
        input: Input,
    },
    /// Put the mask back where a draft is.
    Mask {
        /// Index into the block.
        row: usize,
    },
}

impl Edit {
    /// A candidate written for good.
    pub fn fill(&Candidate { row, token, confidence, .. }: &Candidate) -> Self {
        Self::Fill { row, token, confidence }
    }

    /// A candidate written as a draft that the network reads as it stands.
    pub fn draft(&Candidate { row, token, confidence, .. }: &Candidate) -> Self {
        Self::Draft { row, token, confidence, input: Input::Token(token) }
    }
}

/// A strategy's decision about one block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// Changes, in the order in which they are made.
    pub edits: Vec<Edit>,
    /// With these made, what is written may stay: as soon as no mask is left and the blocks before are decided, the
    /// block's drafts are too.
    pub settles: bool,
}

impl Proposal {
    /// Candidates written for good.
    pub fn fill(accepted: &[Candidate]) -> Self {
        Self { edits: accepted.iter().map(Edit::fill).collect(), settles: true }
    }
}
