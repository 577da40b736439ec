//! Positions of the blocks of a sequence.

use std::ops::Range;

use diffulex_strategies::Layout;

/// Blocks and positions of one request. Positions are absolute: the prompt's first token is 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) layout: Layout,
    /// Positions of a block.
    pub(super) block_size: usize,
    /// Positions before the answer.
    pub(super) prompt_len: usize,
    /// Positions of prompt and answer.
    pub(super) end: usize,
    /// There is no answer, and no block reaches behind the prompt.
    pub(super) is_prompt_only: bool,
}

impl Geometry {
    /// Position from which the answer's blocks of `block_size` are counted.
    pub(super) fn block_origin(&self) -> usize {
        match self.layout {
            Layout::BlockCausal => 0,
            Layout::PromptFirst | Layout::WholeAnswer | Layout::Canvases => self.prompt_len,
        }
    }

    /// Blocks that hold nothing but prompt.
    pub(super) fn n_prompt_blocks(&self) -> usize {
        match self.layout {
            Layout::BlockCausal if self.is_prompt_only => self.prompt_len.div_ceil(self.block_size),
            Layout::BlockCausal => self.prompt_len / self.block_size,
            Layout::PromptFirst => 1,
            Layout::Canvases => self.prompt_len.div_ceil(self.block_size),
            Layout::WholeAnswer => 0,
        }
    }

    /// Position at which block `index` begins.
    pub(super) fn block_start(&self, index: usize) -> usize {
        match self.layout {
            Layout::BlockCausal if self.is_prompt_only => (index * self.block_size).min(self.end),
            Layout::BlockCausal => index * self.block_size,
            Layout::PromptFirst => index.checked_sub(1).map_or(0, |index| self.prompt_len + index * self.block_size),
            Layout::WholeAnswer => (self.prompt_len + index * self.block_size).min(self.end),
            Layout::Canvases => match index.checked_sub(self.n_prompt_blocks()) {
                Some(canvas) => self.prompt_len + canvas * self.block_size,
                None => index * self.block_size,
            },
        }
    }

    /// Positions of block `index`.
    pub(super) fn block_range(&self, index: usize) -> Range<usize> {
        self.block_start(index)..self.block_start(index + 1)
    }

    /// The block that holds `position`, and so the number of whole blocks before it.
    pub(super) fn block_of(&self, position: usize) -> usize {
        let counted = position.checked_sub(self.block_origin()).map(|offset| offset / self.block_size);
        match self.layout {
            // Only the prompt's own block is before those that are counted.
            Layout::PromptFirst => counted.map_or(0, |index| index + 1),
            Layout::BlockCausal | Layout::WholeAnswer => counted.unwrap_or(0),
            Layout::Canvases => match counted {
                Some(canvas) => self.n_prompt_blocks() + canvas,
                None => position / self.block_size,
            },
        }
    }
}
