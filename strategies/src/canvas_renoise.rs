//! `diffusion_gemma`: canvases of random tokens, denoised by entropy and noised anew (DiffusionGemma).
//!
//! At each step the network writes the whole canvas, at a temperature that falls from step to step. The surest tokens go
//! back into the canvas, the others are replaced by noise (edit rule E5, renoise). A canvas is decided when the likeliest
//! tokens have stayed the same and their mean entropy is small, or after the last step; what is decided are the likeliest
//! tokens, not those that went back (transformers 5.23, generation_diffusion_gemma.py).

use crate::accept::{ACCEPT_RULE, AcceptRule, DENOISING_STEPS, ENTROPY_BOUND, EntropyBound};
use crate::decode::{Declared, Decode, Setup};
use crate::edit::{Edit, Input, Proposal};
use crate::layout::{Attention, Layout};
use crate::revise::EDIT_RULE;
use crate::setting::{Field, Overrides, Setting, SettingError, Value};
use crate::view::{BlockView, Progress};

/// Least of `t_min` and `t_max`. Chosen by us: logits of DiffusionGemma are at most 30, so that a hundredth makes the
/// likeliest token certain already; much less would divide by zero, as sums of the two are rounded.
const MIN_TEMPERATURE: f32 = 0.01;
/// Most of `t_min` and `t_max`: that of a request's own temperature.
const MAX_TEMPERATURE: f32 = 2.0;

/// See [`CanvasRenoise::t_min`].
const T_MIN: Setting =
    Setting::number("t_min", "T", MIN_TEMPERATURE, MAX_TEMPERATURE, "Final temperature of the canvas schedule");

/// See [`CanvasRenoise::t_max`].
const T_MAX: Setting =
    Setting::number("t_max", "T", MIN_TEMPERATURE, MAX_TEMPERATURE, "Initial temperature of the canvas schedule");

/// See [`CanvasRenoise::stability_threshold`].
const STABILITY_THRESHOLD: Setting = Setting::count(
    "stability_threshold",
    0,
    u32::MAX,
    "Number of steps in which the likeliest tokens of a canvas must stay the same before it is decided",
);

/// See [`CanvasRenoise::confidence_threshold`].
const CONFIDENCE_THRESHOLD: Setting = Setting::number(
    "confidence_threshold",
    "NATS",
    0.0,
    f32::MAX,
    "Mean entropy, in nats, below which a canvas may be decided",
);

/// Settings of `diffusion_gemma`, which has no other state. Defaults are transformers'.
#[derive(Clone, Debug, PartialEq)]
pub struct CanvasRenoise {
    /// Positions of a canvas; what the model was trained with (its config.json).
    pub block_size: usize,
    /// Which tokens go back into the canvas.
    pub accept: EntropyBound,
    /// Steps of a canvas at most, at least 1.
    pub denoising_steps: usize,
    /// Final temperature of the logits, above 0; the last step's is one step above it.
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
    const EDIT_RULE: &'static str = "renoise";
    /// Most denoise steps that may be asked for: a canvas that never settles takes all of them. One for each position of a
    /// released model's canvas (`canvas_length`), which is what the other strategies take at most. Chosen by us.
    const MAX_DENOISING_STEPS: usize = 256;
    /// A canvas that is decided is encoded in the forward that denoises the next one.
    pub const BUFFER_SIZE: usize = 2;

    /// Refuses `name` for `setting` unless it is the one that canvases have.
    fn check_name(setting: &Setting, name: Option<&str>, only: &str) -> Result<(), SettingError> {
        match name.filter(|name| *name != only) {
            Some(name) => {
                let what = format!("must be {only}, the one rule of {}, got {name:?}", Self::NAME);
                Err(SettingError::refused(setting.name, what))
            }
            None => Ok(()),
        }
    }
}

impl Decode for CanvasRenoise {
    const NAME: &'static str = "diffusion_gemma";
    const LAYOUT: Layout = Layout::Canvases;
    const SETTINGS: &'static [&'static Setting] = &[&T_MIN, &T_MAX, &STABILITY_THRESHOLD, &CONFIDENCE_THRESHOLD];

    fn fits(setup: &Setup) -> bool {
        setup.attention == Attention::Canvas
    }

    /// transformers' defaults (`max_denoising_steps`, and the same names for the others).
    fn new(setup: &Setup) -> Self {
        Self {
            block_size: setup.block_size,
            accept: EntropyBound::default(),
            denoising_steps: 48,
            t_min: 0.4,
            t_max: 0.8,
            stability_threshold: 1,
            confidence_threshold: 0.005,
        }
    }

    fn declared(&self) -> Declared {
        Declared {
            buffer_size: Self::BUFFER_SIZE,
            writes_drafts: true,
            ..Declared::new(Self::LAYOUT, self.block_size, Some(AcceptRule::EntropyBound(self.accept)))
        }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        let rule = AcceptRule::EntropyBound(self.accept);
        Self::check_name(&ACCEPT_RULE, overrides.take(&ACCEPT_RULE)?.and_then(Value::text), rule.name())?;
        Self::check_name(&EDIT_RULE, overrides.take(&EDIT_RULE)?.and_then(Value::text), Self::EDIT_RULE)?;
        overrides.apply(vec![
            (&ENTROPY_BOUND, Field::Number(&mut self.accept.entropy_bound)),
            (&DENOISING_STEPS, Field::Count(&mut self.denoising_steps)),
            (&T_MIN, Field::Number(&mut self.t_min)),
            (&T_MAX, Field::Number(&mut self.t_max)),
            (&STABILITY_THRESHOLD, Field::Count(&mut self.stability_threshold)),
            (&CONFIDENCE_THRESHOLD, Field::Number(&mut self.confidence_threshold)),
        ])?;
        if self.denoising_steps > Self::MAX_DENOISING_STEPS {
            let (most, steps) = (Self::MAX_DENOISING_STEPS, self.denoising_steps);
            let what = format!("must be in 1..={most} for canvases; got {steps}");
            return Err(SettingError::refused(DENOISING_STEPS.name, what));
        }
        Ok(())
    }

    fn temperature(&self, step: usize) -> f32 {
        let left = self.denoising_steps.saturating_sub(step) as f32 / self.denoising_steps as f32;
        self.t_min + (self.t_max - self.t_min) * left
    }

    /// The first canvas opens in the forward that encodes the prompt.
    fn opens_block(&self, n_live: usize, newest: Option<Progress>, _context_is_cached: bool) -> bool {
        n_live < Self::BUFFER_SIZE && newest.is_none_or(Progress::is_settled)
    }

    fn step(&self, canvas: &BlockView<'_>) -> Proposal {
        let accepted = crate::accept::Rule::accept(&self.accept, canvas);
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
        accept: EntropyBound { entropy_bound: 0.1 },
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
                runners_up: Vec::new(),
                score: -entropy,
                chance: 0.0,
            })
            .collect();
        canvas.step(&BlockView {
            step,
            full_steps: step,
            unchanged_steps: unchanged,
            ..BlockView::first(Progress { n_filled: 3, n_drafts: 3, block_size: 3 }, &candidates)
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
