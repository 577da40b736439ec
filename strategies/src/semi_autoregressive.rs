//! `semi_ar`: LLaDA's own loop. All of the answer stands there as masks; blocks are filled one after the other, left to
//! right, while the network sees everything (LLaDA, ML-GSAI/LLaDA generate.py; with a threshold, and with K/V that are used
//! again: Fast-dLLM, llada/generate.py and dream/model/generation_utils_block.py).

use serde::{Deserialize, Serialize};

use crate::accept::AcceptRule;
use crate::edit::Proposal;
use crate::view::{BlockView, Focus};

/// Settings of `semi_ar`, which has no other state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SemiAutoregressive {
    /// Positions of a block.
    pub block_size: usize,
    /// Which candidates of the first block with masks are written.
    #[serde(flatten)]
    pub accept: AcceptRule,
    /// Which K/V are used again.
    pub kv_reuse: KvReuse,
    /// Logits speak of the next position (Dream).
    pub is_shifted: bool,
    /// Classifier-free guidance: how far logits are moved on from what the network says without the prompt (LLaDA's
    /// `cfg_scale`). 0 or more; 0 is none, and above it every step forwards everything twice.
    pub cfg_scale: f32,
}

/// Which K/V a step inside a block takes from the forward over everything with which the block began. They are those of what
/// stood there then, so answers are near those without, not equal to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvReuse {
    /// None: every step forwards everything.
    #[default]
    None,
    /// Those before the block (Fast-dLLM's prefix cache).
    Prefix,
    /// Those before and behind the block (Fast-dLLM's dual cache).
    Dual,
}

impl KvReuse {
    /// The names operators give them.
    pub const NAMES: [&'static str; 3] = ["none", "prefix", "dual"];

    /// The one of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "prefix" => Some(Self::Prefix),
            "dual" => Some(Self::Dual),
            _ => None,
        }
    }
}

impl SemiAutoregressive {
    /// Threshold of Fast-dLLM's generate (`threshold`, llada/generate.py).
    pub const ACCEPT_THRESHOLD: f32 = 0.9;

    /// See [`Strategy::focus`](crate::Strategy::focus).
    pub fn focus(&self, masked: &[bool]) -> Focus {
        let whole = Focus::whole(masked.len());
        if masked[0] && self.writes_first_alone() { Focus { decided: 0..1, ..whole } } else { whole }
    }

    /// Whether the forward with which a block begins writes its first position, and only that: later ones leave out the row
    /// that speaks of it, which is in the block before (Fast-dLLM, dream/model/generation_utils_block.py).
    fn writes_first_alone(&self) -> bool {
        self.is_shifted && self.kv_reuse != KvReuse::None
    }

    /// What to write in the first block with masks now.
    pub fn step(&self, block: &BlockView<'_>) -> Proposal {
        let first = block.candidates.iter().find(|candidate| candidate.row == 0);
        match first.filter(|_| self.writes_first_alone()) {
            Some(first) => Proposal::fill(vec![*first]),
            None => Proposal::fill(self.accept.accept(block)),
        }
    }
}
