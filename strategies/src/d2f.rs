//! `d2f`: Discrete Diffusion Forcing, a pipeline of blocks for models with full attention and D2F's adapter.
//!
//! The pipeline is [`MultiBlock`]'s: a block opens when enough of the preceding block is filled, and must progress when nearly
//! all of that block is filled. It differs in the layout, [`Layout::PromptFirst`], and in that the prompt is encoded in the
//! forward that denoises the first block (zhijie-group/Discrete-Diffusion-Forcing, `_generate_block_single`).

use crate::accept::{AcceptRule, GatedThreshold, Threshold};
use crate::contract::edit::Proposal;
use crate::contract::layout::{AttentionKind, Layout};
use crate::contract::setting::{Overrides, Setting, SettingError};
use crate::contract::view::{BlockProgress, BlockView};
use crate::multi_block::{MultiBlock, MultiBlockConfig};
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// Settings of `d2f`; all state is in the block.
#[derive(Clone, Debug, PartialEq)]
pub struct D2f {
    /// Decoding of the blocks after the prompt.
    pub pipeline: MultiBlock,
}

impl D2f {
    /// Default number of blocks in flight: Diffulex's `buffer_size` for D2F. The authors' loop has no limit.
    const BUFFER_SIZE: usize = 4;
    /// The authors' `block_add_threshold`.
    const ADD_BLOCK_THRESHOLD: f32 = 0.1;
    /// The authors' `decoded_token_threshold`.
    const SEMI_COMPLETE_THRESHOLD: f32 = 0.95;
}

impl Strategy for D2f {
    const NAME: &'static str = "d2f";
    const LAYOUT: Layout = Layout::PromptFirst;
    const SETTINGS: &'static [&'static Setting] = MultiBlock::SETTINGS;
    const HAS_BUFFER: bool = true;

    fn fits(model: &ModelTraits) -> bool {
        model.attention == AttentionKind::Full && model.may_have_d2f
    }

    fn new(model: &ModelTraits) -> Self {
        let accept = AcceptRule::GatedThreshold(GatedThreshold {
            accept_threshold: Threshold::ACCEPT_THRESHOLD,
            semi_complete_threshold: Self::SEMI_COMPLETE_THRESHOLD,
        });
        Self {
            pipeline: MultiBlock::of(MultiBlockConfig {
                block_size: model.block_size,
                buffer_size: model.buffer_size.unwrap_or(Self::BUFFER_SIZE),
                add_block_threshold: Self::ADD_BLOCK_THRESHOLD,
                accept,
                fuse_prefill: true,
            }),
        }
    }

    fn requirements(&self) -> Requirements {
        Requirements { layout: Self::LAYOUT, ..self.pipeline.requirements() }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        self.pipeline.set(overrides)
    }

    fn opens_block(&self, n_live: usize, newest: Option<BlockProgress>, context_is_cached: bool) -> bool {
        self.pipeline.opens_block(n_live, newest, context_is_cached)
    }

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        self.pipeline.step(block)
    }
}
