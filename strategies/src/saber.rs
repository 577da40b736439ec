//! `saber`: adaptive acceptance with backtracking (Saber, arXiv 2510.18165; zhaoyMa/Saber, decoding.py at 2f061e2,
//! `generate_with_saber`).
//!
//! The whole answer is one block, as in the authors' configurations. Each step has two parts:
//!
//! 1. Write every mask with a confidence above the mean of the confidences last written, and at least `min_accept_tokens` masks.
//! 2. Mask the tokens again for which confidence has increased least since the previous step: `min_accept_tokens / 2` or an
//!    eighth of the tokens just written, whichever is more, but fewer than were written, so each step leaves fewer masks.
//!
//! The confidence of a position is that of the token that the network now predicts there, whatever token was written.
//!
//! In the authors' loop, a step with fewer than `min_accept_tokens` masks left also overwrites positions that are not masked.
//! This implementation writes only the masks.

use crate::accept::best_by;
use crate::contract::edit::{Edit, Proposal};
use crate::contract::layout::{AttentionKind, Layout};
use crate::contract::setting::{Field, Overrides, Setting, SettingError};
use crate::contract::view::{BlockView, Candidate};
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// See [`Saber::min_accept_tokens`].
const MIN_ACCEPT_TOKENS: Setting =
    Setting::count("min_accept_tokens", 1, u32::MAX, "Minimum number of masks to unmask per step");

/// Settings of `saber`; all state is in the block.
#[derive(Clone, Debug, PartialEq)]
pub struct Saber {
    /// Maximum length of the answer, in positions.
    pub block_size: usize,
    /// Minimum number of masks to write per step, at least 1.
    pub min_accept_tokens: usize,
}

impl Saber {
    /// Default: the authors' `n`.
    const MIN_ACCEPT_TOKENS: usize = 2;
    /// One in this many of the written tokens is masked again, rounded up (`generate_with_saber`).
    const REMASK_ONE_IN: usize = 8;

    /// Returns the masks to write, ascending by row.
    fn accepted(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let masked: Vec<Candidate> =
            block.candidates.iter().filter(|candidate| candidate.current.is_none()).cloned().collect();
        let established: Vec<f32> =
            block.written_confidences.iter().copied().filter(|confidence| *confidence > 0.0).collect();
        // Before anything is written, no confidence is above the threshold.
        let threshold =
            if established.is_empty() { 1.0 } else { established.iter().sum::<f32>() / established.len() as f32 };
        let sure: Vec<Candidate> =
            masked.iter().filter(|candidate| candidate.confidence > threshold).cloned().collect();
        if sure.len() < self.min_accept_tokens {
            best_by(&masked, self.min_accept_tokens, |candidate| candidate.confidence)
        } else {
            sure
        }
    }
}

impl Strategy for Saber {
    const NAME: &'static str = "saber";
    const LAYOUT: Layout = Layout::WholeAnswer;
    const SETTINGS: &'static [&'static Setting] = &[&MIN_ACCEPT_TOKENS];

    fn fits(model: &ModelTraits) -> bool {
        model.attention == AttentionKind::Full
    }

    fn new(model: &ModelTraits) -> Self {
        Self { block_size: model.max_model_len, min_accept_tokens: Self::MIN_ACCEPT_TOKENS }
    }

    fn requirements(&self) -> Requirements {
        Requirements { writes_drafts: true, ..Requirements::new(Self::LAYOUT, self.block_size, None) }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        overrides.apply(vec![(&MIN_ACCEPT_TOKENS, Field::Count(&mut self.min_accept_tokens))])
    }

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        let accepted = self.accepted(block);
        let is_accepted = |row: usize| accepted.iter().any(|candidate| candidate.row == row);
        let stands = |candidate: &&Candidate| candidate.current.is_some() || is_accepted(candidate.row);
        let standing: Vec<Candidate> = block.candidates.iter().filter(stands).cloned().collect();
        if standing.len() == block.candidates.len() {
            return Proposal { edits: accepted.iter().map(Edit::draft).collect(), settles: true };
        }
        let n_doubtful = (self.min_accept_tokens / 2)
            .max(accepted.len().div_ceil(Self::REMASK_ONE_IN))
            .min(accepted.len().saturating_sub(1));
        let rise = |candidate: &Candidate| candidate.confidence - block.last_confidences[candidate.row];
        let doubtful = best_by(&standing, n_doubtful, |candidate| -rise(candidate));
        // A token that is written and masked again in the same step still counts in `written_confidences`.
        let written = accepted.iter().map(Edit::draft);
        let revoked = doubtful.iter().map(|candidate| Edit::Mask { row: candidate.row });
        Proposal { edits: written.chain(revoked).collect(), settles: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::view::BlockProgress;

    /// Decodes an answer with the confidences of each step, row by row. Returns the block after each step, `_` for a mask.
    fn pictures(min_accept_tokens: usize, steps: &[&[f32]]) -> Vec<String> {
        let block_size = steps[0].len();
        let saber = Saber { block_size, min_accept_tokens };
        let mut tokens: Vec<Option<u32>> = vec![None; block_size];
        let (mut last, mut written) = (vec![0.0; block_size], vec![0.0; block_size]);
        let mut pictures = Vec::new();
        for (step, confidences) in steps.iter().enumerate() {
            let rows: Vec<(Option<u32>, u32, f32)> =
                (0..block_size).map(|row| (tokens[row], row as u32, confidences[row])).collect();
            let candidates = Candidate::plain_block(&rows);
            let n_filled = tokens.iter().flatten().count();
            let progress = BlockProgress { n_filled, n_drafts: n_filled, block_size };
            let proposal = saber.step(&BlockView {
                step,
                last_confidences: &last,
                written_confidences: &written,
                ..BlockView::first(progress, &candidates)
            });
            for edit in proposal.edits {
                match edit {
                    Edit::Fill { .. } => panic!("nothing is written for good"),
                    Edit::Draft { row, token, confidence, .. } => {
                        (tokens[row], written[row]) = (Some(token), confidence);
                    }
                    Edit::Mask { row } => tokens[row] = None,
                }
            }
            last.copy_from_slice(confidences);
            let letter = |(row, token): (usize, &Option<u32>)| token.map_or('_', |_| char::from(b'a' + row as u8));
            pictures.push(tokens.iter().enumerate().map(letter).collect());
            assert_eq!(proposal.settles, tokens.iter().all(Option::is_some));
        }
        pictures
    }

    #[test]
    fn a_step_writes_what_is_above_the_mean_and_two_at_least() {
        // Of the two best first ones the less confident has risen less, and is masked again. Then three are above the mean
        // of 0.8, the doubtful one among them, and the one that fell is masked.
        let picture =
            pictures(2, &[&[0.9, 0.7, 0.3, 0.2, 0.1], &[0.5, 0.85, 0.95, 0.9, 0.1], &[0.9, 0.9, 0.95, 0.9, 0.5]]);
        assert_eq!(picture, ["a____", "_bcd_", "abcde"]);
    }

    #[test]
    fn one_in_eight_is_masked_again() {
        let steps: [&[f32]; 2] = [
            &[0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
            &[0.91, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.94, 0.1, 0.1],
        ];
        // Nine are above 0.9, so two are masked: the first has risen by a hundredth, the tenth by less than the others.
        assert_eq!(pictures(1, &steps), ["a___________", "_bcdefghi___"]);
    }

    proptest::proptest! {
        #[test]
        fn each_step_leaves_fewer_masks(
            rows in proptest::collection::vec((proptest::option::of(0u32..9), 0u32..9, 0.01f32..1.0), 1..33),
            memory in proptest::collection::vec(0.0f32..1.0, 33),
            min_accept_tokens in 1usize..40,
        ) {
            let candidates = Candidate::plain_block(&rows);
            let n_masked = rows.iter().filter(|(current, ..)| current.is_none()).count();
            proptest::prop_assume!(n_masked > 0);
            let n_filled = rows.len() - n_masked;
            let progress = BlockProgress { n_filled, n_drafts: n_filled, block_size: rows.len() };
            let proposal = Saber { block_size: rows.len(), min_accept_tokens }.step(&BlockView {
                last_confidences: &memory,
                written_confidences: &memory[..rows.len()],
                ..BlockView::first(progress, &candidates)
            });
            let mut tokens: Vec<Option<u32>> = rows.iter().map(|(current, ..)| *current).collect();
            for edit in &proposal.edits {
                match *edit {
                    Edit::Fill { row, token, .. } | Edit::Draft { row, token, .. } => tokens[row] = Some(token),
                    Edit::Mask { row } => tokens[row] = None,
                }
            }
            let left = tokens.iter().filter(|token| token.is_none()).count();
            proptest::prop_assert!(left < n_masked);
            proptest::prop_assert_eq!(proposal.settles, left == 0);
        }
    }
}
