//! `semi_ar`: LLaDA's own loop. The whole answer begins as masks; blocks are filled one after the other, left to right,
//! while the network attends to everything (LLaDA, ML-GSAI/LLaDA generate.py; with a threshold, and with stale KV that is
//! reused: Fast-dLLM, llada/generate.py and dream/model/generation_utils_block.py).

use crate::accept::{AcceptRule, Threshold, ThresholdKeep};
use crate::decode::{Declared, Decode, Setup};
use crate::edit::Proposal;
use crate::layout::{Attention, KvReuse, Layout};
use crate::setting::{Field, Overrides, Setting, SettingError};
use crate::view::{BlockView, Focus};

/// See [`SemiAutoregressive::cfg_scale`]. The largest is chosen by us: LLaDA's authors go up to 2, and with 100 only the
/// tokens that the prompt favours most are left; logits stay far from the end of 32-bit floats.
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

/// Settings of `semi_ar`, which has no other state.
#[derive(Clone, Debug, PartialEq)]
pub struct SemiAutoregressive {
    /// Positions of a block.
    pub block_size: usize,
    /// Which candidates of the first block with masks are written.
    pub accept: AcceptRule,
    /// Stale KV that is reused.
    pub kv_reuse: KvReuse,
    /// Logits are shifted by one (Dream).
    pub is_shifted: bool,
    /// Classifier-free guidance (LLaDA's `cfg_scale`): logits become `u + (cfg_scale + 1) (c - u)`, with `c` those of the
    /// prompt and `u` those without. 0 or more; 0 is none.
    pub cfg_scale: f32,
}

impl SemiAutoregressive {
    /// Whether the forward with which a block begins writes its first position, and only that: later ones leave out the row
    /// that predicts it, which is in the block before (Fast-dLLM, dream/model/generation_utils_block.py).
    fn writes_first_alone(&self) -> bool {
        self.is_shifted && self.kv_reuse != KvReuse::None
    }
}

impl Decode for SemiAutoregressive {
    const NAME: &'static str = "semi_ar";
    const LAYOUT: Layout = Layout::WholeAnswer;
    const SETTINGS: &'static [&'static Setting] = &[&CFG_SCALE, &KV_REUSE];

    /// With Fast-dLLM's caches Dream fills blocks from left to right, too.
    fn fits(setup: &Setup) -> bool {
        setup.attention == Attention::Full
    }

    fn new(setup: &Setup) -> Self {
        let accept_threshold = setup.accept_threshold.unwrap_or(Threshold::ACCEPT_THRESHOLD);
        Self {
            block_size: setup.block_size,
            accept: AcceptRule::ThresholdKeep(ThresholdKeep { accept_threshold }),
            kv_reuse: KvReuse::None,
            is_shifted: setup.is_shifted,
            cfg_scale: 0.0,
        }
    }

    fn declared(&self) -> Declared {
        Declared {
            kv_reuse: self.kv_reuse,
            guidance: Some(self.cfg_scale).filter(|scale| *scale > 0.0),
            ..Declared::new(Self::LAYOUT, self.block_size, Some(self.accept))
        }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        self.accept.set(overrides, self.block_size)?;
        overrides.apply(vec![
            (&CFG_SCALE, Field::Number(&mut self.cfg_scale)),
            (&KV_REUSE, Field::Choice(&mut self.kv_reuse)),
        ])
    }

    fn focus(&self, masked: &[bool], _is_written: bool) -> Focus {
        let whole = Focus::whole(masked.len());
        if masked[0] && self.writes_first_alone() { Focus { decided: 0..1, ..whole } } else { whole }
    }

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        let first = block.candidates.iter().find(|candidate| candidate.row == 0);
        match first.filter(|_| self.writes_first_alone()) {
            Some(first) => Proposal::fill(std::slice::from_ref(first)),
            None => Proposal::fill(&self.accept.accept(block)),
        }
    }
}
