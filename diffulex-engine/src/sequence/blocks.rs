//! The opened blocks of a sequence and their status in the KV cache.
//!
//! A block goes `Active` (not all of it is decided) -> `Ready` (decided, its K/V not final) -> `Cached` (a forward wrote its final
//! K/V), and back to `Ready` when the request loses its pages.
//!
//! Never here: tokens, positions.

use std::ops::{Deref, Range};

use diffulex_strategies::Input;

/// Status of a block in the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockStatus {
    /// Has masks or drafts, or follows a block that has.
    Active,
    /// Decided; a forward has to write its K/V.
    Ready,
    /// Its K/V are in the cache.
    Cached,
}

/// K/V of an `Active` block that a strategy reuses when it forwards a part of the block only.
#[derive(Clone, Debug, PartialEq)]
pub enum StaleKv {
    /// The rows of the block were never forwarded together.
    Never,
    /// The cache holds the K/V of these inputs, except for rows forwarded since.
    Kept(Vec<Input>),
    /// The K/V of these inputs were lost with the pages and can be written again.
    Lost(Vec<Input>),
}

/// A forward over all positions, if its K/V are reused by the steps of one block.
#[derive(Clone, Debug, PartialEq)]
enum StaleForward {
    /// There was none.
    Never,
    /// Its K/V are in the cache.
    Kept {
        /// The block it was made for.
        block: usize,
        /// Inputs of the network, one per position.
        inputs: Vec<Input>,
    },
    /// Its K/V were lost with the pages.
    Lost {
        /// The block it was made for.
        block: usize,
        /// Inputs of the network, one per position.
        inputs: Vec<Input>,
    },
}

/// An opened block.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Status in the KV cache.
    pub status: BlockStatus,
    /// Denoise steps so far.
    pub steps: usize,
    /// Steps that began without a mask.
    pub full_steps: usize,
    /// Last steps in a row that changed no token.
    pub unchanged_steps: usize,
    /// K/V in the cache before the tokens are final.
    pub stale_kv: StaleKv,
    /// Rows that were forwarded without the others since the whole block was.
    pub(super) forwarded_alone: Option<Range<usize>>,
}

impl Block {
    fn new(status: BlockStatus) -> Self {
        Self { status, steps: 0, full_steps: 0, unchanged_steps: 0, stale_kv: StaleKv::Never, forwarded_alone: None }
    }
}

/// The opened blocks, in order of position.
#[derive(Debug)]
pub struct Blocks {
    all: Vec<Block>,
    stale_forward: StaleForward,
    /// Blocks before this one were cached once and lost.
    rebuild_end: usize,
}

impl Deref for Blocks {
    type Target = [Block];

    fn deref(&self) -> &[Block] {
        &self.all
    }
}

impl Blocks {
    /// `n_ready` blocks of prompt that no forward has encoded.
    pub(super) fn ready(n_ready: usize) -> Self {
        let all = vec![Block::new(BlockStatus::Ready); n_ready];
        Self { all, stale_forward: StaleForward::Never, rebuild_end: 0 }
    }

    /// Adds a block without decided positions.
    pub(super) fn open(&mut self) {
        self.all.push(Block::new(BlockStatus::Active));
    }

    /// Drops all blocks but the first `n_blocks`.
    pub(super) fn truncate(&mut self, n_blocks: usize) {
        self.all.truncate(n_blocks);
    }

    /// Number of blocks at the front whose K/V are in the cache.
    pub fn n_cached(&self) -> usize {
        self.iter().take_while(|block| block.status == BlockStatus::Cached).count()
    }

    /// Blocks that wait to be written, then blocks that are not decided.
    pub fn window(&self) -> (Range<usize>, Range<usize>) {
        let cached = self.n_cached();
        let active = cached + self[cached..].iter().take_while(|block| block.status == BlockStatus::Ready).count();
        (cached..active, active..self.len())
    }

    /// Number of blocks at the front that were cached once and lost.
    pub(super) fn rebuild_end(&self) -> usize {
        self.rebuild_end
    }

    /// Marks the first `n_blocks`, and no others, as found in the prefix cache. Only before the first step, or after a
    /// preemption.
    pub fn found_in_cache(&mut self, n_blocks: usize) {
        for (index, block) in self.all.iter_mut().enumerate() {
            match block.status {
                BlockStatus::Ready if index < n_blocks => block.status = BlockStatus::Cached,
                BlockStatus::Cached if index >= n_blocks => block.status = BlockStatus::Ready,
                _ => debug_assert!(index >= n_blocks, "only decided blocks are in the cache"),
            }
        }
    }

    /// Notes that the pages are gone: K/V that were cached have to be written again.
    pub fn lose_cache(&mut self) {
        self.rebuild_end = self.rebuild_end.max(self.n_cached());
        self.stale_forward = match std::mem::replace(&mut self.stale_forward, StaleForward::Never) {
            StaleForward::Kept { block, inputs } | StaleForward::Lost { block, inputs } => {
                StaleForward::Lost { block, inputs }
            }
            StaleForward::Never => StaleForward::Never,
        };
        self.found_in_cache(0);
        for block in &mut self.all {
            block.stale_kv = match std::mem::replace(&mut block.stale_kv, StaleKv::Never) {
                StaleKv::Kept(written) | StaleKv::Lost(written) => StaleKv::Lost(written),
                StaleKv::Never => StaleKv::Never,
            };
        }
    }

    /// The block for which the cache has a forward over all positions.
    pub(super) fn kept_forward(&self) -> Option<usize> {
        match self.stale_forward {
            StaleForward::Kept { block, .. } => Some(block),
            StaleForward::Never | StaleForward::Lost { .. } => None,
        }
    }

    /// The block for which a forward over all positions was lost, and the inputs of that forward.
    pub(super) fn lost_forward(&self) -> Option<(usize, &[Input])> {
        match &self.stale_forward {
            StaleForward::Lost { block, inputs } => Some((*block, inputs)),
            StaleForward::Never | StaleForward::Kept { .. } => None,
        }
    }

    /// Notes a forward over all positions for `block`.
    pub(super) fn keep_forward(&mut self, block: usize, inputs: Vec<Input>) {
        self.stale_forward = StaleForward::Kept { block, inputs };
    }

    /// Notes that the whole `Active` block `index` was forwarded from `inputs`.
    pub(super) fn keep_kv(&mut self, index: usize, inputs: Vec<Input>) {
        let block = &mut self.all[index];
        block.stale_kv = StaleKv::Kept(inputs);
        block.forwarded_alone = None;
    }

    /// Notes that only `rows` of the `Active` block `index` were forwarded.
    pub(super) fn forward_alone(&mut self, index: usize, rows: Range<usize>) {
        self.all[index].forwarded_alone = Some(rows);
    }

    /// Notes that the final K/V of the `Ready` block `index` were written.
    pub(super) fn cache(&mut self, index: usize) {
        self.all[index].status = BlockStatus::Cached;
    }

    /// Notes that block `index` is decided. `is_written`: its final K/V are in the cache.
    pub(super) fn decide(&mut self, index: usize, is_written: bool) {
        let block = &mut self.all[index];
        block.status = if is_written { BlockStatus::Cached } else { BlockStatus::Ready };
        block.stale_kv = StaleKv::Never;
    }

    /// Counts a step of block `index`, which began without a mask (`was_full`) and changed no token (`is_unchanged`).
    pub(super) fn count_step(&mut self, index: usize, was_full: bool, is_unchanged: bool) {
        let block = &mut self.all[index];
        block.steps += 1;
        block.full_steps += usize::from(was_full);
        block.unchanged_steps = if is_unchanged { block.unchanged_steps + 1 } else { 0 };
    }

    /// Counts `n_steps` steps of block `index` that need no forward.
    pub(super) fn skip_steps(&mut self, index: usize, n_steps: usize) {
        self.all[index].steps += n_steps;
    }
}
