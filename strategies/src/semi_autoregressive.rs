//! `semi_ar`: the loop of LLaDA's authors. The whole answer starts as masks; blocks are filled left to right, one after the
//! other, while every row attends to all positions (ML-GSAI/LLaDA, generate.py). Thresholds and reuse of stale KV follow
//! Fast-dLLM (llada/generate.py and dream/model/generation_utils_block.py).

use crate::accept::{AcceptRule, Threshold, ThresholdKeep};
use crate::contract::edit::Proposal;
use crate::contract::layout::{AttentionKind, KvReuse, Layout};
use crate::contract::setting::{Field, Overrides, Setting, SettingError};
use crate::contract::view::{BlockView, StepRows};
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// See [`SemiAutoregressive::cfg_scale`]. The maximum is chosen by us: LLaDA's authors use up to 2; at 100 only the tokens that
/// the prompt favours most remain, and logits are far from overflow.
const CFG_SCALE: Setting = Setting::number(
    "cfg_scale",
    "SCALE",
    0.0,
    100.0,
    "Strength of classifier-free guidance; above 0, every row is forwarded twice",
);

/// See [`KvReuse`].
const KV_REUSE: Setting =
    Setting::choice("kv_reuse", &["none", "prefix", "dual"], "Stale KV to reuse in the steps within a block");

/// Settings of `semi_ar`; all state is in the block.
#[derive(Clone, Debug, PartialEq)]
pub struct SemiAutoregressive {
    /// Positions of a block.
    pub block_size: usize,
    /// The accept rule, applied to the first block with masks.
    pub accept: AcceptRule,
    /// Reuse of stale KV.
    pub kv_reuse: KvReuse,
    /// Logits are shifted by one (Dream).
    pub is_shifted: bool,
    /// Classifier-free guidance (LLaDA's `cfg_scale`), 0 or more; 0: none. Logits become `u + (cfg_scale + 1) (c - u)`, where `c`
    /// are the logits with the prompt and `u` the logits without.
    pub cfg_scale: f32,
}

impl SemiAutoregressive {
    /// Whether the first forward of a block writes only the block's first position. Later forwards omit the row that predicts it,
    /// which is in the preceding block (Fast-dLLM, dream/model/generation_utils_block.py).
    fn writes_first_alone(&self) -> bool {
        self.is_shifted && self.kv_reuse != KvReuse::None
    }
}

impl Strategy for SemiAutoregressive {
    const NAME: &'static str = "semi_ar";
    const LAYOUT: Layout = Layout::WholeAnswer;
    const SETTINGS: &'static [&'static Setting] = &[&CFG_SCALE, &KV_REUSE];

    /// Includes Dream, which Fast-dLLM decodes block by block as well.
    fn fits(model: &ModelTraits) -> bool {
        model.attention == AttentionKind::Full
    }

    fn new(model: &ModelTraits) -> Self {
        let accept_threshold = model.accept_threshold.unwrap_or(Threshold::ACCEPT_THRESHOLD);
        Self {
            block_size: model.block_size,
            accept: AcceptRule::ThresholdKeep(ThresholdKeep { accept_threshold }),
            kv_reuse: KvReuse::None,
            is_shifted: model.is_shifted,
            cfg_scale: 0.0,
        }
    }

    fn requirements(&self) -> Requirements {
        Requirements {
            kv_reuse: self.kv_reuse,
            guidance: Some(self.cfg_scale).filter(|scale| *scale > 0.0),
            ..Requirements::new(Self::LAYOUT, self.block_size, Some(self.accept))
        }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        self.accept.set(overrides, self.block_size)?;
        overrides.apply(vec![
            (&CFG_SCALE, Field::Number(&mut self.cfg_scale)),
            (&KV_REUSE, Field::Choice(&mut self.kv_reuse)),
        ])
    }

    fn step_rows(&self, masked: &[bool], _is_written: bool) -> StepRows {
        let whole = StepRows::whole(masked.len());
        if masked[0] && self.writes_first_alone() { StepRows { decided: 0..1, ..whole } } else { whole }
    }

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        let first = block.candidates.iter().find(|candidate| candidate.row == 0);
        match first.filter(|_| self.writes_first_alone()) {
            Some(first) => Proposal::fill(std::slice::from_ref(first)),
            None => Proposal::fill(&self.accept.accept(block)),
        }
    }
}
