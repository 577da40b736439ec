//! Layouts: a strategy's needs of the engine's memory and masks. The engine has their arithmetic.

use crate::setting::Choice;

/// How blocks lie, what a position sees, and what may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Blocks are counted from position 0, so the prompt's tail shares one with the first masks. A position sees all up to
    /// the end of its block; a full block's K/V are kept. Blocks open as they are needed.
    BlockCausal,
    /// The prompt is one block, whatever its length, and the answer's blocks are counted from its end. Otherwise as
    /// [`Self::BlockCausal`], but since every token of a prompt shapes the K/V of all of it, they serve no other request.
    PromptFirst,
    /// Blocks are counted from the end of the prompt, the last one ends where the answer must. Every position sees the
    /// prompt and the whole answer, masks included, so all are forwarded at every step and nothing is kept.
    WholeAnswer,
    /// The prompt is cut into blocks from position 0, the last one short; canvases of a block each follow from its end, one
    /// after the other. A canvas starts as noise, of which every position sees all, and what is before it; once it is
    /// decided it is encoded, as the prompt is, each position seeing nothing behind itself. K/V of what is encoded are
    /// kept. Canvases open as they are needed.
    Canvases,
}

/// The positions that a row attends to in the network's training, and so must in decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// All of its own block and of the blocks before; blocks are counted from position 0.
    BlockCausal,
    /// Everything, later positions included.
    Full,
    /// Nothing after itself while it is encoded; all of its canvas and what is before that while it is denoised.
    Canvas,
}

/// Which K/V a step inside a block takes from the forward over everything with which the block began. They are those of what
/// stood there then, so answers are near those without, not equal to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvReuse {
    /// None: every step forwards everything.
    #[default]
    None,
    /// Those before the block (Fast-dLLM's prefix cache).
    Prefix,
    /// Those before and behind the block (Fast-dLLM's dual cache).
    Dual,
}

impl Choice for KvReuse {
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
