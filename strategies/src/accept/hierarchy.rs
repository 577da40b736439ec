//! `hierarchy`: the best candidate of each run of adjacent masks (dInfer).

use crate::accept::rule::{ACCEPT_THRESHOLD, Rule, above, best_scored};
use crate::accept::threshold::Threshold;
use crate::contract::setting::{Field, SettingFields};
use crate::contract::view::{BlockView, Candidate};

/// Confidence above which the best candidate of a run is accepted (`low_threshold` of dInfer's hierarchy decoder).
const RUN_THRESHOLD: f32 = 0.4;

/// Accepts all above the threshold, the best of each run of adjacent masks if above 0.4, and always the best of all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hierarchy {
    /// Confidence threshold in [0, 1], exclusive.
    pub accept_threshold: f32,
}

impl Default for Hierarchy {
    fn default() -> Self {
        Self { accept_threshold: Threshold::ACCEPT_THRESHOLD }
    }
}

impl Rule for Hierarchy {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&ACCEPT_THRESHOLD, Field::Number(&mut self.accept_threshold))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let mut accepted = above(block.candidates, self.accept_threshold);
        let runs = block.candidates.chunk_by(|left, right| left.row + 1 == right.row);
        let leaders = runs.flat_map(|run| best_scored(run, 1)).filter(|best| best.confidence > RUN_THRESHOLD);
        accepted.extend(leaders.chain(best_scored(block.candidates, 1)));
        accepted.sort_by_key(|candidate| candidate.row);
        accepted.dedup_by_key(|candidate| candidate.row);
        accepted
    }
}
