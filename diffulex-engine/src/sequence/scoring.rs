//! Scoring: the log-probability of each token of a text but the first.
//!
//! A text is scored by decoding it: its first token is the prompt, the rest is the answer, and every step decides the leftmost
//! masked position. The network says how likely the text's own token is there, and that token is written. So position `i` is
//! predicted from the tokens before it, with the mask at `i` and at all later positions that its row attends to: those of its block,
//! or, where rows attend to the whole answer, those of the whole text. By the chain rule the sum is the log-likelihood of the text
//! behind its first token, under a model that writes one token a step from left to right. A text of `n` tokens takes `n - 1` forwards.
//!
//! Log-probabilities are those of the whole vocabulary at temperature 1, before biases, penalties, cuts and guidance.
//!
//! Never here: answers; layouts without masks, or with a prompt that is one block.

use diffulex_protocol::{FinishReason, PromptScores, SamplingParams};
use diffulex_strategies::{AnyStrategy, BlockCandidates};

use super::{Limits, Sequence};
use crate::alignment::LogitAlignment;

/// The text of a sequence that is scored.
#[derive(Debug)]
pub(super) struct Scoring {
    text: Vec<u32>,
    /// Of the tokens behind the first, as far as they are decided.
    log_probabilities: Vec<f32>,
}

impl Sequence {
    /// A sequence that scores `text`, of at least one token, with so many of the likeliest tokens at each place. `None` where the
    /// answers of `strategy` are laid out so that a text has no order from left to right.
    pub fn scoring(
        text: &[u32],
        n_alternatives: u32,
        mask_token_id: u32,
        strategy: &AnyStrategy,
        alignment: LogitAlignment,
    ) -> Option<Self> {
        let strategy = strategy.left_to_right()?;
        let params = SamplingParams {
            temperature: 0.0,
            ignore_eos: true,
            logprobs: true,
            top_logprobs: n_alternatives,
            ..SamplingParams::default()
        };
        let limits = Limits { end: text.len(), reason: FinishReason::MaxNewTokensReached };
        let mut sequence = Self::new(&text[..1], limits, mask_token_id, &[], params, strategy, alignment);
        sequence.scoring = Some(Scoring { text: text.to_vec(), log_probabilities: Vec::new() });
        Some(sequence)
    }

    /// Its tokens are known, and scored.
    pub fn is_scoring(&self) -> bool {
        self.scoring.is_some()
    }

    /// The token that will be written at `position`, where that is known.
    pub fn known(&self, position: usize) -> Option<u32> {
        self.scoring.as_ref()?.text.get(position).copied()
    }

    /// The scores, of all that is decided.
    pub fn scores(&self) -> Option<PromptScores> {
        let log_probabilities = self.scoring.as_ref()?.log_probabilities.clone();
        let scored = self.prompt_len()..self.prompt_len() + log_probabilities.len();
        let alternatives = if self.params.top_logprobs > 0 { self.alternatives()[scored].to_vec() } else { Vec::new() };
        Some(PromptScores { log_probabilities, alternatives, nfe: self.nfe.charged() })
    }

    /// Records the score of the position that this step decides.
    pub(super) fn note_scores(&mut self, candidates: &[BlockCandidates]) {
        if let Some(scoring) = &mut self.scoring {
            let decided = candidates.iter().flat_map(|block| &block.candidates);
            scoring.log_probabilities.extend(decided.map(|candidate| candidate.score));
        }
    }
}
