//! A block of a sequence and its status in the KV cache.

use diffulex_strategies::Input;

/// The status of a block in the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockStatus {
    /// Has masks or drafts, or follows a block that has.
    Active,
    /// Decided; a forward has to write its K/V.
    Ready,
    /// Its K/V are in the cache.
    Cached,
}

/// K/V of an `Active` block that a strategy may build on when it forwards a part of it only.
#[derive(Clone, Debug, PartialEq)]
pub enum Scratch {
    /// Its rows were never forwarded together.
    Never,
    /// They were, from these inputs; the cache holds that K/V, except for the part forwarded since.
    Kept(Vec<Input>),
    /// That K/V was lost with the pages and can be written again from these inputs.
    Lost(Vec<Input>),
}

/// A block that has been opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Its status in the KV cache.
    pub status: BlockStatus,
    /// Denoise steps it took.
    pub steps: usize,
    /// Those of them that began without a mask.
    pub full_steps: usize,
    /// Steps in a row, up to the last one, that left every token of it as it was.
    pub unchanged_steps: usize,
    /// Its K/V in the cache before its tokens are final.
    pub scratch: Scratch,
}

impl Block {
    pub(super) fn new(status: BlockStatus) -> Self {
        Self { status, steps: 0, full_steps: 0, unchanged_steps: 0, scratch: Scratch::Never }
    }
}
