//! `diffusion_gemma`: canvases of random tokens, denoised by entropy and noised anew (DiffusionGemma).
//!
//! At each step the network writes the whole canvas, at a temperature that falls from step to step. The surest tokens go
//! back into the canvas, the others are replaced by noise (edit rule E5, renoise). A canvas is decided when the likeliest
//! tokens have stayed the same and their mean entropy is small, or after the last step; what is decided are the likeliest
//! tokens, not those that went back (transformers 5.23, generation_diffusion_gemma.py).

use serde::{Deserialize, Serialize};

use crate::accept::AcceptRule;
use crate::edit::{Edit, Input, Proposal};
use crate::view::{BlockView, Progress};

/// Settings of `diffusion_gemma`, which has no other state. Defaults are transformers'.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanvasRenoise {
    /// Positions of a canvas; what the model was trained with (its config.json).
    pub block_size: usize,
    /// Which tokens go back into the canvas; an [`AcceptRule::EntropyBound`].
    #[serde(flatten)]
    pub accept: AcceptRule,
    /// Steps of a canvas at most, at least 1.
    pub denoising_steps: usize,
    /// What the temperature of the logits falls to, above 0; it is one step above that at the last step.
    pub t_min: f32,
    /// The temperature at the first step.
    pub t_max: f32,
    /// Steps the likeliest tokens must have stayed the same.
    pub stability_threshold: usize,
    /// Mean entropy of the canvas, in nats, below which it may be decided, exclusive.
    pub confidence_threshold: f32,
}

impl CanvasRenoise {
    /// The name of what happens to tokens that do not go back; it has no settings.
    pub const EDIT_RULE: &'static str = "renoise";
    /// `entropy_bound`.
    pub const ENTROPY_BOUND: f32 = 0.1;
    /// `max_denoising_steps`.
    pub const DENOISING_STEPS: usize = 48;
    /// Most denoise steps that may be asked for: a canvas that never settles takes all of them. One for each position of a
    /// released model's canvas (`canvas_length`), which is what the other strategies take at most. Chosen by us.
    pub const MAX_DENOISING_STEPS: usize = 256;
    /// `t_min`.
    pub const T_MIN: f32 = 0.4;
    /// `t_max`.
    pub const T_MAX: f32 = 0.8;
    /// `stability_threshold`.
    pub const STABILITY_THRESHOLD: usize = 1;
    /// `confidence_threshold`.
    pub const CONFIDENCE_THRESHOLD: f32 = 0.005;
    /// A canvas that is decided is encoded in the forward that denoises the next one.
    pub const BUFFER_SIZE: usize = 2;

    /// What the logits of a canvas are divided by that took `step` steps.
    pub fn temperature(&self, step: usize) -> f32 {
        let left = self.denoising_steps.saturating_sub(step) as f32 / self.denoising_steps as f32;
        self.t_min + (self.t_max - self.t_min) * left
    }

    /// Whether another canvas may open; the first one does in the forward that encodes the prompt.
    pub fn opens_block(&self, n_live: usize, newest: Option<Progress>) -> bool {
        n_live < Self::BUFFER_SIZE && newest.is_none_or(Progress::is_settled)
    }

    /// What to do with a canvas now.
    pub fn step(&self, canvas: &BlockView<'_>) -> Proposal {
        let accepted = self.accept.accept(canvas);
        let candidates = canvas.candidates;
        let is_unchanged = candidates.iter().all(|candidate| candidate.current == Some(candidate.likeliest.0));
        let n_unchanged = if is_unchanged { canvas.unchanged_steps + 1 } else { 0 };
        let mean_entropy = candidates.iter().map(|candidate| -candidate.score).sum::<f32>() / candidates.len() as f32;
        let is_last = canvas.step + 1 >= self.denoising_steps;
        let is_sure = n_unchanged >= self.stability_threshold && mean_entropy < self.confidence_threshold;
        let edits = candidates.iter().map(|candidate| {
            let is_accepted = accepted.iter().any(|accepted| accepted.row == candidate.row);
            let (token, confidence) = candidate.likeliest;
            let input = if is_accepted { Input::Token(candidate.token) } else { Input::Noise };
            Edit::Draft { row: candidate.row, token, confidence, input }
        });
        Proposal { edits: edits.collect(), settles: is_last || is_sure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Candidate;

    const CANVAS: CanvasRenoise = CanvasRenoise {
        block_size: 3,
        accept: AcceptRule::EntropyBound { entropy_bound: 0.1 },
        denoising_steps: 4,
        t_min: 0.4,
        t_max: 0.8,
        stability_threshold: 1,
        confidence_threshold: 0.3,
    };

    /// `(draft, drawn, likeliest, entropy)` of each row.
    fn step(
        canvas: &CanvasRenoise,
        rows: [(Option<u32>, u32, u32, f32); 3],
        step: usize,
        unchanged: usize,
    ) -> Proposal {
        let candidates: Vec<Candidate> = rows
            .iter()
            .enumerate()
            .map(|(row, (current, token, likeliest, entropy))| Candidate {
                row,
                current: *current,
                token: *token,
                confidence: 0.5,
                likeliest: (*likeliest, 0.6),
                runners_up: Default::default(),
                score: -entropy,
                chance: 0.0,
            })
            .collect();
        canvas.step(&BlockView {
            progress: Progress { n_filled: 3, n_drafts: 3, block_size: 3 },
            previous: None,
            step,
            full_steps: step,
            unchanged_steps: unchanged,
            candidates: &candidates,
        })
    }

    #[test]
    fn sure_tokens_go_back_and_the_others_become_noise() {
        let rows = [(None, 5, 4, 0.05), (None, 6, 6, 0.9), (None, 7, 7, 0.01)];
        let proposal = step(&CANVAS, rows, 0, 0);
        let draft = |row, token, input| Edit::Draft { row, token, confidence: 0.6, input };
        // What is shown is the likeliest, what goes back is what was drawn. The third row's entropy and the first one's
        // together are within the bound.
        assert_eq!(
            proposal.edits,
            [draft(0, 4, Input::Token(5)), draft(1, 6, Input::Token(6)), draft(2, 7, Input::Token(7))]
        );
        assert!(!proposal.settles);
        let rows = [(None, 5, 4, 0.15), (None, 6, 6, 0.9), (None, 7, 7, 0.01)];
        assert_eq!(step(&CANVAS, rows, 0, 0).edits[1], draft(1, 6, Input::Noise));
    }

    #[test]
    fn a_canvas_is_decided_when_it_stays_and_is_sure() {
        let same = |entropy| [(Some(4), 5, 4, entropy), (Some(6), 6, 6, entropy), (Some(7), 7, 7, entropy)];
        let other = [(Some(4), 5, 5, 0.1), (Some(6), 6, 6, 0.1), (Some(7), 7, 7, 0.1)];
        assert!(step(&CANVAS, same(0.1), 1, 0).settles);
        assert!(!step(&CANVAS, same(0.4), 1, 0).settles, "mean entropy");
        assert!(!step(&CANVAS, other, 1, 0).settles, "another token");
        assert!(step(&CANVAS, other, 3, 0).settles, "the last step");
        let twice = CanvasRenoise { stability_threshold: 2, ..CANVAS };
        assert!(!step(&twice, same(0.1), 1, 0).settles);
        assert!(step(&twice, same(0.1), 2, 1).settles);
        let at_once = CanvasRenoise { stability_threshold: 0, ..CANVAS };
        assert!(step(&at_once, other, 0, 0).settles);
    }

    #[test]
    fn the_temperature_falls() {
        let steps: Vec<f32> = (0..4).map(|step| CANVAS.temperature(step)).collect();
        for (got, want) in steps.iter().zip([0.8, 0.7, 0.6, 0.5]) {
            assert!((got - want).abs() < 1e-6, "{steps:?}");
        }
    }
}
