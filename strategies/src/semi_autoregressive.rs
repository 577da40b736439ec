//! `semi_ar`: LLaDA's own loop. All of the answer stands there as masks; blocks are filled one after the other, left to
//! right, while the network sees everything (LLaDA, ML-GSAI/LLaDA generate.py; with a threshold: Fast-dLLM, no cache).

use serde::{Deserialize, Serialize};

use crate::accept::AcceptRule;
use crate::edit::Proposal;
use crate::view::BlockView;

/// Settings of `semi_ar`, which has no other state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SemiAutoregressive {
    /// Positions of a block.
    pub block_size: usize,
    /// Which candidates of the first block with masks are written.
    #[serde(flatten)]
    pub accept: AcceptRule,
}

impl SemiAutoregressive {
    /// Threshold of Fast-dLLM's generate (`threshold`, llada/generate.py).
    pub const ACCEPT_THRESHOLD: f32 = 0.9;

    /// What to write in the first block with masks now.
    pub fn step(&self, block: &BlockView<'_>) -> Proposal {
        Proposal::fill(self.accept.accept(block))
    }
}
