//! A step of one request: the purpose of its forward and the effects of its edits.

use serde::Serialize;

/// Purpose of a forward; decides which counter it is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForwardKind {
    /// Rows of at least one block were denoised.
    Denoise,
    /// The same, for a position with a known token.
    Score,
    /// K/V lost in a preemption were written again.
    Rebuild,
    /// Prompt blocks were encoded; the answer's first token may come with them.
    Prefill,
    /// Finished blocks were encoded; a token of the next one may come with them.
    Commit,
}

/// Effects of one step on a request.
#[derive(Clone, Debug, PartialEq)]
pub struct StepChange {
    /// Purpose of the forward.
    pub kind: ForwardKind,
    /// Confidence of each position decided below the limit.
    pub filled: Vec<f32>,
    /// Denoise steps of each block that was decided.
    pub block_steps: Vec<usize>,
    /// The watchdog had to force a token.
    pub was_forced: bool,
    /// A token below the limit changed, or became final.
    pub is_visible: bool,
}

impl StepChange {
    /// No effects yet.
    pub(super) fn new(kind: ForwardKind) -> Self {
        Self { kind, filled: Vec::new(), block_steps: Vec::new(), was_forced: false, is_visible: false }
    }
}
