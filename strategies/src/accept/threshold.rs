//! Rules with a confidence threshold: `threshold`, `threshold_keep`, `gated_threshold`, `relative`.

use crate::accept::rule::{ACCEPT_THRESHOLD, Rule, SEMI_COMPLETE_THRESHOLD, above, at_least, or_best};
use crate::contract::setting::{Field, SettingFields};
use crate::contract::view::{BlockView, Candidate};

/// Difference in confidence to the best candidate within which `relative` accepts (dInfer).
const NEAR: f32 = 1e-5;

/// Accepts all above the threshold, and always the best one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// Confidence threshold in [0, 1], exclusive.
    pub accept_threshold: f32,
}

impl Threshold {
    /// Default of every rule with a confidence threshold: SDAR's and Diffulex's engines (`accept_threshold`), Fast-dLLM's
    /// generate (`threshold`) and D2F (`skip_threshold`).
    pub const ACCEPT_THRESHOLD: f32 = 0.9;
}

impl Default for Threshold {
    fn default() -> Self {
        Self { accept_threshold: Self::ACCEPT_THRESHOLD }
    }
}

impl Rule for Threshold {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&ACCEPT_THRESHOLD, Field::Number(&mut self.accept_threshold))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        or_best(above(block.candidates, self.accept_threshold), block.candidates)
    }
}

/// Accepts all at or above the threshold, and always the best one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThresholdKeep {
    /// Confidence threshold in [0, 1], inclusive.
    pub accept_threshold: f32,
}

impl Default for ThresholdKeep {
    fn default() -> Self {
        Self { accept_threshold: Threshold::ACCEPT_THRESHOLD }
    }
}

impl Rule for ThresholdKeep {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&ACCEPT_THRESHOLD, Field::Number(&mut self.accept_threshold))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        or_best(at_least(block.candidates, self.accept_threshold), block.candidates)
    }
}

/// Accepts all above the threshold; if there is none, the best one, provided that the preceding block is filled far enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedThreshold {
    /// Confidence threshold in [0, 1], exclusive.
    pub accept_threshold: f32,
    /// Filled share of the preceding block, in [0, 1], inclusive.
    pub semi_complete_threshold: f32,
}

impl GatedThreshold {
    /// Default: Diffulex's `semi_complete_threshold`.
    pub const SEMI_COMPLETE_THRESHOLD: f32 = 0.9;
}

impl Default for GatedThreshold {
    fn default() -> Self {
        Self { accept_threshold: Threshold::ACCEPT_THRESHOLD, semi_complete_threshold: Self::SEMI_COMPLETE_THRESHOLD }
    }
}

impl Rule for GatedThreshold {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![
            (&ACCEPT_THRESHOLD, Field::Number(&mut self.accept_threshold)),
            (&SEMI_COMPLETE_THRESHOLD, Field::Number(&mut self.semi_complete_threshold)),
        ]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let accepted = above(block.candidates, self.accept_threshold);
        let may_force = block.previous.is_none_or(|previous| previous.share() >= self.semi_complete_threshold);
        if may_force { or_best(accepted, block.candidates) } else { accepted }
    }
}

/// Accepts all at or above the threshold; if there is none, the best one and all within 1e-5 of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Relative {
    /// Confidence threshold in [0, 1], inclusive.
    pub accept_threshold: f32,
}

impl Default for Relative {
    fn default() -> Self {
        Self { accept_threshold: Threshold::ACCEPT_THRESHOLD }
    }
}

impl Rule for Relative {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&ACCEPT_THRESHOLD, Field::Number(&mut self.accept_threshold))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let best = block.candidates.iter().map(|candidate| candidate.confidence).fold(0.0, f32::max);
        at_least(block.candidates, self.accept_threshold.min(best - NEAR))
    }
}
