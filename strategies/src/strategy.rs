//! The strategies as one type: a forgotten case is a compile error.

use serde::Serialize;

use crate::accept::AcceptRule;
use crate::block_edit::BlockEdit;
use crate::canvas_renoise::CanvasRenoise;
use crate::d2f::D2f;
use crate::diffusion_generate::DiffusionGenerate;
use crate::edit::{Edit, Proposal};
use crate::fast_dllm_v2::FastDllmV2;
use crate::layout::Layout;
use crate::multi_block::MultiBlock;
use crate::semi_autoregressive::{KvReuse, SemiAutoregressive};
use crate::token_merge::TokenMerge;
use crate::view::{BlockView, Candidate, Focus, Progress};

/// The strategies, without settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrategyKind {
    /// See [`MultiBlock`].
    MultiBlock,
    /// See [`BlockEdit`].
    BlockEdit,
    /// See [`TokenMerge`].
    TokenMerge,
    /// See [`SemiAutoregressive`].
    SemiAutoregressive,
    /// See [`DiffusionGenerate`].
    DiffusionGenerate,
    /// See [`D2f`].
    D2f,
    /// See [`CanvasRenoise`].
    CanvasRenoise,
    /// See [`FastDllmV2`].
    FastDllmV2,
}

impl StrategyKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::MultiBlock,
        Self::BlockEdit,
        Self::TokenMerge,
        Self::SemiAutoregressive,
        Self::DiffusionGenerate,
        Self::D2f,
        Self::CanvasRenoise,
        Self::FastDllmV2,
    ];

    /// Its name, as operators write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MultiBlock => "multi_bd",
            Self::BlockEdit => "block_edit",
            Self::TokenMerge => "dmax",
            Self::SemiAutoregressive => "semi_ar",
            Self::DiffusionGenerate => "diffusion_generate",
            Self::D2f => "d2f",
            Self::CanvasRenoise => "diffusion_gemma",
            Self::FastDllmV2 => "fast_dllm_v2",
        }
    }

    /// Whether it keeps several blocks in flight, and so has the settings of [`MultiBlock`].
    pub fn has_pipeline(self) -> bool {
        match self {
            Self::MultiBlock | Self::BlockEdit | Self::TokenMerge | Self::D2f => true,
            Self::SemiAutoregressive | Self::DiffusionGenerate | Self::FastDllmV2 | Self::CanvasRenoise => false,
        }
    }

    /// What it needs of memory and masks.
    pub fn layout(self) -> Layout {
        match self {
            Self::MultiBlock | Self::BlockEdit | Self::TokenMerge | Self::FastDllmV2 => Layout::BlockCausal,
            Self::D2f => Layout::PromptFirst,
            Self::SemiAutoregressive | Self::DiffusionGenerate => Layout::WholeAnswer,
            Self::CanvasRenoise => Layout::Canvases,
        }
    }
}

/// A strategy with its settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "strategy")]
pub enum Strategy {
    /// `multi_bd`.
    #[serde(rename = "multi_bd")]
    MultiBlock(MultiBlock),
    /// `block_edit`.
    #[serde(rename = "block_edit")]
    BlockEdit(BlockEdit),
    /// `dmax`.
    #[serde(rename = "dmax")]
    TokenMerge(TokenMerge),
    /// `semi_ar`.
    #[serde(rename = "semi_ar")]
    SemiAutoregressive(SemiAutoregressive),
    /// `diffusion_generate`.
    #[serde(rename = "diffusion_generate")]
    DiffusionGenerate(DiffusionGenerate),
    /// `d2f`.
    #[serde(rename = "d2f")]
    D2f(D2f),
    /// `diffusion_gemma`.
    #[serde(rename = "diffusion_gemma")]
    CanvasRenoise(CanvasRenoise),
    /// `fast_dllm_v2`.
    #[serde(rename = "fast_dllm_v2")]
    FastDllmV2(FastDllmV2),
}

impl Strategy {
    /// Which it is.
    pub fn kind(&self) -> StrategyKind {
        match self {
            Self::MultiBlock(_) => StrategyKind::MultiBlock,
            Self::BlockEdit(_) => StrategyKind::BlockEdit,
            Self::TokenMerge(_) => StrategyKind::TokenMerge,
            Self::SemiAutoregressive(_) => StrategyKind::SemiAutoregressive,
            Self::DiffusionGenerate(_) => StrategyKind::DiffusionGenerate,
            Self::D2f(_) => StrategyKind::D2f,
            Self::CanvasRenoise(_) => StrategyKind::CanvasRenoise,
            Self::FastDllmV2(_) => StrategyKind::FastDllmV2,
        }
    }

    /// Its name, as operators write it.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// What it needs of memory and masks.
    pub fn layout(&self) -> Layout {
        self.kind().layout()
    }

    /// Positions of a block.
    pub fn block_size(&self) -> usize {
        match self {
            Self::MultiBlock(blocks)
            | Self::BlockEdit(BlockEdit { blocks, .. })
            | Self::TokenMerge(TokenMerge { blocks, .. }) => blocks.config().block_size,
            Self::SemiAutoregressive(semi_autoregressive) => semi_autoregressive.block_size,
            Self::DiffusionGenerate(diffusion_generate) => diffusion_generate.block_size,
            Self::D2f(d2f) => d2f.pipeline.config().block_size,
            Self::CanvasRenoise(canvas_renoise) => canvas_renoise.block_size,
            Self::FastDllmV2(fast_dllm_v2) => fast_dllm_v2.block_size,
        }
    }

    /// Blocks that are denoised at once, at most.
    pub fn buffer_size(&self) -> usize {
        match self {
            Self::MultiBlock(blocks)
            | Self::BlockEdit(BlockEdit { blocks, .. })
            | Self::TokenMerge(TokenMerge { blocks, .. }) => blocks.config().buffer_size,
            Self::SemiAutoregressive(_) | Self::DiffusionGenerate(_) | Self::FastDllmV2(_) => 1,
            Self::D2f(d2f) => d2f.pipeline.config().buffer_size,
            Self::CanvasRenoise(_) => CanvasRenoise::BUFFER_SIZE,
        }
    }

    /// Its accept rule.
    pub fn accept(&self) -> AcceptRule {
        match self {
            Self::MultiBlock(blocks)
            | Self::BlockEdit(BlockEdit { blocks, .. })
            | Self::TokenMerge(TokenMerge { blocks, .. }) => blocks.config().accept,
            Self::SemiAutoregressive(semi_autoregressive) => semi_autoregressive.accept,
            Self::DiffusionGenerate(diffusion_generate) => diffusion_generate.accept,
            Self::D2f(d2f) => d2f.pipeline.config().accept,
            Self::CanvasRenoise(canvas_renoise) => canvas_renoise.accept,
            Self::FastDllmV2(fast_dllm_v2) => fast_dllm_v2.accept,
        }
    }

    /// Whether another block may open; see [`MultiBlock::opens_block`].
    pub fn opens_block(&self, n_live: usize, newest: Option<Progress>, context_is_cached: bool) -> bool {
        match self {
            Self::MultiBlock(blocks)
            | Self::BlockEdit(BlockEdit { blocks, .. })
            | Self::TokenMerge(TokenMerge { blocks, .. }) => blocks.opens_block(n_live, newest, context_is_cached),
            // All of them are open from the start.
            Self::SemiAutoregressive(_) | Self::DiffusionGenerate(_) => false,
            Self::D2f(d2f) => d2f.pipeline.opens_block(n_live, newest, context_is_cached),
            Self::FastDllmV2(fast_dllm_v2) => fast_dllm_v2.opens_block(n_live, newest),
            Self::CanvasRenoise(canvas_renoise) => canvas_renoise.opens_block(n_live, newest),
        }
    }

    /// Whether decided blocks are encoded in a forward of their own wherever the next one has rows to forward.
    pub fn encodes_apart(&self) -> bool {
        match self {
            Self::MultiBlock(_)
            | Self::BlockEdit(_)
            | Self::TokenMerge(_)
            | Self::SemiAutoregressive(_)
            | Self::DiffusionGenerate(_)
            | Self::D2f(_)
            | Self::CanvasRenoise(_) => false,
            // As its authors' loop does, whose forwards ours are one for one.
            Self::FastDllmV2(_) => true,
        }
    }

    /// What the logits of a block are divided by that took `step` steps, before anything else is made of them.
    pub fn temperature(&self, step: usize) -> f32 {
        match self {
            Self::MultiBlock(_)
            | Self::BlockEdit(_)
            | Self::TokenMerge(_)
            | Self::SemiAutoregressive(_)
            | Self::DiffusionGenerate(_)
            | Self::D2f(_)
            | Self::FastDllmV2(_) => 1.0,
            Self::CanvasRenoise(canvas_renoise) => canvas_renoise.temperature(step),
        }
    }

    /// Which rows of a block with masks the next step is about. `masked` has one per row; `is_written` tells that all
    /// rows were forwarded together before: what is left out now is seen as it was then.
    pub fn focus(&self, masked: &[bool], is_written: bool) -> Focus {
        match self {
            Self::MultiBlock(_)
            | Self::BlockEdit(_)
            | Self::TokenMerge(_)
            | Self::DiffusionGenerate(_)
            | Self::D2f(_)
            | Self::CanvasRenoise(_) => Focus::whole(masked.len()),
            Self::SemiAutoregressive(semi_autoregressive) => semi_autoregressive.focus(masked),
            Self::FastDllmV2(fast_dllm_v2) => fast_dllm_v2.focus(masked, is_written),
        }
    }

    /// What only `semi_ar` has.
    fn semi_autoregressive(&self) -> Option<&SemiAutoregressive> {
        match self {
            Self::SemiAutoregressive(semi_autoregressive) => Some(semi_autoregressive),
            Self::MultiBlock(_)
            | Self::BlockEdit(_)
            | Self::TokenMerge(_)
            | Self::DiffusionGenerate(_)
            | Self::D2f(_)
            | Self::CanvasRenoise(_)
            | Self::FastDllmV2(_) => None,
        }
    }

    /// Which K/V of a whole answer are used again inside a block.
    pub fn kv_reuse(&self) -> KvReuse {
        self.semi_autoregressive().map_or(KvReuse::None, |semi_autoregressive| semi_autoregressive.kv_reuse)
    }

    /// How far logits are moved on from those without the prompt, if they are: [`SemiAutoregressive::cfg_scale`].
    pub fn guidance(&self) -> Option<f32> {
        self.semi_autoregressive().map(|semi_autoregressive| semi_autoregressive.cfg_scale).filter(|scale| *scale > 0.0)
    }

    /// What is taken off the logit of the token that stands one row before: [`EditRule::Joint`](crate::EditRule::Joint).
    pub fn penalty_lambda(&self) -> f32 {
        match self {
            Self::BlockEdit(block_edit) => block_edit.edit.penalty_lambda(),
            Self::MultiBlock(_)
            | Self::TokenMerge(_)
            | Self::SemiAutoregressive(_)
            | Self::DiffusionGenerate(_)
            | Self::D2f(_)
            | Self::CanvasRenoise(_)
            | Self::FastDllmV2(_) => 0.0,
        }
    }

    /// How many of the likeliest tokens of a position it looks at, at most [`MAX_TOP_K`](crate::view::MAX_TOP_K).
    pub fn n_likeliest(&self) -> usize {
        match self {
            Self::TokenMerge(token_merge) => token_merge.merge.top_k,
            Self::MultiBlock(_)
            | Self::BlockEdit(_)
            | Self::SemiAutoregressive(_)
            | Self::DiffusionGenerate(_)
            | Self::D2f(_)
            | Self::CanvasRenoise(_)
            | Self::FastDllmV2(_) => 1,
        }
    }

    /// How often a request's rows are forwarded: with guidance once more, without the prompt.
    pub fn n_copies(&self) -> usize {
        1 + usize::from(self.guidance().is_some())
    }

    /// What to write in one block now.
    pub fn step(&self, block: &BlockView<'_>) -> Proposal {
        match self {
            Self::MultiBlock(multi_block) => multi_block.step(block),
            Self::BlockEdit(block_edit) => block_edit.step(block),
            Self::TokenMerge(token_merge) => token_merge.step(block),
            Self::SemiAutoregressive(semi_autoregressive) => semi_autoregressive.step(block),
            Self::DiffusionGenerate(diffusion_generate) => diffusion_generate.step(block),
            Self::D2f(d2f) => d2f.pipeline.step(block),
            Self::CanvasRenoise(canvas_renoise) => canvas_renoise.step(block),
            Self::FastDllmV2(fast_dllm_v2) => fast_dllm_v2.step(block),
        }
    }

    /// Writes one candidate whatever the rules say, for a watchdog that finds no progress.
    pub fn force(&self, candidate: Candidate) -> Proposal {
        let edit = match self {
            Self::BlockEdit(_) | Self::TokenMerge(_) | Self::CanvasRenoise(_) => Edit::draft(candidate),
            Self::MultiBlock(_)
            | Self::SemiAutoregressive(_)
            | Self::DiffusionGenerate(_)
            | Self::D2f(_)
            | Self::FastDllmV2(_) => Edit::fill(candidate),
        };
        Proposal { edits: vec![edit], settles: false }
    }
}
