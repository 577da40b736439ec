//! What a strategy needs of the engine's memory and masks.

use serde::{Deserialize, Serialize};

/// How blocks lie, what a position sees, and what may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Blocks are counted from position 0, so the prompt's tail shares one with the first masks. A position sees all up to
    /// the end of its block; a full block's K/V are kept. Blocks open as they are needed.
    BlockCausal,
    /// Blocks are counted from the end of the prompt, the last one ends where the answer must. Every position sees the
    /// prompt and the whole answer, masks included, so all are forwarded at every step and nothing is kept.
    WholeAnswer,
}
