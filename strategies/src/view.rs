//! What a rule may look at.

/// What the network would write at one masked position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Index into the block, `0..block_size`.
    pub row: usize,
    /// The sampled token; never the mask.
    pub token: u32,
    /// Its probability, in [0, 1].
    pub confidence: f32,
    /// What rules rank by: the [`Score`] that the strategy asked for.
    pub score: f32,
}

/// What candidates may be ranked by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// Filled positions; the prompt's tail counts.
    pub n_filled: usize,
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
    /// One per masked position, ascending by row, at least one.
    pub candidates: &'a [Candidate],
}

/// The candidates of one block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockCandidates {
    /// Index of the block in its request.
    pub block: usize,
    /// One per masked position, ascending by row.
    pub candidates: Vec<Candidate>,
}
