//! Scoring: the log-probability of each token of a text but the first.
//!
//! A text is scored by decoding it: its first token is the prompt, the rest is the answer, and every step decides the leftmost
//! masked position. The network says how likely the text's own token is there, and that token is written. So position `i` is
//! predicted from the tokens before it, with the mask at `i` and at all later positions that its row attends to: those of its block,
//! or, where rows attend to the whole answer, those of the whole text. By the chain rule the sum is the log-likelihood of the text
//! after its first token, under a model that writes one token a step from left to right. A text of `n` tokens takes `n - 1` forwards.
//!
//! Log-probabilities are over the whole vocabulary at temperature 1, before biases, penalties, cuts and guidance.
//!
//! Never here: answers; layouts without masks, or with a prompt that is one block.

use diffulex_protocol::{PromptScores, SamplingParams};
use diffulex_strategies::BlockCandidates;

use super::answer::Answer;

/// The scored text and its scores so far.
#[derive(Debug)]
pub struct Scoring {
    text: Vec<u32>,
    /// Log-probabilities of the decided tokens after the first.
    log_probabilities: Vec<f32>,
}

impl Scoring {
    pub(super) fn new(text: &[u32]) -> Self {
        Self { text: text.to_vec(), log_probabilities: Vec::new() }
    }

    /// Parameters that write nothing but the text, with `n_alternatives` of the likeliest tokens at each position.
    pub(super) fn params(n_alternatives: u32) -> SamplingParams {
        SamplingParams {
            temperature: 0.0,
            ignore_eos: true,
            logprobs: true,
            top_logprobs: n_alternatives,
            ..SamplingParams::default()
        }
    }

    /// The token of the text at `position`, which is after the first.
    pub fn known(&self, position: usize) -> Option<u32> {
        self.text.get(position).copied()
    }

    /// Scores of the decided tokens of `answer`, for which `nfe` forwards were charged.
    pub(super) fn scores(&self, answer: &Answer, nfe: u32) -> PromptScores {
        let log_probabilities = self.log_probabilities.clone();
        let scored = answer.prompt_len()..answer.prompt_len() + log_probabilities.len();
        let has_alternatives = answer.params().top_logprobs > 0;
        let alternatives = if has_alternatives { answer.alternatives()[scored].to_vec() } else { Vec::new() };
        PromptScores { log_probabilities, alternatives, nfe }
    }

    /// Records the scores of the positions that a step decides.
    pub(super) fn note(&mut self, candidates: &[BlockCandidates]) {
        let decided = candidates.iter().flat_map(|block| &block.candidates);
        self.log_probabilities.extend(decided.map(|candidate| candidate.score));
    }
}
