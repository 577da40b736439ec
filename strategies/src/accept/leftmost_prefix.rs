//! `leftmost_prefix`: the confident candidates from the left (DMax).

use crate::accept::rule::{ACCEPT_THRESHOLD, Rule};
use crate::accept::threshold::Threshold;
use crate::contract::setting::{Field, SettingFields};
use crate::contract::view::{BlockView, Candidate};

/// Accepts from left to right while the confidence is at least the threshold; always the first candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeftmostPrefix {
    /// Confidence threshold in [0, 1], inclusive.
    pub accept_threshold: f32,
}

impl Default for LeftmostPrefix {
    fn default() -> Self {
        Self { accept_threshold: Threshold::ACCEPT_THRESHOLD }
    }
}

impl Rule for LeftmostPrefix {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&ACCEPT_THRESHOLD, Field::Number(&mut self.accept_threshold))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let is_sure = |candidate: &&Candidate| candidate.confidence >= self.accept_threshold;
        let n_sure = block.candidates.iter().take_while(is_sure).count();
        block.candidates[..n_sure.max(1)].to_vec()
    }
}
