//! `diffusion_generate`: the loop of Dream's authors. The whole answer is one block of masks; a schedule over time sets the
//! number of positions to write at each step, and a score ranks them (Dream, generation_utils.py).

use crate::accept::{AcceptRule, TimeSchedule};
use crate::contract::edit::Proposal;
use crate::contract::layout::{AttentionKind, Layout};
use crate::contract::setting::{Overrides, Setting, SettingError};
use crate::contract::view::{BlockView, Score};
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// Settings of `diffusion_generate`; all state is in the block.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffusionGenerate {
    /// Maximum length of the answer, in positions.
    pub block_size: usize,
    /// The accept rule.
    pub accept: AcceptRule,
}

impl Strategy for DiffusionGenerate {
    const NAME: &'static str = "diffusion_generate";
    const LAYOUT: Layout = Layout::WholeAnswer;
    const SETTINGS: &'static [&'static Setting] = &[];

    fn fits(model: &ModelTraits) -> bool {
        model.attention == AttentionKind::Full && model.is_shifted
    }

    /// Uses Dream's rule for chats (`alg="entropy"` in its README).
    fn new(model: &ModelTraits) -> Self {
        let accept = AcceptRule::Entropy(TimeSchedule::by(Score::NegativeEntropy));
        Self { block_size: model.max_model_len, accept }
    }

    fn requirements(&self) -> Requirements {
        Requirements::new(Self::LAYOUT, self.block_size, Some(self.accept))
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        self.accept.set(overrides, self.block_size)
    }

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        Proposal::fill(&self.accept.accept(block))
    }
}
