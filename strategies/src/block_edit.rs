//! `block_edit`: block diffusion in which written tokens may be replaced until their block settles (LLaDA2.1).
//!
//! Blocks open and are committed as in `multi_bd`, but written tokens are drafts. At each step the accept rule fills masks and
//! the edit rule revises drafts, both from the same forward.

use crate::contract::edit::Proposal;
use crate::contract::layout::Layout;
use crate::contract::setting::{Overrides, Setting, SettingError};
use crate::contract::view::{BlockProgress, BlockView};
use crate::multi_block::{ADD_BLOCK_THRESHOLD, MultiBlock};
use crate::revise::{EDIT_RULE, EDIT_THRESHOLD, EditRule, MAX_POST_EDIT_STEPS, PENALTY_LAMBDA, REMASK_THRESHOLD};
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// Settings of `block_edit`; all state is in the block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockEdit {
    /// Opening of blocks, and the accept rule.
    pub blocks: MultiBlock,
    /// The edit rule.
    pub edit: EditRule,
}

impl Strategy for BlockEdit {
    const NAME: &'static str = "block_edit";
    const LAYOUT: Layout = Layout::BlockCausal;
    const SETTINGS: &'static [&'static Setting] =
        &[&ADD_BLOCK_THRESHOLD, &EDIT_RULE, &EDIT_THRESHOLD, &MAX_POST_EDIT_STEPS, &PENALTY_LAMBDA, &REMASK_THRESHOLD];
    const HAS_BUFFER: bool = true;

    fn fits(model: &ModelTraits) -> bool {
        MultiBlock::fits(model) && model.may_edit
    }

    fn new(model: &ModelTraits) -> Self {
        Self { blocks: <MultiBlock as Strategy>::new(model), edit: EditRule::joint() }
    }

    fn requirements(&self) -> Requirements {
        Requirements { penalty_lambda: self.edit.penalty_lambda(), writes_drafts: true, ..self.blocks.requirements() }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        self.blocks.set(overrides)?;
        self.edit.set(overrides)
    }

    fn opens_block(&self, n_live: usize, newest: Option<BlockProgress>, context_is_cached: bool) -> bool {
        self.blocks.opens_block(n_live, newest, context_is_cached)
    }

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        self.edit.propose(&self.blocks.config().accept, block)
    }
}
