//! `multi_bd`: block diffusion over block-causal attention, with one to several blocks in flight.
//!
//! A block of masks is denoised until it is full; its K/V are then written by the next forward, in which the blocks
//! behind it are denoised already. With `buffer_size` 1 that forward does nothing else (SDAR's own loop); with 2 and
//! `add_block_threshold` 1 the same tokens come for fewer forwards, since a block attends to the final K/V of the one
//! before either way. Lower thresholds open blocks early, as Diffulex does.

use crate::accept::{AcceptRule, Threshold};
use crate::contract::edit::Proposal;
use crate::contract::layout::{AttentionKind, Layout};
use crate::contract::setting::{Field, Overrides, Setting, SettingError};
use crate::contract::view::{BlockProgress, BlockView};
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// See [`MultiBlockConfig::add_block_threshold`].
pub(crate) const ADD_BLOCK_THRESHOLD: Setting = Setting::number(
    "add_block_threshold",
    "SHARE",
    0.0,
    1.0,
    "Share of a block that must be filled before the next one opens",
);

/// Settings of `multi_bd`.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiBlockConfig {
    /// Positions of a block; what the model was trained with (its config.json).
    pub block_size: usize,
    /// Blocks in flight, at least 1.
    pub buffer_size: usize,
    /// Share of the newest block that must be filled before another opens, in [0, 1]; at 1 nothing of it may change any
    /// more.
    pub add_block_threshold: f32,
    /// Which candidates are written.
    pub accept: AcceptRule,
    /// Denoise the first block in the forward that encodes an aligned prompt. Exact, and saves a forward.
    pub fuse_prefill: bool,
}

/// The strategy; all its state is the block's own.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiBlock {
    config: MultiBlockConfig,
}

impl MultiBlock {
    /// Blocks in flight by default: commits ride along, tokens are those of one block at a time. Chosen by us.
    const BUFFER_SIZE: usize = 2;
    /// Goes with [`Self::BUFFER_SIZE`]: a block opens when the one before is full, which changes no token.
    const ADD_BLOCK_THRESHOLD: f32 = 1.0;

    /// A strategy with `config`.
    pub fn of(config: MultiBlockConfig) -> Self {
        Self { config }
    }

    /// With `accept` and the defaults for this model.
    pub(crate) fn accepting(model: &ModelTraits, accept: AcceptRule) -> Self {
        Self::of(MultiBlockConfig {
            block_size: model.block_size,
            buffer_size: model.buffer_size.unwrap_or(Self::BUFFER_SIZE),
            add_block_threshold: Self::ADD_BLOCK_THRESHOLD,
            accept,
            fuse_prefill: false,
        })
    }

    /// Its settings.
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
