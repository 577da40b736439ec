//! `fast_dllm_v2`: Fast-dLLM v2's own loop (NVlabs/Fast-dLLM, v2, `batch_sample`).
//!
//! Blocks are denoised one at a time, their sub-blocks left to right. Logits speak of the next position, so a block's
//! first token is written when the one before has its final tokens: an autoregressive step that rides on the forward
//! which writes their K/V. A prompt's whole blocks are encoded in a forward of their own, too. With a block cache, forwards
//! go over one sub-block only, which sees the others as they were when all of the block was forwarded last; whenever a
//! sub-block's first position is masked, all of the block is, since what speaks of that position is in the sub-block before.

use serde::Serialize;

use crate::accept::AcceptRule;
use crate::edit::Proposal;
use crate::view::{BlockView, Focus, Progress};

/// Settings of `fast_dllm_v2`, which has no other state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FastDllmV2 {
    /// Positions of a block; what the model was trained with (`bd_size` of its config.json).
    pub block_size: usize,
    /// Positions of a sub-block, a divisor of `block_size`.
    pub sub_block_size: usize,
    /// Forward one sub-block only where the others' K/V, as they were, will do.
    pub block_cache: bool,
    /// Which candidates of the first sub-block with masks are written.
    #[serde(flatten)]
    pub accept: AcceptRule,
}

impl FastDllmV2 {
    /// The authors' `small_block_size`.
    pub const SUB_BLOCK_SIZE: usize = 8;

    /// Whether another block may open: as soon as the one before is full, so that its first token is written with the
    /// K/V of that one. See [`MultiBlock::opens_block`](crate::MultiBlock::opens_block).
    pub fn opens_block(&self, n_live: usize, newest: Option<Progress>) -> bool {
        n_live <= 1 && newest.is_none_or(Progress::is_complete)
    }

    /// See [`Strategy::focus`](crate::Strategy::focus).
    pub fn focus(&self, masked: &[bool], is_written: bool) -> Focus {
        if masked[0] {
            return Focus { forwarded: 0..0, decided: 0..1 };
        }
        let first_mask = masked.iter().position(|masked| *masked).unwrap_or(0);
        let start = first_mask / self.sub_block_size * self.sub_block_size;
        let sub_block = start..start + self.sub_block_size;
        let is_alone = self.block_cache && is_written && !masked[start];
        let forwarded = if is_alone { sub_block.clone() } else { 0..masked.len() };
        Focus { forwarded, decided: sub_block }
    }

    /// What to write in the sub-block that is decided now.
    pub fn step(&self, block: &BlockView<'_>) -> Proposal {
        Proposal::fill(self.accept.accept(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a step of the block in the picture forwards and decides: `_` masked, a letter written.
    fn focus(picture: &str, block_cache: bool, is_written: bool) -> Focus {
        let accept = AcceptRule::Threshold { accept_threshold: 0.9 };
        let strategy = FastDllmV2 { block_size: 8, sub_block_size: 4, block_cache, accept };
        let masked: Vec<bool> = picture.chars().map(|position| position == '_').collect();
        strategy.focus(&masked, is_written)
    }

    #[test]
    fn a_blocks_first_token_takes_none_of_its_rows() {
        assert_eq!(focus("________", true, false), Focus { forwarded: 0..0, decided: 0..1 });
    }

    #[test]
    fn sub_blocks_are_decided_left_to_right() {
        assert_eq!(focus("a_c_____", false, true), Focus { forwarded: 0..8, decided: 0..4 });
        assert_eq!(focus("abcd_f__", false, true), Focus { forwarded: 0..8, decided: 4..8 });
    }

    #[test]
    fn a_sub_block_goes_alone_where_the_others_are_written_and_its_first_token_is_known() {
        assert_eq!(focus("a_c_____", true, false), Focus { forwarded: 0..8, decided: 0..4 });
        assert_eq!(focus("a_c_____", true, true), Focus { forwarded: 0..4, decided: 0..4 });
        assert_eq!(focus("abcd_f__", true, true), Focus { forwarded: 0..8, decided: 4..8 });
        assert_eq!(focus("abcde___", true, true), Focus { forwarded: 4..8, decided: 4..8 });
    }
}
