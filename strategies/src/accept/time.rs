//! Dream's schedule over time: `origin`, `maskgit_plus`, `topk_margin`, `entropy`.

use crate::accept::rule::{DENOISING_STEPS, Rule, best_by, best_scored};
use crate::contract::setting::{Field, Setting, SettingFields};
use crate::contract::view::{BlockView, Candidate, Score};

/// End of Dream's schedule (`eps` of diffusion_generate).
const LAST_TIME: f32 = 1e-3;

/// See [`TimeSchedule::alg_temp`].
const ALG_TEMP: Setting = Setting::number(
    "alg_temp",
    "TEMP",
    0.0,
    f32::MAX,
    "Under maskgit_plus, topk_margin and entropy, temperature for sampling the positions to unmask, where 0 takes the best",
);

/// Accepts each position independently, with the probability given by the schedule; all positions at the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Origin {
    /// Total number of steps; `None`: one per position.
    pub denoising_steps: Option<usize>,
}

impl Rule for Origin {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&DENOISING_STEPS, Field::OptionalCount(&mut self.denoising_steps))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let share = share_due(block.step, self.denoising_steps.unwrap_or(block.progress.block_size));
        block.candidates.iter().filter(|candidate| candidate.chance < share).cloned().collect()
    }

    fn may_pause(&self) -> bool {
        true
    }

    fn is_idle(&self, step: usize, n_positions: usize, mut chances: &mut dyn ExactSizeIterator<Item = f32>) -> bool {
        let share = share_due(step, self.denoising_steps.unwrap_or(n_positions));
        !Iterator::any(&mut chances, |chance| chance < share)
    }
}

/// Accepts the number of positions given by the schedule, the highest scores first; all positions at the last step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeSchedule {
    /// Score that positions are ranked by.
    pub score: Score,
    /// Total number of steps; `None`: one per position.
    pub denoising_steps: Option<usize>,
    /// 0: the highest scores. Above 0: drawn without replacement, with probabilities proportional to `exp(score / alg_temp)`.
    pub alg_temp: f32,
}

impl TimeSchedule {
    /// Returns the rule that ranks by `score`, with Dream's defaults.
    pub fn by(score: Score) -> Self {
        Self { score, denoising_steps: None, alg_temp: 0.0 }
    }
}

impl Rule for TimeSchedule {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![
            (&DENOISING_STEPS, Field::OptionalCount(&mut self.denoising_steps)),
            (&ALG_TEMP, Field::Number(&mut self.alg_temp)),
        ]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let n_steps = self.denoising_steps.unwrap_or(block.progress.block_size);
        let n_due = due(block.candidates.len(), block.step, n_steps);
        if self.alg_temp == 0.0 {
            return best_scored(block.candidates, n_due);
        }
        // The highest of scores with Gumbel noise are a sample without replacement (Kool, van Hoof, Welling 2019).
        best_by(block.candidates, n_due, |candidate| {
            candidate.score / self.alg_temp - (-candidate.chance.max(f32::MIN_POSITIVE).ln()).ln()
        })
    }

    fn score(&self) -> Score {
        self.score
    }

    fn may_pause(&self) -> bool {
        true
    }

    fn is_idle(&self, step: usize, n_positions: usize, chances: &mut dyn ExactSizeIterator<Item = f32>) -> bool {
        due(chances.len(), step, self.denoising_steps.unwrap_or(n_positions)) == 0
    }
}

/// Number of the `n_masked` positions to write at `step`, with Dream's time going from 1 to [`LAST_TIME`] in equal steps. Computed
/// in f32 and in the order of torch.linspace, because the result is rounded down.
pub(super) fn due(n_masked: usize, step: usize, n_steps: usize) -> usize {
    (n_masked as f32 * share_due(step, n_steps)) as usize
}

/// Share of the masks to write at `step`, in (0, 1]; 1 at the last step.
pub(super) fn share_due(step: usize, n_steps: usize) -> f32 {
    if step + 1 >= n_steps {
        return 1.0;
    }
    let time = |index: usize| {
        let width = (LAST_TIME - 1.0) / n_steps as f32;
        if index < n_steps.div_ceil(2) {
            1.0 + width * index as f32
        } else {
            LAST_TIME - width * (n_steps - index) as f32
        }
    };
    1.0 - time(step + 1) / time(step)
}
