//! `multi_bd`: block diffusion over block-causal attention, with one to several blocks in flight.
//!
//! A block of masks is denoised until it is full; its K/V are then written by the next forward, in which the blocks
//! behind it are denoised already. With `buffer_size` 1 that forward does nothing else (SDAR's own loop); with 2 and
//! `add_block_threshold` 1 the same tokens come for fewer forwards, since a block sees the final K/V of the one before
//! either way. Lower thresholds open blocks early, as Diffulex does.

use serde::{Deserialize, Serialize};

use crate::accept::AcceptRule;
use crate::edit::Proposal;
use crate::view::{BlockView, Progress};

/// Settings of `multi_bd`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MultiBlockConfig {
    /// Positions of a block; what the model was trained with (its config.json).
    pub block_size: usize,
    /// Blocks in flight, at least 1.
    pub buffer_size: usize,
    /// Share of the newest block that must be filled before another opens, in [0, 1]; at 1 nothing of it may change any
    /// more.
    pub add_block_threshold: f32,
    /// Which candidates are written.
    #[serde(flatten)]
    pub accept: AcceptRule,
    /// Denoise the first block in the forward that encodes an aligned prompt. Exact, and saves a forward.
    pub fuse_prefill: bool,
}

impl MultiBlockConfig {
    /// Confidence threshold where nobody sets one: SDAR's and Diffulex's engines (`accept_threshold`, 0.9).
    pub const ACCEPT_THRESHOLD: f32 = 0.9;
    /// Diffulex's `semi_complete_threshold`.
    pub const SEMI_COMPLETE_THRESHOLD: f32 = 0.9;
    /// Blocks in flight where nobody sets it: commits ride along, tokens are those of one block at a time.
    pub const BUFFER_SIZE: usize = 2;
    /// Goes with [`Self::BUFFER_SIZE`]: a block opens when the one before is full, which changes no token.
    pub const ADD_BLOCK_THRESHOLD: f32 = 1.0;
}

/// The strategy; all its state is the block's own.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct MultiBlock {
    config: MultiBlockConfig,
}

impl MultiBlock {
    /// A strategy with `config`.
    pub fn new(config: MultiBlockConfig) -> Self {
        Self { config }
    }

    /// Its settings.
    pub fn config(&self) -> &MultiBlockConfig {
        &self.config
    }

    /// Whether another block may open behind the live ones.
    ///
    /// `newest` is the last live block, `None` when none is live; `context_is_cached` tells that everything before the
    /// place of the next block has its K/V.
    pub fn opens_block(&self, n_live: usize, newest: Option<Progress>, context_is_cached: bool) -> bool {
        match newest {
            Some(newest) => {
                let threshold = self.config.add_block_threshold;
                let is_far = newest.is_settled() || threshold < 1.0 && newest.share() >= threshold;
                n_live < self.config.buffer_size && is_far
            }
            None => context_is_cached || self.config.fuse_prefill,
        }
    }

    /// What to write in one block now.
    pub fn step(&self, block: &BlockView<'_>) -> Proposal {
        Proposal::fill(self.config.accept.accept(block))
    }
}
