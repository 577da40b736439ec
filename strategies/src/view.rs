//! The view of a rule: blocks, candidates and their scores.

use std::ops::Range;

/// Likeliest tokens of a position that a strategy may look at. Chosen by us: Diffulex's configurations look at three.
pub const MAX_TOP_K: usize = 8;

/// The network's prediction at one undecided position.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Index into the block, `0..block_size`.
    pub row: usize,
    /// The draft that stands there; `None`: a mask.
    pub current: Option<u32>,
    /// The sampled token; never the mask.
    pub token: u32,
    /// Its probability, in [0, 1].
    pub confidence: f32,
    /// The likeliest token and its probability; in greedy decoding the sampled one.
    pub likeliest: (u32, f32),
    /// The likeliest after that, in falling order, as far as the strategy or the client asks for them.
    pub runners_up: Vec<(u32, f32)>,
    /// The [`Score`] that the strategy asked for; rules rank by it.
    pub score: f32,
    /// A number in [0, 1), drawn for this position and step alone.
    pub chance: f32,
}

#[cfg(test)]
impl Candidate {
    /// One that is ranked by its confidence, and whose likeliest token is the sampled one.
    pub(crate) fn plain(row: usize, current: Option<u32>, token: u32, confidence: f32) -> Self {
        let likeliest = (token, confidence);
        let runners_up = Vec::new();
        Self { row, current, token, confidence, likeliest, runners_up, score: confidence, chance: 0.0 }
    }

    /// A block of them, row by row: `(token that stands there or None, token the network would write, its confidence)`.
    pub(crate) fn plain_block(rows: &[(Option<u32>, u32, f32)]) -> Vec<Self> {
        (0..)
            .zip(rows)
            .map(|(row, (current, token, confidence))| Self::plain(row, *current, *token, *confidence))
            .collect()
    }
}

/// Kinds of score to rank candidates by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Score {
    /// The token's probability.
    #[default]
    Probability,
    /// The likeliest token's probability less the second's.
    Margin,
    /// `sum p ln p` of the distribution: 0 where one token is certain.
    NegativeEntropy,
}

/// How far a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Filled positions; the prompt's tail counts, and so do drafts.
    pub n_filled: usize,
    /// Those of them that may still be replaced.
    pub n_drafts: usize,
    /// Positions of a block.
    pub block_size: usize,
}

impl Progress {
    /// Filled share, in [0, 1].
    pub fn share(self) -> f32 {
        self.n_filled as f32 / self.block_size as f32
    }

    /// No mask is left.
    pub fn is_complete(self) -> bool {
        self.n_filled == self.block_size
    }

    /// Nothing can change any more.
    pub fn is_settled(self) -> bool {
        self.is_complete() && self.n_drafts == 0
    }
}

/// Which rows of a block a step is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Focus {
    /// Rows that are forwarded; none: only what speaks of the first row is, in the block before.
    pub forwarded: Range<usize>,
    /// Rows up for a decision, as far as they are not decided.
    pub decided: Range<usize>,
}

impl Focus {
    /// All rows of a block of `block_size`.
    pub fn whole(block_size: usize) -> Self {
        Self { forwarded: 0..block_size, decided: 0..block_size }
    }
}

/// A block as it was before this step, and what the network says of its masked positions.
#[derive(Clone, Copy, Debug)]
pub struct BlockView<'a> {
    /// How far it is.
    pub progress: Progress,
    /// How far the block before it is; `None` where there is none. A block whose K/V are written is complete.
    pub previous: Option<Progress>,
    /// Denoise steps the block already took.
    pub step: usize,
    /// Those of them that began without a mask.
    pub full_steps: usize,
    /// Steps in a row, up to the last one, that left every token of it as it was.
    pub unchanged_steps: usize,
    /// Of each row, the confidence of its candidate in the last step that had one; 0 where none had.
    pub last_confidences: &'a [f32],
    /// Of each row, the confidence with which a token was last written there, though it may be masked again; 0 where none
    /// was.
    pub written_confidences: &'a [f32],
    /// One per undecided position that the step is about, ascending by row, at least one.
    pub candidates: &'a [Candidate],
}

#[cfg(test)]
impl<'a> BlockView<'a> {
    /// A block in its first step, with no block before it.
    pub(crate) fn first(progress: Progress, candidates: &'a [Candidate]) -> Self {
        Self {
            progress,
            previous: None,
            step: 0,
            full_steps: 0,
            unchanged_steps: 0,
            last_confidences: &[],
            written_confidences: &[],
            candidates,
        }
    }
}

/// The candidates of one block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockCandidates {
    /// Index of the block in its request.
    pub block: usize,
    /// One per undecided position that the step is about, ascending by row.
    pub candidates: Vec<Candidate>,
}
