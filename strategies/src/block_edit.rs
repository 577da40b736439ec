//! `block_edit`: block diffusion in which written tokens may be replaced until their block settles (LLaDA2.1).
//!
//! Blocks open and are committed as in `multi_bd`, but what is written is a draft: at each step the accept rule fills
//! masks and the edit rule revises drafts, both from the same forward.

use serde::Serialize;

use crate::edit::Proposal;
use crate::multi_block::MultiBlock;
use crate::revise::EditRule;
use crate::view::BlockView;

/// The strategy; all its state is the block's own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockEdit {
    /// How blocks open, and which masks are filled.
    #[serde(flatten)]
    pub blocks: MultiBlock,
    /// Which drafts are revised.
    #[serde(flatten)]
    pub edit: EditRule,
}

impl BlockEdit {
    /// What to do with one block now.
    pub fn step(&self, block: &BlockView<'_>) -> Proposal {
        self.edit.propose(&self.blocks.config().accept, block)
    }
}
