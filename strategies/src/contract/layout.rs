//! Layouts: a strategy's needs of the engine's memory and masks.

use crate::contract::setting::NamedChoice;

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

impl Layout {
    /// Whether what requests have in common at their front has the same K/V in all of them.
    pub fn shares_prefixes(self) -> bool {
        match self {
            Self::BlockCausal | Self::Canvases => true,
            Self::PromptFirst | Self::WholeAnswer => false,
        }
    }

    /// The text that a context may hold.
    pub fn context_growth(self) -> ContextGrowth {
        match self {
            Self::BlockCausal | Self::Canvases => ContextGrowth::Grows,
            Self::PromptFirst => ContextGrowth::WholePrompt,
            Self::WholeAnswer => ContextGrowth::Refused(
                "it attends to the whole answer at every step, so no K/V of a context stay valid",
            ),
        }
    }

    /// Positions that an answer takes which ends at `limit` at the latest, prompt included.
    pub fn extent(self, prompt_len: usize, limit: usize, block_size: usize) -> usize {
        match self {
            Self::BlockCausal => limit.next_multiple_of(block_size),
            Self::PromptFirst | Self::Canvases => prompt_len + (limit - prompt_len).next_multiple_of(block_size),
            Self::WholeAnswer => limit,
        }
    }
}

/// The text that a context may hold, whose K/V its requests share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextGrowth {
    /// Any text: what is there keeps its K/V when more is added, answers included.
    Grows,
    /// One prompt: more text would change the K/V of all of it. Answers are not kept.
    WholePrompt,
    /// Nothing, for this reason.
    Refused(&'static str),
}

/// The positions that a row attends to in the network's training, and so must in decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
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
