//! Layouts of blocks, the attention of a model, and the reuse of K/V.

use crate::contract::setting::NamedChoice;

/// Positions of the blocks, the positions that a row attends to, and the K/V that stay valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Blocks are counted from position 0, so the tail of the prompt shares a block with the first masks. A row attends to all
    /// positions up to the end of its block. The K/V of a full block stay valid. Blocks open as needed.
    BlockCausal,
    /// The prompt is one block of any length, and the answer's blocks are counted from its end; otherwise as
    /// [`Self::BlockCausal`]. The K/V of each prompt token depend on the whole prompt, so other requests cannot reuse them.
    PromptFirst,
    /// Blocks are counted from the end of the prompt; the last one ends at the limit of the answer. Every row attends to the
    /// prompt and the whole answer, masks included, so each step forwards all rows and no K/V stay valid.
    WholeAnswer,
    /// The prompt is cut into blocks from position 0, the last one possibly short; canvases of one block each follow. A canvas
    /// starts as noise, and its rows attend to all of it and to everything before it. Once decided, a canvas is encoded like
    /// the prompt, with causal attention; K/V of encoded positions stay valid. Canvases open as needed.
    Canvases,
}

/// Positions that a row attends to in training, and therefore in decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
    /// Its own block and all blocks before; blocks are counted from position 0.
    BlockCausal,
    /// All positions, later ones included.
    Full,
    /// Causal while encoding; its whole canvas and everything before it while denoising.
    Canvas,
}

/// K/V that a step inside a block reuses from the block's first forward, which covers all positions. They are stale (computed
/// from the tokens at that time), so answers differ from those without reuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvReuse {
    /// No reuse: every step forwards all positions.
    #[default]
    None,
    /// K/V before the block (Fast-dLLM's prefix cache).
    Prefix,
    /// K/V before and after the block (Fast-dLLM's dual cache).
    Dual,
}

impl NamedChoice for KvReuse {
    fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Prefix => "prefix",
            Self::Dual => "dual",
        }
    }

    fn choose(&mut self, name: &str) {
        let all = [Self::None, Self::Prefix, Self::Dual];
        *self = all.into_iter().find(|reuse| reuse.name() == name).unwrap_or(*self);
    }
}
