//! `prophet`: a schedule with an early commit of all remaining masks (Prophet, arXiv 2508.19982, section 4; pixeli99/Prophet,
//! generate_earlyexit.py at 460afe4).
//!
//! The gap of a position is the difference of its two largest logits, `ln(p1 / p2)`. If the mean gap reaches the threshold of the
//! current phase, the step writes every masked position of the block; otherwise it writes as many as LLaDA's schedule. The phase
//! follows from the progress `p = (step + 1) / steps`: early below 0.33, middle below 0.67, otherwise late.
//!
//! The authors take the mean over the positions of the final answer, which their prompts fix, and commit the whole answer. A
//! server does not know these positions, so the mean here is over the masked positions of the block, and each block commits
//! separately. With one block per answer, both commit the whole answer.

use crate::accept::rule::{DENOISING_STEPS, Rule, best_scored};
use crate::accept::schedule::quota;
use crate::contract::setting::{Field, Setting, SettingFields};
use crate::contract::view::{BlockView, Candidate};

/// See [`Prophet::early_gap`].
const EARLY_GAP: Setting = Setting::number(
    "early_gap",
    "GAP",
    0.0,
    f32::MAX,
    "Under prophet, mean gap between the two largest logits that commits a block in the first third of its steps",
);

/// See [`Prophet::middle_gap`].
const MIDDLE_GAP: Setting =
    Setting::number("middle_gap", "GAP", 0.0, f32::MAX, "Under prophet, the gap in the second third");

/// See [`Prophet::late_gap`].
const LATE_GAP: Setting = Setting::number("late_gap", "GAP", 0.0, f32::MAX, "Under prophet, the gap in the last third");

/// Accepts the scheduled number, the most confident first; all candidates once the mean gap reaches the phase's threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prophet {
    /// Steps per block, 1 to its size; `None`: one per position.
    pub denoising_steps: Option<usize>,
    /// Mean gap that commits a block in the early phase, as a difference of logits; 0 or more, inclusive.
    pub early_gap: f32,
    /// Mean gap for the middle phase.
    pub middle_gap: f32,
    /// Mean gap for the late phase.
    pub late_gap: f32,
}

impl Default for Prophet {
    /// The paper's thresholds (generate_earlyexit.py, `early`, `mid`, `late`).
    fn default() -> Self {
        Self { denoising_steps: None, early_gap: 7.5, middle_gap: 5.0, late_gap: 2.5 }
    }
}

impl Prophet {
    /// Ends of the early and the middle phase, exclusive (generate_earlyexit.py, `should_early_exit`).
    const PHASES: [f32; 2] = [0.33, 0.67];

    fn commits(&self, block: &BlockView<'_>) -> bool {
        let n_steps = self.denoising_steps.unwrap_or(block.progress.block_size);
        let progress = (block.step + 1) as f32 / n_steps as f32;
        let threshold = match Self::PHASES.iter().position(|end| progress < *end) {
            Some(0) => self.early_gap,
            Some(_) => self.middle_gap,
            None => self.late_gap,
        };
        // If only one token can be drawn, the second has probability 0 and the gap is infinite.
        let second = |candidate: &Candidate| candidate.runners_up.first().map_or(0.0, |(_, probability)| *probability);
        let gap = |candidate: &Candidate| (candidate.likeliest.1 / second(candidate)).ln();
        block.candidates.iter().map(gap).sum::<f32>() / block.candidates.len() as f32 >= threshold
    }
}

impl Rule for Prophet {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![
            (&DENOISING_STEPS, Field::OptionalCount(&mut self.denoising_steps)),
            (&EARLY_GAP, Field::Number(&mut self.early_gap)),
            (&MIDDLE_GAP, Field::Number(&mut self.middle_gap)),
            (&LATE_GAP, Field::Number(&mut self.late_gap)),
        ]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        if self.commits(block) {
            return block.candidates.to_vec();
        }
        best_scored(block.candidates, quota(block, self.denoising_steps))
    }

    fn n_likeliest(&self) -> usize {
        2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::view::BlockProgress;

    /// Rows of a block of four that are written at `step`, from `(p1, p2)` of each row.
    fn rows(rule: Prophet, probabilities: [(f32, f32); 4], step: usize) -> Vec<usize> {
        let candidates: Vec<Candidate> = (0..)
            .zip(probabilities)
            .map(|(row, (first, second))| {
                let mut candidate = Candidate::plain(row, None, 7, first);
                candidate.runners_up = vec![(8, second)];
                candidate
            })
            .collect();
        let progress = BlockProgress { n_filled: 0, n_drafts: 0, block_size: 4 };
        let block = BlockView { step, ..BlockView::first(progress, &candidates) };
        rule.accept(&block).iter().map(|candidate| candidate.row).collect()
    }

    #[test]
    fn the_mean_gap_commits_a_block_and_later_steps_ask_for_less() {
        let rule = Prophet { early_gap: 2.0, middle_gap: 1.0, late_gap: 0.5, ..Prophet::default() };
        // e to the power of 1 and of 2 apart: a mean of 1.5.
        let e = std::f32::consts::E;
        let block = [(0.5, 0.5 / e), (0.6, 0.6 / e), (0.7, 0.7 / (e * e)), (0.8, 0.8 / (e * e))];
        assert_eq!(rows(rule, block, 0), [3], "progress 0.25 is early");
        assert_eq!(rows(rule, block, 1), [0, 1, 2, 3], "progress 0.5 is in the middle");
        let close = [(0.5, 0.25), (0.6, 0.3), (0.7, 0.35), (0.8, 0.4)];
        assert_eq!(rows(rule, close, 1), [3]);
        assert_eq!(rows(rule, close, 2), [0, 1, 2, 3], "progress 0.75 is late");
    }

    #[test]
    fn a_threshold_is_inclusive_and_a_second_token_that_cannot_be_drawn_leaves_no_doubt() {
        let rule = Prophet { early_gap: 0.0, ..Prophet::default() };
        assert_eq!(rows(rule, [(0.5, 0.5); 4], 0), [0, 1, 2, 3]);
        assert_eq!(rows(Prophet::default(), [(1.0, 0.0); 4], 0), [0, 1, 2, 3]);
        assert_eq!(rows(Prophet::default(), [(0.5, 0.25); 4], 0), [0]);
    }

    #[test]
    fn the_early_phase_ends_before_0_33() {
        let rule = Prophet { denoising_steps: Some(100), early_gap: f32::MAX, middle_gap: 0.0, late_gap: f32::MAX };
        assert_eq!(rows(rule, [(0.5, 0.25); 4], 31), [0], "progress 0.32");
        assert_eq!(rows(rule, [(0.5, 0.25); 4], 32), [0, 1, 2, 3], "progress 0.33");
        assert_eq!(rows(rule, [(0.5, 0.25); 4], 66), [0], "progress 0.67 is late");
    }
}
