//! `diffusion_gemma`: canvases of random tokens, accepted by entropy and renoised (DiffusionGemma).
//!
//! At each step the network predicts the whole canvas, at a temperature that decreases from step to step. The sampled tokens
//! with the lowest entropies become the input of the next step; the others are replaced by noise (edit rule E5, renoise). A
//! canvas is decided when its likeliest tokens have stayed the same and their mean entropy is low, or after the last step. The
//! decided tokens are the likeliest ones, not the sampled ones (transformers 5.23, generation_diffusion_gemma.py).

use crate::accept::{ACCEPT_RULE, AcceptRule, DENOISING_STEPS, ENTROPY_BOUND, EntropyBound};
use crate::contract::edit::{Edit, Input, Proposal};
use crate::contract::layout::{AttentionKind, Layout};
use crate::contract::setting::{Field, Overrides, Setting, SettingError, Value};
use crate::contract::view::{BlockProgress, BlockView};
use crate::revise::EDIT_RULE;
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// Minimum of `t_min` and `t_max`. Chosen by us: logits of DiffusionGemma are at most 30, so 0.01 already makes the likeliest
/// token certain; much smaller temperatures could round to zero.
const MIN_TEMPERATURE: f32 = 0.01;
/// Maximum of `t_min` and `t_max`, the same as of a request's temperature.
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

/// Settings of `diffusion_gemma`, with transformers' defaults; all state is in the block.
#[derive(Clone, Debug, PartialEq)]
pub struct CanvasRenoise {
    /// Positions of a canvas, as in training (`canvas_length` in config.json).
    pub block_size: usize,
    /// Selects the sampled tokens that the network reads in the next step.
    pub accept: EntropyBound,
    /// Maximum number of steps per canvas, at least 1.
    pub denoising_steps: usize,
    /// Final temperature of the logits, above 0; the last step is one step above it.
    pub t_min: f32,
    /// Temperature of the first step.
    pub t_max: f32,
    /// Consecutive steps without a change of the likeliest tokens before the canvas may be decided.
    pub stability_threshold: usize,
    /// Mean entropy of the canvas, in nats, below which it may be decided, exclusive.
    pub confidence_threshold: f32,
}

impl CanvasRenoise {
    /// Name of the edit rule, which has no settings.
    const EDIT_RULE: &'static str = "renoise";
    /// Maximum of `denoising_steps`; a canvas that never settles takes all of them. Chosen by us: one per position of a released
    /// model's canvas (`canvas_length`), the maximum of the other strategies too.
    const MAX_DENOISING_STEPS: usize = 256;
    /// Two blocks in flight: a decided canvas is encoded in the forward that denoises the next one.
    pub const BUFFER_SIZE: usize = 2;

    /// Refuses any `name` for `setting` except `only`.
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

impl Strategy for CanvasRenoise {
    const NAME: &'static str = "diffusion_gemma";
    const LAYOUT: Layout = Layout::Canvases;
    const SETTINGS: &'static [&'static Setting] = &[&T_MIN, &T_MAX, &STABILITY_THRESHOLD, &CONFIDENCE_THRESHOLD];

    fn fits(model: &ModelTraits) -> bool {
        model.attention == AttentionKind::Canvas
    }

    /// Uses transformers' defaults (`max_denoising_steps`; the other names are the same).
    fn new(model: &ModelTraits) -> Self {
        Self {
            block_size: model.block_size,
            accept: EntropyBound::default(),
            denoising_steps: 48,
            t_min: 0.4,
            t_max: 0.8,
            stability_threshold: 1,
            confidence_threshold: 0.005,
        }
    }

    fn requirements(&self) -> Requirements {
        Requirements {
            buffer_size: Self::BUFFER_SIZE,
            writes_drafts: true,
            ..Requirements::new(Self::LAYOUT, self.block_size, Some(AcceptRule::EntropyBound(self.accept)))
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
    fn opens_block(&self, n_live: usize, newest: Option<BlockProgress>, _context_is_cached: bool) -> bool {
        n_live < Self::BUFFER_SIZE && newest.is_none_or(BlockProgress::is_settled)
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
    use crate::contract::view::Candidate;

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
            ..BlockView::first(BlockProgress { n_filled: 3, n_drafts: 3, block_size: 3 }, &candidates)
        })
    }

    #[test]
    fn sure_tokens_go_back_and_the_others_become_noise() {
        let rows = [(None, 5, 4, 0.05), (None, 6, 6, 0.9), (None, 7, 7, 0.01)];
        let proposal = step(&CANVAS, rows, 0, 0);
        let draft = |row, token, input| Edit::Draft { row, token, confidence: 0.6, input };
        // The draft is the likeliest token, the input is the sampled one. The entropies of the third and the first row
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
