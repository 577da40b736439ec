//! The trait of a strategy, the traits of the model that it decodes, and its requirements on the engine.

use crate::accept::AcceptRule;
use crate::contract::edit::Proposal;
use crate::contract::layout::{AttentionKind, KvReuse, Layout};
use crate::contract::setting::{Overrides, Setting, SettingError};
use crate::contract::view::{BlockProgress, BlockView, Score, StepRows};

/// Traits of the model to decode, and the configured sizes.
#[derive(Clone, Copy, Debug)]
pub struct ModelTraits {
    /// The positions that a row attends to.
    pub attention: AttentionKind,
    /// Logits are shifted by one: the row at position i predicts the token at i + 1.
    pub is_shifted: bool,
    /// The family has checkpoints trained to replace written tokens (LLaDA2.1) or to read blends of embeddings (DMax).
    pub may_edit: bool,
    /// The family has D2F adapters.
    pub may_have_d2f: bool,
    /// Positions of a block.
    pub block_size: usize,
    /// Blocks in flight; `None`: the strategy's default.
    pub buffer_size: Option<usize>,
    /// Maximum length of prompt and answer together, in tokens.
    pub max_model_len: usize,
    /// Accept threshold of the family, in [0, 1]; `None`: the rule's default.
    pub accept_threshold: Option<f32>,
}

/// Requirements of a strategy on the engine, under its current settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requirements {
    /// Layout of the blocks.
    pub layout: Layout,
    /// Positions of a block.
    pub block_size: usize,
    /// Maximum number of blocks in flight.
    pub buffer_size: usize,
    /// The accept rule; `None`: the strategy selects positions itself.
    pub accept: Option<AcceptRule>,
    /// The score of each candidate.
    pub score: Score,
    /// Number of likeliest tokens needed per position, 1 to [`MAX_TOP_K`](crate::MAX_TOP_K).
    pub n_likeliest: usize,
    /// Stale KV that steps inside a block reuse.
    pub kv_reuse: KvReuse,
    /// Scale of classifier-free guidance, above 0; see [`SemiAutoregressive::cfg_scale`](crate::SemiAutoregressive::cfg_scale).
    pub guidance: Option<f32>,
    /// Penalty subtracted from the logit of the token one row before; 0: no penalty.
    pub penalty_lambda: f32,
    /// Written tokens are drafts, which may be replaced until their block settles.
    pub writes_drafts: bool,
    /// Decided blocks are encoded in a separate forward if the next block has rows to forward.
    pub encodes_apart: bool,
}

impl Requirements {
    /// Requirements of a strategy with one block in flight, final tokens, and no stale KV, guidance or penalty.
    pub fn new(layout: Layout, block_size: usize, accept: Option<AcceptRule>) -> Self {
        Self {
            layout,
            block_size,
            buffer_size: 1,
            accept,
            score: accept.map_or(Score::Probability, |rule| rule.score()),
            n_likeliest: accept.map_or(1, |rule| rule.n_likeliest()),
            kv_reuse: KvReuse::None,
            guidance: None,
            penalty_lambda: 0.0,
            writes_drafts: false,
            encodes_apart: false,
        }
    }

    /// Whether the accept rule may write nothing in a step and still terminates.
    pub fn may_pause(&self) -> bool {
        self.accept.is_some_and(|rule| rule.may_pause())
    }

    /// Copies of a request's rows in a forward: 2 with guidance (with and without the prompt), otherwise 1.
    pub fn n_copies(&self) -> usize {
        1 + usize::from(self.guidance.is_some())
    }
}

/// A decoding strategy.
pub trait Strategy: Sized {
    /// Name on the command line.
    const NAME: &'static str;
    /// Layout of its blocks.
    const LAYOUT: Layout;
    /// Its settings, without those of accept rules.
    const SETTINGS: &'static [&'static Setting];
    /// Whether the number of blocks in flight is configurable (`--buffer-size`).
    const HAS_BUFFER: bool = false;

    /// Whether it can decode this model. The first in [`StrategyKind::ALL`](crate::StrategyKind::ALL) that can is the model's default.
    fn fits(model: &ModelTraits) -> bool;

    /// Returns the strategy with its defaults for this model.
    fn new(model: &ModelTraits) -> Self;

    /// Returns its requirements on the engine.
    fn requirements(&self) -> Requirements;

    /// Applies its settings from `overrides` and removes them there. Errors name the setting.
    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError>;

    /// Returns the edits of one block for this step.
    fn step(&self, block: &BlockView<'_>) -> Proposal;

    /// Whether another block may open after the `n_live` live ones. Not called for [`Layout::WholeAnswer`], where all blocks
    /// are open from the start.
    ///
    /// `newest` is the last live block, `None` if no block is live. `context_is_cached`: all positions before the next block
    /// have their K/V.
    fn opens_block(&self, _n_live: usize, _newest: Option<BlockProgress>, _context_is_cached: bool) -> bool {
        false
    }

    /// Selects the rows that the next step of a block forwards and decides. `masked` has one flag per row. `is_written`: all
    /// rows have been forwarded together before, so rows that are left out now are attended to with their K/V of that forward.
    fn step_rows(&self, masked: &[bool], _is_written: bool) -> StepRows {
        StepRows::whole(masked.len())
    }

    /// Divisor of a block's logits at step `step` (from 0), applied before any other sampling parameter.
    fn temperature(&self, _step: usize) -> f32 {
        1.0
    }
}
