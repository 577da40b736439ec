//! `d2f`: Discrete Diffusion Forcing, a pipeline of blocks for models that were trained with attention to everything and
//! have D2F's adapter added.
//!
//! The pipeline is [`MultiBlock`]'s: a block opens when enough of the one before is written, and may be forced when nearly
//! all of that is. What differs is where blocks lie, [`Layout::PromptFirst`](crate::Layout::PromptFirst), and that a prompt
//! is encoded in the forward that denoises its first block (zhijie-group/Discrete-Diffusion-Forcing,
//! `_generate_block_single`).

use serde::Serialize;

use crate::accept::AcceptRule;
use crate::multi_block::{MultiBlock, MultiBlockConfig};

/// The strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct D2f {
    /// What happens behind the prompt.
    pub pipeline: MultiBlock,
}

impl D2f {
    /// Blocks in flight; Diffulex's `buffer_size` for D2F. The authors' loop has no bound.
    pub const BUFFER_SIZE: usize = 4;

    /// A strategy with the authors' thresholds.
    pub fn new(block_size: usize, buffer_size: usize) -> Self {
        Self {
            pipeline: MultiBlock::new(MultiBlockConfig {
                block_size,
                buffer_size,
                // Their `block_add_threshold`, `skip_threshold` and `decoded_token_threshold`.
                add_block_threshold: 0.1,
                accept: AcceptRule::GatedThreshold { accept_threshold: 0.9, semi_complete_threshold: 0.95 },
                fuse_prefill: true,
            }),
        }
    }
}
