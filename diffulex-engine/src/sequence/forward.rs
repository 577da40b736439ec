//! The next forward of a sequence: its blocks, its rows and their inputs.

use std::ops::Range;

use diffulex_strategies::{Input, KvReuse};

use super::position::PositionState;
use super::state::Sequence;
use super::step::ForwardKind;

impl Sequence {
    /// Rows of a forward over `blocks`.
    pub fn rows_of(&self, blocks: &Range<usize>) -> Range<usize> {
        if self.geometry.rules().attends_to_all {
            return self.rows_of_whole();
        }
        let start = self.geometry.block_start(blocks.start);
        let rows = match blocks.clone().next_back() {
            Some(last) => {
                start + self.block(blocks.start).focus().forwarded.start
                    ..self.geometry.block_start(last) + self.block(last).focus().forwarded.end
            }
            None => start..start,
        };
        // Shifted logits: the row that predicts a mask in the first row is forwarded, too, with the K/V it has.
        let is_masked = self.answer.states().get(rows.start) == Some(&PositionState::Masked);
        let lead = if is_masked { rows.start - self.decoding.predicting_position(rows.start) } else { 0 };
        rows.start - lead..rows.end
    }

    /// Rows of a forward if every position attends to all others: all, except those with K/V that the strategy reuses.
    fn rows_of_whole(&self) -> Range<usize> {
        let n_positions = self.answer.tokens().len();
        let stale = self.blocks.kept_forward().filter(|block| Some(*block) == self.first_open());
        match (stale.map(|block| self.geometry.block_range(block)), self.decoding.requirements().kv_reuse) {
            (None, _) | (_, KvReuse::None) => 0..n_positions,
            (Some(block), KvReuse::Prefix) => block.start..n_positions,
            (Some(block), KvReuse::Dual) => block,
        }
    }

    /// The first block that is not decided.
    pub(super) fn first_open(&self) -> Option<usize> {
        (0..self.blocks.len()).find(|block| !self.block(*block).progress().is_settled())
    }

    /// Inputs to forward again before the block in flight can go on, if there are any.
    pub(super) fn lost_forward(&self) -> Option<&[Input]> {
        let (block, inputs) = self.blocks.lost_forward()?;
        (Some(block) == self.first_open()).then_some(inputs)
    }

    /// The network's inputs in the rows of `blocks`.
    pub fn inputs(&self, blocks: &Range<usize>) -> Vec<Input> {
        if let Some(inputs) = self.lost_forward() {
            return inputs.to_vec();
        }
        let rows = self.rows_of(blocks);
        let mut inputs = self.answer.positions.inputs[rows.clone()].to_vec();
        for index in blocks.clone() {
            if let Some(written) = self.block(index).restored() {
                let start = self.geometry.block_start(index) - rows.start;
                inputs[start..start + written.len()].copy_from_slice(written);
            }
        }
        inputs
    }

    /// End of the positions, from 0 on, that `position` attends to.
    pub fn visible_from(&self, position: usize) -> usize {
        let is_canvas =
            self.geometry.rules().starts_as_noise && self.block(self.geometry.block_of(position)).is_canvas();
        self.geometry.visible_from(position, is_canvas)
    }

    /// Blocks of `blocks` that this step denoises.
    pub fn denoised(&self, blocks: &Range<usize>) -> Range<usize> {
        if !self.geometry.rules().attends_to_all {
            return self.blocks.window().1.start.max(blocks.start)..blocks.end;
        }
        let open = self.first_open().filter(|_| self.lost_forward().is_none());
        open.map_or(blocks.end..blocks.end, |block| block..block + 1)
    }

    /// Whether more blocks wait to be written than a window has, so that they may be forwarded in chunks.
    pub fn is_encoding(&self) -> bool {
        self.blocks.window().0.len() > self.decoding.requirements().buffer_size
    }

    /// Blocks that the next forward takes of the window. Opens the next block if the strategy and the limits want it, so call it
    /// once before each step.
    pub fn step_blocks(&mut self) -> Range<usize> {
        if self.encodes_apart() {
            return self.blocks.window().0;
        }
        let (n_cached, next) = (self.blocks.n_cached(), self.blocks.len());
        // No block opens after the one with an end token.
        if self.geometry.block_start(next) < self.answer.end() && self.answer.first_stop().is_none() {
            // Blocks that were cached once are not in flight, even while they are written again.
            let live = n_cached.max(self.geometry.n_prompt_blocks()).max(self.blocks.rebuild_end())..next;
            let newest = live.clone().next_back().map(|index| self.block(index).progress());
            if self.decoding.opens_block(live.len(), newest, n_cached == next) {
                self.open_block();
            }
        }
        n_cached..self.blocks.len()
    }

    /// The same within `budget` rows: all of the step's blocks, or else a chunk of the prompt, or else `None`. Half a window could
    /// change the order in which blocks open.
    pub fn step_blocks_within(&mut self, budget: usize) -> Option<Range<usize>> {
        let (ready, active) = self.blocks.window();
        let end = if self.encodes_apart() { ready.end } else { active.end };
        // A block may open, and shifted logits may need the row before it.
        let may_open = !self.geometry.is_prompt_only() && !self.geometry.rules().attends_to_all;
        let opening = if may_open { self.geometry.block_size() + 1 } else { 0 };
        if self.rows_of(&(ready.start..end)).len() + opening <= budget {
            return Some(self.step_blocks());
        }
        if !self.is_encoding() {
            return None;
        }
        let affordable = ready.clone().take_while(|last| self.rows_of(&(ready.start..last + 1)).len() <= budget);
        Some(ready.start..ready.start + affordable.count())
    }

    /// Whether the next forward leaves out the blocks that are not decided.
    fn encodes_apart(&self) -> bool {
        let (ready, active) = self.blocks.window();
        let mut active = active.map(|index| self.block(index).focus().forwarded);
        self.decoding.requirements().encodes_apart && !ready.is_empty() && active.any(|forwarded| !forwarded.is_empty())
    }

    /// Purpose of a forward over `blocks`.
    pub fn forward_kind(&self, blocks: &Range<usize>) -> ForwardKind {
        let rebuild_end = self.blocks.rebuild_end();
        if self.lost_forward().is_some() {
            ForwardKind::Rebuild
        } else if blocks.clone().any(|index| self.block(index).is_denoised()) {
            if self.decoding.scored().is_some() { ForwardKind::Score } else { ForwardKind::Denoise }
        } else if blocks.end <= rebuild_end || blocks.clone().any(|index| self.block(index).restored().is_some()) {
            ForwardKind::Rebuild
        } else if blocks.start.max(rebuild_end) < self.geometry.n_prompt_blocks() {
            ForwardKind::Prefill
        } else {
            ForwardKind::Commit
        }
    }
}
