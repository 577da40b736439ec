//! The contract of a strategy: the model that it is given, what it declares to the engine, and its decisions.

use crate::accept::AcceptRule;
use crate::contract::edit::Proposal;
use crate::contract::layout::{AttentionKind, KvReuse, Layout};
use crate::contract::setting::{Overrides, Setting, SettingError};
use crate::contract::view::{BlockProgress, BlockView, Score, StepRows};

/// The model that a strategy is to decode, and the sizes that were chosen for it.
#[derive(Clone, Copy, Debug)]
pub struct ModelTraits {
    /// The positions that a row attends to.
    pub attention: AttentionKind,
    /// A row of logits predicts the position after its own.
    pub is_shifted: bool,
    /// Checkpoints of its family were trained to replace their tokens (LLaDA2.1) or to read blends of them (DMax).
    pub may_edit: bool,
    /// Adapters of D2F exist for its family.
    pub may_have_d2f: bool,
    /// Positions of a block.
    pub block_size: usize,
    /// Blocks in flight; `None`: the strategy's default.
    pub buffer_size: Option<usize>,
    /// Longest prompt and answer together.
    pub max_model_len: usize,
    /// Accept threshold of the model's family; `None`: the rule's default.
    pub accept_threshold: Option<f32>,
}

/// A strategy's needs of the engine, under its current settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requirements {
    /// How blocks lie and what is kept of them.
    pub layout: Layout,
    /// Positions of a block.
    pub block_size: usize,
    /// Blocks that are denoised at once, at most.
    pub buffer_size: usize,
    /// Its accept rule; `None` where it has a way of its own.
    pub accept: Option<AcceptRule>,
    /// The score of each candidate.
    pub score: Score,
    /// How many of a position's likeliest tokens it looks at, 1 to [`MAX_TOP_K`](crate::MAX_TOP_K).
    pub n_likeliest: usize,
    /// Stale KV that the steps inside a block reuse.
    pub kv_reuse: KvReuse,
    /// Scale of classifier-free guidance, above 0; see [`SemiAutoregressive::cfg_scale`](crate::SemiAutoregressive::cfg_scale).
    pub guidance: Option<f32>,
    /// Penalty subtracted from the logit of the token one row before; 0 is none.
    pub penalty_lambda: f32,
    /// Written tokens are drafts, which may change until their block settles.
    pub writes_drafts: bool,
    /// Decided blocks are encoded in a forward of their own wherever the next one has rows to forward.
    pub encodes_apart: bool,
}

impl Requirements {
    /// One block in flight, tokens written for good, and nothing that only some strategies need.
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

    /// Its accept rule may let a step pass without writing anything, and still comes to an end.
    pub fn may_pause(&self) -> bool {
        self.accept.is_some_and(|rule| rule.may_pause())
    }

    /// How often a request's rows are forwarded: with guidance once more, without the prompt.
    pub fn n_copies(&self) -> usize {
        1 + usize::from(self.guidance.is_some())
    }
}

/// A strategy.
pub trait Strategy: Sized {
    /// Its name, as operators write it.
    const NAME: &'static str;
    /// How its blocks lie.
    const LAYOUT: Layout;
    /// Settings of its own, without those of accept rules.
    const SETTINGS: &'static [&'static Setting];
    /// Operators choose how many blocks are in flight.
    const HAS_BUFFER: bool = false;

    /// Whether it can decode this model. Of those that can, the first of [`StrategyKind::ALL`](crate::StrategyKind::ALL) is the model's default.
    fn fits(model: &ModelTraits) -> bool;

    /// With its defaults for this model.
    fn new(model: &ModelTraits) -> Self;

    /// Its needs of the engine.
    fn requirements(&self) -> Requirements;

    /// Takes its settings from `overrides`.
    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError>;

    /// Decides about one block.
    fn step(&self, block: &BlockView<'_>) -> Proposal;

    /// Whether another block may open behind the live ones, where not all of them are open from the start.
    ///
    /// `newest` is the last live block, `None` when none is live; `context_is_cached` says that everything before the
    /// place of the next block has its K/V.
    fn opens_block(&self, _n_live: usize, _newest: Option<BlockProgress>, _context_is_cached: bool) -> bool {
        false
    }

    /// Which rows of a block with masks the next step is about. `masked` has one per row; `is_written` says that all
    /// rows were forwarded together before: rows left out now are attended to as they were then.
    fn step_rows(&self, masked: &[bool], _is_written: bool) -> StepRows {
        StepRows::whole(masked.len())
    }

    /// The divisor of the logits of a block that took `step` steps, before anything else is made of them.
    fn temperature(&self, _step: usize) -> f32 {
        1.0
    }
}
