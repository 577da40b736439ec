//! Rules with a number of positions per step: `static`, `dynamic`, `sequential`, `random`.

use crate::accept::rule::{ACCEPT_THRESHOLD, DENOISING_STEPS, Rule, above, best_by, best_scored};
use crate::accept::threshold::Threshold;
use crate::contract::setting::{Field, SettingFields};
use crate::contract::view::{BlockView, Candidate};

/// Number of positions to write in this step by SDAR's schedule (generate.py, get_num_transfer_tokens): the block size divided
/// by the steps, the remainder going to early steps. After the scheduled steps, one position per step.
pub(super) fn quota(block: &BlockView<'_>, denoising_steps: Option<usize>) -> usize {
    let size = block.progress.block_size;
    let n_steps = denoising_steps.unwrap_or(size);
    let extra = usize::from(block.step < size % n_steps);
    (size / n_steps + extra).max(1)
}

/// Accepts the scheduled number, the most confident first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Static {
    /// Steps per block, 1 to its size; `None`: one per position.
    pub denoising_steps: Option<usize>,
}

impl Rule for Static {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&DENOISING_STEPS, Field::OptionalCount(&mut self.denoising_steps))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        best_scored(block.candidates, quota(block, self.denoising_steps))
    }
}

/// Accepts all above the threshold if these are at least the scheduled number, otherwise the scheduled number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dynamic {
    /// Confidence threshold in [0, 1], exclusive.
    pub accept_threshold: f32,
    /// Steps per block, 1 to its size; `None`: one per position.
    pub denoising_steps: Option<usize>,
}

impl Default for Dynamic {
    fn default() -> Self {
        Self { accept_threshold: Threshold::ACCEPT_THRESHOLD, denoising_steps: None }
    }
}

impl Rule for Dynamic {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![
            (&ACCEPT_THRESHOLD, Field::Number(&mut self.accept_threshold)),
            (&DENOISING_STEPS, Field::OptionalCount(&mut self.denoising_steps)),
        ]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let accepted = above(block.candidates, self.accept_threshold);
        let quota = quota(block, self.denoising_steps);
        if accepted.len() >= quota { accepted } else { best_scored(block.candidates, quota) }
    }
}

/// Accepts the scheduled number of positions from the first mask on, left to right.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sequential {
    /// Steps per block, 1 to its size; `None`: one per position.
    pub denoising_steps: Option<usize>,
}

impl Rule for Sequential {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&DENOISING_STEPS, Field::OptionalCount(&mut self.denoising_steps))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        let end = block.candidates[0].row + quota(block, self.denoising_steps);
        block.candidates.iter().filter(|candidate| candidate.row < end).cloned().collect()
    }
}

/// Accepts the scheduled number, drawn at random.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Random {
    /// Steps per block, 1 to its size; `None`: one per position.
    pub denoising_steps: Option<usize>,
}

impl Rule for Random {
    fn fields(&mut self) -> SettingFields<'_> {
        vec![(&DENOISING_STEPS, Field::OptionalCount(&mut self.denoising_steps))]
    }

    fn accept(&self, block: &BlockView<'_>) -> Vec<Candidate> {
        best_by(block.candidates, quota(block, self.denoising_steps), |candidate| candidate.chance)
    }
}
