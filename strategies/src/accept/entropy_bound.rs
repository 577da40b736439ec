//! `entropy_bound`: a bound on the summed entropy of accepted tokens (DiffusionGemma).

use crate::accept::rule::{Rule, best_scored};
use crate::contract::setting::{Field, Setting, SettingFields};
use crate::contract::view::{BlockView, Candidate, Score};

/// See [`EntropyBound::entropy_bound`].
pub const ENTROPY_BOUND: Setting = Setting::number(
    "entropy_bound",
    "NATS",
    0.0,
    f32::MAX,
    "Under entropy_bound, maximum sum of the entropies, in nats, of the tokens accepted before another",
);

/// Accepts in ascending order of entropy, as long as the entropies of the tokens accepted before sum to at most the bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntropyBound {
    /// Bound in nats, 0 or more, inclusive.
    pub entropy_bound: f32,
}

impl Default for EntropyBound {
    /// 0.1: transformers' DiffusionGemma (`entropy_bound`).
    fn default() -> Self {
        Self { entropy_bound: 0.1 }
    }
}

impl Rule for EntropyBound {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&ENTROPY_BOUND, Field::Number(&mut self.entropy_bound))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let mut scores: Vec<f32> = block.candidates.iter().map(|candidate| candidate.score).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        // The score is the negative entropy; the sum excludes the candidate's own.
        let sums = scores.iter().scan(0.0, |sum, score| {
            let before = *sum;
            *sum -= score;
            Some(before)
        });
        best_scored(block.candidates, sums.take_while(|before| *before <= self.entropy_bound).count())
    }

    fn score(&self) -> Score {
        Score::NegativeEntropy
    }
}
