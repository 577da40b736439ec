//! `factor`: a confidence threshold that rises with the number of accepted tokens (Fast-dLLM).

use crate::accept::rule::{Rule, best_scored};
use crate::contract::setting::{Field, Setting, SettingFields};
use crate::contract::view::{BlockView, Candidate};

/// See [`Factor::factor`].
const FACTOR: Setting = Setting::above(
    "factor",
    "FACTOR",
    0.0,
    "Under factor, accept the n-th most confident token while its confidence is at least 1 - FACTOR / (n + 1)",
);

/// Accepts in descending order of confidence while the n-th confidence is at least `1 - factor / (n + 1)`; always the best one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// Factor, above 0.
    pub factor: f32,
}

impl Default for Factor {
    /// 1.0: Fast-dLLM's paper.
    fn default() -> Self {
        Self { factor: 1.0 }
    }
}

impl Rule for Factor {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&FACTOR, Field::Number(&mut self.factor))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let mut confidences: Vec<f32> = block.candidates.iter().map(|candidate| candidate.confidence).collect();
        confidences.sort_by(|a, b| b.total_cmp(a));
        let is_sure = |(n, confidence): &(usize, f32)| *n == 1 || *confidence >= 1.0 - self.factor / (n + 1) as f32;
        best_scored(block.candidates, (1..).zip(confidences).take_while(is_sure).count())
    }
}
