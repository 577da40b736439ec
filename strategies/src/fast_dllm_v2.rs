//! `fast_dllm_v2`: Fast-dLLM v2's own loop (NVlabs/Fast-dLLM, v2, `batch_sample`).
//!
//! Blocks are denoised one at a time, their sub-blocks left to right. Logits are shifted by one, so a block's
//! first token is written when the one before has its final tokens: an autoregressive step that rides on the forward
//! which writes their K/V. A prompt's whole blocks are encoded in a forward of their own, too. With a block cache, forwards
//! go over one sub-block only, which attends to the others as they were when all of the block was forwarded last; whenever a
//! sub-block's first position is masked, all of the block is, since the row that predicts that position is in the sub-block before.

use crate::accept::{ACCEPT_RULE, AcceptRule, Threshold};
use crate::decode::{Declared, Decode, Setup};
use crate::edit::Proposal;
use crate::layout::{Attention, Layout};
use crate::setting::{Field, Overrides, Setting, SettingError};
use crate::view::{BlockView, Focus, Progress};

/// See [`FastDllmV2::sub_block_size`].
const SUB_BLOCK_SIZE: Setting =
    Setting::count("sub_block_size", 1, u32::MAX, "Sub-block size in tokens, a divisor of the block size");

/// See [`FastDllmV2::block_cache`].
const BLOCK_CACHE: Setting =
    Setting::flag("block_cache", "Forward only the current sub-block, reusing stale KV for the others");

/// Settings of `fast_dllm_v2`, which has no other state.
#[derive(Clone, Debug, PartialEq)]
pub struct FastDllmV2 {
    /// Positions of a block; what the model was trained with (`bd_size` of its config.json).
    pub block_size: usize,
    /// Positions of a sub-block, a divisor of `block_size`.
    pub sub_block_size: usize,
    /// Forward only the current sub-block, reusing stale KV for the others.
    pub block_cache: bool,
    /// Which candidates of the first sub-block with masks are written; an [`AcceptRule::Threshold`].
    pub accept: AcceptRule,
}

impl FastDllmV2 {
    /// The authors' `small_block_size`, cut to a divisor of the block size.
    const SUB_BLOCK_SIZE: usize = 8;
}

impl Decode for FastDllmV2 {
    const NAME: &'static str = "fast_dllm_v2";
    const LAYOUT: Layout = Layout::BlockCausal;
    const SETTINGS: &'static [&'static Setting] = &[&SUB_BLOCK_SIZE, &BLOCK_CACHE];

    fn fits(setup: &Setup) -> bool {
        setup.attention == Attention::BlockCausal && setup.is_shifted
    }

    fn new(setup: &Setup) -> Self {
        let block_size = setup.block_size;
        let divides = |size: &usize| block_size.is_multiple_of(*size);
        let accept_threshold = setup.accept_threshold.unwrap_or(Threshold::ACCEPT_THRESHOLD);
        Self {
            block_size,
            sub_block_size: (1..=Self::SUB_BLOCK_SIZE).rev().find(divides).unwrap_or(1),
            block_cache: false,
            accept: AcceptRule::Threshold(Threshold { accept_threshold }),
        }
    }

    fn declared(&self) -> Declared {
        // Commits are forwards of their own, as in the authors' loop.
        Declared { encodes_apart: true, ..Declared::new(Self::LAYOUT, self.block_size, Some(self.accept)) }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        self.accept.set(overrides, self.block_size)?;
        // Schedules count a block's steps and positions; here they would have to count a sub-block's.
        if !matches!(self.accept, AcceptRule::Threshold(_)) {
            let what = format!("must be threshold, the one rule of {}, got {}", Self::NAME, self.accept.name());
            return Err(SettingError::refused(ACCEPT_RULE.name, what));
        }
        overrides.apply(vec![
            (&SUB_BLOCK_SIZE, Field::Count(&mut self.sub_block_size)),
            (&BLOCK_CACHE, Field::Flag(&mut self.block_cache)),
        ])?;
        let Self { block_size, sub_block_size, .. } = *self;
        if !block_size.is_multiple_of(sub_block_size) {
            let what = format!("must divide the block size {block_size}, got {sub_block_size}");
            return Err(SettingError::refused(SUB_BLOCK_SIZE.name, what));
        }
        Ok(())
    }

    /// As soon as the block before is full, so that the first token is written with the K/V of that one.
    fn opens_block(&self, n_live: usize, newest: Option<Progress>, _context_is_cached: bool) -> bool {
        n_live <= 1 && newest.is_none_or(Progress::is_complete)
    }

    fn focus(&self, masked: &[bool], is_written: bool) -> Focus {
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

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        Proposal::fill(&self.accept.accept(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows that a step of the block in the picture forwards and decides: `_` masked, a letter written.
    fn focus(picture: &str, block_cache: bool, is_written: bool) -> Focus {
        let accept = AcceptRule::Threshold(Threshold::default());
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
