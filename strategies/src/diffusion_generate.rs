//! `diffusion_generate`: Dream's own loop. The whole answer is one block of masks; a schedule over time says how many
//! positions are written at each step, a score which (Dream, generation_utils.py).

use serde::{Deserialize, Serialize};

use crate::accept::AcceptRule;
use crate::edit::Proposal;
use crate::view::BlockView;

/// Settings of `diffusion_generate`, which has no other state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiffusionGenerate {
    /// Longest answer, in positions.
    pub block_size: usize,
    /// Which candidates are written.
    #[serde(flatten)]
    pub accept: AcceptRule,
}

impl DiffusionGenerate {
    /// What to write now.
    pub fn step(&self, block: &BlockView<'_>) -> Proposal {
        Proposal::fill(self.accept.accept(block))
    }
}
