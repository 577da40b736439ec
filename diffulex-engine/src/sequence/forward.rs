//! The next forward of a sequence: the window, which of its rows are forwarded, and their inputs.

use std::ops::Range;

use diffulex_strategies::{Input, KvReuse, Layout, StepRows};

use serde::Serialize;

use super::{BlockStatus, Context, PositionState, Scratch, Sequence};
use crate::alignment::LogitAlignment;

/// The purpose of a forward; decides which counter it is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForwardKind {
    /// Rows of at least one block were denoised.
    Denoise,
    /// The same, for a position whose token is known.
    Score,
    /// K/V lost in a preemption were written again.
    Rebuild,
    /// Prompt blocks were encoded; the answer's first token may come with them.
    Prefill,
    /// Finished blocks were encoded; a token of the next one may come with them.
    Commit,
}

impl Sequence {
    /// Rows a forward over `blocks` takes.
    pub fn rows_of(&self, blocks: &Range<usize>) -> Range<usize> {
        match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst | Layout::Canvases => {
                let start = self.block_start(blocks.start);
                let rows = match blocks.clone().next_back() {
                    Some(last) => {
                        start + self.focus(blocks.start).forwarded.start
                            ..self.block_start(last) + self.focus(last).forwarded.end
                    }
                    None => start..start,
                };
                // Shifted logits: the row that predicts a mask in the first row is forwarded, too, with the K/V it has.
                let is_masked = self.positions.states.get(rows.start) == Some(&PositionState::Masked);
                let lead = if is_masked { rows.start - self.predicting_position(rows.start) } else { 0 };
                rows.start - lead..rows.end
            }
            Layout::WholeAnswer => match &self.context {
                Context::Kept { block, .. } if Some(*block) == self.first_open() => {
                    let block = self.block_range(*block);
                    match self.declared.kv_reuse {
                        KvReuse::None => 0..self.positions.tokens.len(),
                        KvReuse::Prefix => block.start..self.positions.tokens.len(),
                        KvReuse::Dual => block,
                    }
                }
                Context::Never | Context::Kept { .. } | Context::Lost { .. } => 0..self.positions.tokens.len(),
            },
        }
    }

    /// The first block that is not decided.
    pub(super) fn first_open(&self) -> Option<usize> {
        (0..self.blocks.len()).find(|block| !self.progress(*block).is_settled())
    }

    /// Inputs to forward again before the block in flight can go on, if there are any.
    pub(super) fn lost_context(&self) -> Option<&[Input]> {
        match &self.context {
            Context::Lost { block, inputs } if Some(*block) == self.first_open() => Some(inputs),
            Context::Never | Context::Kept { .. } | Context::Lost { .. } => None,
        }
    }

    /// The position whose row of logits predicts `position`, which was not given by the client.
    pub fn predicting_position(&self, position: usize) -> usize {
        match self.alignment {
            LogitAlignment::Same => position,
            // In Dream the first row predicts its own position.
            LogitAlignment::Next => position.saturating_sub(1),
        }
    }

    /// The network's inputs in the rows of `blocks`.
    pub fn inputs(&self, blocks: &Range<usize>) -> Vec<Input> {
        if let Some(inputs) = self.lost_context() {
            return inputs.to_vec();
        }
        let rows = self.rows_of(blocks);
        let mut inputs = self.positions.inputs[rows.clone()].to_vec();
        for index in blocks.clone() {
            if let Some(written) = self.restored(index) {
                let start = self.block_start(index) - rows.start;
                inputs[start..start + written.len()].copy_from_slice(written);
            }
        }
        inputs
    }

    /// The rows of block `index` that the next step forwards and decides.
    pub(super) fn focus(&self, index: usize) -> StepRows {
        let whole = StepRows::whole(self.block_range(index).len());
        match self.blocks[index].status {
            BlockStatus::Ready | BlockStatus::Cached => StepRows { decided: 0..0, ..whole },
            // The K/V that the strategy reuses must be written first.
            BlockStatus::Active if self.restored(index).is_some() => StepRows { decided: 0..0, ..whole },
            BlockStatus::Active => self.strategy_focus(index),
        }
    }

    fn strategy_focus(&self, index: usize) -> StepRows {
        let states = &self.positions.states[self.block_range(index)];
        let masked: Vec<bool> = states.iter().map(|state| *state == PositionState::Masked).collect();
        self.strategy.step_rows(&masked, self.blocks[index].scratch != Scratch::Never)
    }

    /// Inputs from which block `index` must be written again before the strategy can go on, if it must.
    pub(super) fn restored(&self, index: usize) -> Option<&[Input]> {
        match &self.blocks[index].scratch {
            Scratch::Lost(written) => {
                (self.strategy_focus(index).forwarded.len() < written.len()).then_some(written.as_slice())
            }
            Scratch::Never | Scratch::Kept(_) => None,
        }
    }

    /// Number of positions, from 0 on, that `position` attends to.
    pub fn visible_from(&self, position: usize) -> usize {
        let block = self.block_of(position);
        match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst => self.block_start(block + 1),
            Layout::Canvases if self.is_canvas(block) => self.block_start(block + 1),
            Layout::Canvases => position + 1,
            Layout::WholeAnswer => self.positions.tokens.len(),
        }
    }

    /// Blocks of `blocks` that this step denoises.
    pub fn denoised(&self, blocks: &Range<usize>) -> Range<usize> {
        match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst | Layout::Canvases => {
                self.window().1.start.max(blocks.start)..blocks.end
            }
            Layout::WholeAnswer if self.lost_context().is_some() => blocks.end..blocks.end,
            Layout::WholeAnswer => self.first_open().map_or(blocks.end..blocks.end, |block| block..block + 1),
        }
    }

    /// Blocks that wait to be written, then blocks that are not decided: the order a window always has.
    pub fn window(&self) -> (Range<usize>, Range<usize>) {
        let cached = self.n_cached_blocks();
        let active =
            cached + self.blocks[cached..].iter().take_while(|block| block.status == BlockStatus::Ready).count();
        (cached..active, active..self.blocks.len())
    }

    /// The part of the [window](Self::window) that its next forward takes, with the block that opens in it, if one does.
    pub fn step_blocks(&mut self) -> Range<usize> {
        if self.encodes_apart() {
            return self.window().0;
        }
        self.open_block_if_due();
        self.n_cached_blocks()..self.blocks.len()
    }

    /// Rows that its next forward takes, without those of a block that opens in it.
    pub fn n_step_rows(&self) -> usize {
        let (ready, active) = self.window();
        let end = if self.encodes_apart() { ready.end } else { active.end };
        self.rows_of(&(ready.start..end)).len()
    }

    /// Rows that its next forward takes at most: those of [`Self::n_step_rows`], of a block that opens, and the row before it
    /// that shifted logits may need.
    pub fn most_step_rows(&self) -> usize {
        let opening = if self.geometry.is_prompt_only { 0 } else { self.block_size() + 1 };
        self.n_step_rows() + opening
    }

    /// Whether the next forward leaves out the blocks that are not decided.
    fn encodes_apart(&self) -> bool {
        let (ready, active) = self.window();
        let mut active = active.map(|index| self.focus(index).forwarded);
        self.declared.encodes_apart && !ready.is_empty() && active.any(|forwarded| !forwarded.is_empty())
    }

    /// Opens the next block if the strategy and the limits want it. Called once before each step.
    fn open_block_if_due(&mut self) {
        let next = self.blocks.len();
        let starts_below_end = self.block_start(next) < self.answer_end();
        // No block opens after the one with an end token.
        if !starts_below_end || self.first_stop.is_some() {
            return;
        }
        // Blocks that were cached once are not in flight, even while they are written again.
        let live = self.n_cached_blocks().max(self.n_prompt_blocks()).max(self.rebuild_end)..next;
        let newest = live.clone().next_back().map(|index| self.progress(index));
        if self.strategy.opens_block(live.len(), newest, self.n_cached_blocks() == next) {
            self.open_block();
        }
    }

    /// Undecided positions of block `index` that the next step may decide: the first of them, where it scores.
    pub fn undecided(&self, index: usize) -> Vec<usize> {
        let start = self.block_start(index);
        let decided = self.focus(index).decided;
        let positions = start + decided.start..start + decided.end;
        let n_wanted = if self.is_scoring() { 1 } else { usize::MAX };
        positions.filter(|position| !self.positions.states[*position].is_decided()).take(n_wanted).collect()
    }

    /// The purpose of a forward over `blocks`.
    pub fn forward_kind(&self, blocks: &Range<usize>) -> ForwardKind {
        let denoises = |index: usize| {
            let StepRows { forwarded, decided } = self.focus(index);
            !forwarded.is_empty() && !decided.is_empty()
        };
        if self.lost_context().is_some() {
            ForwardKind::Rebuild
        } else if blocks.clone().any(denoises) {
            if self.is_scoring() { ForwardKind::Score } else { ForwardKind::Denoise }
        } else if blocks.end <= self.rebuild_end || blocks.clone().any(|index| self.restored(index).is_some()) {
            ForwardKind::Rebuild
        } else if blocks.start.max(self.rebuild_end) < self.n_prompt_blocks() {
            ForwardKind::Prefill
        } else {
            ForwardKind::Commit
        }
    }
}
