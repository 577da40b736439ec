//! `multi_bd`: block diffusion with block-causal attention and one or more blocks in flight.
//!
//! A block of masks is denoised until it is full. The next forward writes its final K/V and denoises the following blocks. With
//! `buffer_size` 1 that forward only writes K/V, as in SDAR's loop. With 2 and `add_block_threshold` 1 the tokens are the same
//! for fewer forwards, because a block attends to the final K/V of the preceding one either way. Lower thresholds open blocks
//! early, as in Diffulex.

use crate::accept::{AcceptRule, Threshold};
use crate::contract::edit::Proposal;
use crate::contract::layout::{AttentionKind, Layout};
use crate::contract::setting::{Field, Overrides, Setting, SettingError};
use crate::contract::view::{BlockProgress, BlockView};
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// See [`MultiBlockConfig::add_block_threshold`].
pub(crate) const ADD_BLOCK_THRESHOLD: Setting =
    Setting::number("add_block_threshold", "SHARE", 0.0, 1.0, "Share of a block to fill before the next one opens");

/// Settings of `multi_bd`.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiBlockConfig {
    /// Positions of a block, as in training (config.json).
    pub block_size: usize,
    /// Blocks in flight, at least 1.
    pub buffer_size: usize,
    /// Filled share of the newest block at which the next one opens, in [0, 1]. At 1 the block must also have settled.
    pub add_block_threshold: f32,
    /// The accept rule.
    pub accept: AcceptRule,
    /// Denoise the first block in the forward that encodes a block-aligned prompt. Saves a forward with the same result.
    pub fuse_prefill: bool,
}

/// The strategy `multi_bd`; all state is in the block.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiBlock {
    config: MultiBlockConfig,
}

impl MultiBlock {
    /// Default number of blocks in flight. Chosen by us: commits take no extra forward, and tokens are the same as with one block.
    const BUFFER_SIZE: usize = 2;
    /// Default. Chosen by us: a block opens only when the preceding one is full, so tokens are the same as with one block.
    const ADD_BLOCK_THRESHOLD: f32 = 1.0;

    /// Creates the strategy with `config`.
    pub fn of(config: MultiBlockConfig) -> Self {
        Self { config }
    }

    /// Creates the strategy with `accept` and the defaults for this model.
    pub(crate) fn accepting(model: &ModelTraits, accept: AcceptRule) -> Self {
        Self::of(MultiBlockConfig {
            block_size: model.block_size,
            buffer_size: model.buffer_size.unwrap_or(Self::BUFFER_SIZE),
            add_block_threshold: Self::ADD_BLOCK_THRESHOLD,
            accept,
            fuse_prefill: false,
        })
    }

    /// Returns the settings.
    pub fn config(&self) -> &MultiBlockConfig {
        &self.config
    }
}

impl Strategy for MultiBlock {
    const NAME: &'static str = "multi_bd";
    const LAYOUT: Layout = Layout::BlockCausal;
    const SETTINGS: &'static [&'static Setting] = &[&ADD_BLOCK_THRESHOLD];
    const HAS_BUFFER: bool = true;

    fn fits(model: &ModelTraits) -> bool {
        model.attention == AttentionKind::BlockCausal && !model.is_shifted
    }

    fn new(model: &ModelTraits) -> Self {
        let accept_threshold = model.accept_threshold.unwrap_or(Threshold::ACCEPT_THRESHOLD);
        Self::accepting(model, AcceptRule::Threshold(Threshold { accept_threshold }))
    }

    fn requirements(&self) -> Requirements {
        let MultiBlockConfig { block_size, buffer_size, accept, .. } = self.config;
        Requirements { buffer_size, ..Requirements::new(Self::LAYOUT, block_size, Some(accept)) }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        let config = &mut self.config;
        config.accept.set(overrides, config.block_size)?;
        overrides.apply(vec![(&ADD_BLOCK_THRESHOLD, Field::Number(&mut config.add_block_threshold))])
    }

    fn opens_block(&self, n_live: usize, newest: Option<BlockProgress>, context_is_cached: bool) -> bool {
        match newest {
            Some(newest) => {
                let threshold = self.config.add_block_threshold;
                let is_far = newest.is_settled() || threshold < 1.0 && newest.share() >= threshold;
                n_live < self.config.buffer_size && is_far
            }
            None => context_is_cached || self.config.fuse_prefill,
        }
    }

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        Proposal::fill(&self.config.accept.accept(block))
    }
}
