//! `semi_ar`: LLaDA's own loop. All of the answer stands there as masks; blocks are filled one after the other, left to
//! right, while the network sees everything (LLaDA, ML-GSAI/LLaDA generate.py; with a threshold, and with K/V that are used
//! again: Fast-dLLM, llada/generate.py).

use serde::{Deserialize, Serialize};

use crate::accept::AcceptRule;
use crate::edit::Proposal;
use crate::view::BlockView;

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

    /// What to write in the first block with masks now.
    pub fn step(&self, block: &BlockView<'_>) -> Proposal {
        Proposal::fill(self.accept.accept(block))
    }
}
