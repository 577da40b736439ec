//! `fast_dllm_v2`: the loop of Fast-dLLM v2's authors (NVlabs/Fast-dLLM, v2, `batch_sample`).
//!
//! Blocks are denoised one at a time, their sub-blocks left to right. Logits are shifted by one, so the first token of a block
//! is predicted by the last row of the preceding block, in the forward that writes that block's final K/V. The whole blocks of a
//! prompt are encoded in a separate forward. With a block cache, a forward covers only one sub-block, which attends to the stale
//! KV of the others from the last forward over the whole block. While a sub-block's first position is masked, the whole block
//! is forwarded, because the row that predicts it is in the preceding sub-block.

use crate::accept::{ACCEPT_RULE, AcceptRule, Threshold};
use crate::contract::edit::Proposal;
use crate::contract::layout::{AttentionKind, Layout};
use crate::contract::setting::{Field, Overrides, Setting, SettingError};
use crate::contract::view::{BlockProgress, BlockView, StepRows};
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// See [`FastDllmV2::sub_block_size`].
const SUB_BLOCK_SIZE: Setting =
    Setting::count("sub_block_size", 1, u32::MAX, "Sub-block size in tokens, a divisor of the block size");

/// See [`FastDllmV2::block_cache`].
const BLOCK_CACHE: Setting =
    Setting::flag("block_cache", "Forward only the current sub-block, reusing stale KV for the others");

/// Settings of `fast_dllm_v2`; all state is in the block.
#[derive(Clone, Debug, PartialEq)]
pub struct FastDllmV2 {
    /// Positions of a block, as in training (`bd_size` in config.json).
    pub block_size: usize,
    /// Positions of a sub-block, a divisor of `block_size`.
    pub sub_block_size: usize,
    /// Forward only the current sub-block and reuse stale KV of the others.
    pub block_cache: bool,
    /// The accept rule, which must be [`AcceptRule::Threshold`].
    pub accept: AcceptRule,
}

impl FastDllmV2 {
    /// The authors' `small_block_size`; reduced to a divisor of the block size.
    const SUB_BLOCK_SIZE: usize = 8;
}

impl Strategy for FastDllmV2 {
    const NAME: &'static str = "fast_dllm_v2";
    const LAYOUT: Layout = Layout::BlockCausal;
    const SETTINGS: &'static [&'static Setting] = &[&SUB_BLOCK_SIZE, &BLOCK_CACHE];

    fn fits(model: &ModelTraits) -> bool {
        model.attention == AttentionKind::BlockCausal && model.is_shifted
    }

    fn new(model: &ModelTraits) -> Self {
        let block_size = model.block_size;
        let divides = |size: &usize| block_size.is_multiple_of(*size);
        let accept_threshold = model.accept_threshold.unwrap_or(Threshold::ACCEPT_THRESHOLD);
        Self {
            block_size,
            sub_block_size: (1..=Self::SUB_BLOCK_SIZE).rev().find(divides).unwrap_or(1),
            block_cache: false,
            accept: AcceptRule::Threshold(Threshold { accept_threshold }),
        }
    }

    fn requirements(&self) -> Requirements {
        // Commits are separate forwards, as in the authors' loop.
        Requirements { encodes_apart: true, ..Requirements::new(Self::LAYOUT, self.block_size, Some(self.accept)) }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        self.accept.set(overrides, self.block_size)?;
        // Scheduled rules count the steps and positions of a block, not of a sub-block.
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

    /// Opens a block as soon as the preceding one is full: the forward that writes its K/V predicts the new block's first token.
    fn opens_block(&self, n_live: usize, newest: Option<BlockProgress>, _context_is_cached: bool) -> bool {
        n_live <= 1 && newest.is_none_or(BlockProgress::is_complete)
    }

    fn step_rows(&self, masked: &[bool], is_written: bool) -> StepRows {
        if masked[0] {
            return StepRows { forwarded: 0..0, decided: 0..1 };
        }
        let first_mask = masked.iter().position(|masked| *masked).unwrap_or(0);
        let start = first_mask / self.sub_block_size * self.sub_block_size;
        let sub_block = start..start + self.sub_block_size;
        let is_alone = self.block_cache && is_written && !masked[start];
        let forwarded = if is_alone { sub_block.clone() } else { 0..masked.len() };
        StepRows { forwarded, decided: sub_block }
    }

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        Proposal::fill(&self.accept.accept(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the pictured block that a step forwards and decides: `_` is a mask, a letter a token.
    fn step_rows(picture: &str, block_cache: bool, is_written: bool) -> StepRows {
        let accept = AcceptRule::Threshold(Threshold::default());
        let strategy = FastDllmV2 { block_size: 8, sub_block_size: 4, block_cache, accept };
        let masked: Vec<bool> = picture.chars().map(|position| position == '_').collect();
        strategy.step_rows(&masked, is_written)
    }

    #[test]
    fn a_blocks_first_token_takes_none_of_its_rows() {
        assert_eq!(step_rows("________", true, false), StepRows { forwarded: 0..0, decided: 0..1 });
    }

    #[test]
    fn sub_blocks_are_decided_left_to_right() {
        assert_eq!(step_rows("a_c_____", false, true), StepRows { forwarded: 0..8, decided: 0..4 });
        assert_eq!(step_rows("abcd_f__", false, true), StepRows { forwarded: 0..8, decided: 4..8 });
    }

    #[test]
    fn a_sub_block_goes_alone_where_the_others_are_written_and_its_first_token_is_known() {
        assert_eq!(step_rows("a_c_____", true, false), StepRows { forwarded: 0..8, decided: 0..4 });
        assert_eq!(step_rows("a_c_____", true, true), StepRows { forwarded: 0..4, decided: 0..4 });
        assert_eq!(step_rows("abcd_f__", true, true), StepRows { forwarded: 0..8, decided: 4..8 });
        assert_eq!(step_rows("abcde___", true, true), StepRows { forwarded: 4..8, decided: 4..8 });
    }
}
