//! Scoring: samples a token from the hidden state of each row and reports its probability and the likeliest tokens.
//!
//! The contract of [`Ops::score`], as plain data. A row's logits go through these steps, in this order:
//!
//! 1. the head: norm, matrix, soft cap;
//! 2. `/ strategy_temperature`;
//! 3. guidance: `u + (scale + 1) (x - u)`, where `u` is the same of the unguided row;
//! 4. [`LogitChange`]s of single tokens.
//!
//! A greedy row (`temperature` 0) takes the likeliest token that may be drawn, ties to the highest id. Its distribution is
//! the softmax over the whole vocabulary, as the authors' loops have it. Any other row is drawn from the softmax of
//! `x / temperature` over the tokens that may be drawn, cut by top-k, top-p and min-p in this order (SDAR's generate.py has
//! the confidence under what is left, too). Each cut is a threshold on the probability, so that equals stay or go together
//! and the result depends on no order: every token that is at least as likely as the threshold is kept.
//!
//! The drawn token is the first, by id, at which the sum of the kept probabilities exceeds the uniform number. Bodies may
//! take sums in any fixed order, so two bodies can draw different tokens where the number lies within rounding of a border;
//! one body gives the same bits for a row in any batch and with any number of threads.
//!
//! Never here: requests, randomness, implementations.

use std::sync::Arc;

use super::Ops;
use crate::classes::{ClassScore, Classes};
use crate::error::StepError;

/// Maximum of [`ScoreSpec::n_likeliest`], OpenAI's.
pub const MAX_LIKELIEST: usize = 20;

/// Score that strategies rank rows by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Score {
    /// Probability of the token.
    #[default]
    Probability,
    /// Probability of the likeliest token minus that of the second.
    Margin,
    /// `sum p ln p` of the distribution; 0 if one token is certain.
    NegativeEntropy,
}

/// Output head: the logits of the residual stream.
pub struct Head<'a, O: Ops> {
    /// Final norm and its epsilon.
    pub norm: (&'a O::Vector, f32),
    /// `[vocab_size, hidden]`.
    pub matrix: &'a O::Matrix,
    /// Soft cap of the logits.
    pub soft_cap: Option<f32>,
}

impl<O: Ops> Head<'_, O> {
    /// Normed rows of the residual stream, the inputs of the product: `[n_rows, hidden]`.
    pub fn states(&self, ops: &O, x: &O::Tensor) -> Result<O::Tensor, StepError> {
        let (norm, eps) = self.norm;
        ops.rms_norm(x, norm, eps)
    }

    /// Logits of all rows of the residual stream: `[n_rows, vocab_size]`.
    pub fn logits(&self, ops: &O, x: &O::Tensor) -> Result<O::Tensor, StepError> {
        let mut logits = ops.linear(&self.states(ops, x)?, self.matrix, None)?;
        if let Some(cap) = self.soft_cap {
            ops.soft_cap(&mut logits, cap)?;
        }
        Ok(logits)
    }
}

/// Tokens that may be sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleableTokens {
    /// Number of token ids; the head may have more rows.
    pub n_sampleable: usize,
    /// Mask token; never sampled.
    pub mask_token_id: Option<u32>,
}

impl SampleableTokens {
    /// Whether token `id` may be sampled.
    pub fn has(self, id: usize) -> bool {
        id < self.n_sampleable && self.mask_token_id.is_none_or(|mask| id != mask as usize)
    }
}

/// Parameters of scoring one row.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreSpec {
    /// Row of the hidden states. Several specs may name the same row.
    pub row: u32,
    /// Divisor of the logits, applied first; above 0. 1 except for canvases, where the strategy lowers it from step to step.
    pub strategy_temperature: f32,
    /// Classifier-free guidance.
    pub guidance: Option<Guidance>,
    /// Changes of single logits: each token at most once, ascending, all in the vocabulary.
    pub changes: Vec<LogitChange>,
    /// Tokens that may be sampled.
    pub vocabulary: SampleableTokens,
    /// The request's temperature. 0 is greedy: top-k, top-p, min-p and the draw are ignored.
    pub temperature: f32,
    /// Keep this many of the likeliest tokens, and ties with the last of them; at least 1.
    pub top_k: Option<u32>,
    /// Keep the tokens, by falling probability, until their share of the tokens left by top-k exceeds this; 0 to 1.
    pub top_p: Option<f32>,
    /// Keep tokens with at least this fraction of the likeliest token's probability; 0 to 1.
    pub min_p: Option<f32>,
    /// Source of the token.
    pub draw: Draw,
    /// Score to compute.
    pub score: Score,
    /// Number of likeliest tokens to report, 1 to [`MAX_LIKELIEST`].
    pub n_likeliest: usize,
    /// Tokens to report log-probabilities of.
    pub asked: Vec<u32>,
    /// Classes of tokens to report the likeliest, the sum and a drawn one of; see [`ClassScore`].
    pub classes: Option<Arc<Classes>>,
    /// Row of [`SelfConditioning::rows`] to overwrite with the mean embedding under the row's logits.
    pub conditions: Option<u32>,
}

impl ScoreSpec {
    /// Greedy scoring: the likeliest token of a row and its probability.
    pub fn greedy(row: u32, vocabulary: SampleableTokens) -> Self {
        Self {
            row,
            strategy_temperature: 1.0,
            guidance: None,
            changes: Vec::new(),
            vocabulary,
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            draw: Draw::Uniform(0.0),
            score: Score::Probability,
            n_likeliest: 1,
            asked: Vec::new(),
            classes: None,
            conditions: None,
        }
    }

    /// Whether the likeliest token is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether top-k, top-p or min-p cuts the distribution. A top-p of 1, which clients often send, does not.
    pub fn is_cut(&self) -> bool {
        let cuts_share = self.top_p.is_some_and(|top_p| top_p < 1.0) || self.min_p.is_some_and(|min_p| min_p > 0.0);
        !self.is_greedy() && (self.top_k.is_some() || cuts_share)
    }

    /// Whether log-probabilities over the whole vocabulary are needed.
    pub(crate) fn asks_log_probabilities(&self) -> bool {
        self.classes.is_some() || !self.asked.is_empty()
    }

    /// The factor on logits before the softmax, finite: a temperature close to 0 makes the likeliest token certain.
    pub(crate) fn inverse_temperature(&self) -> f32 {
        if self.is_greedy() { 1.0 } else { self.temperature.recip().min(f32::MAX) }
    }

    /// Number of likeliest tokens that a body has to find.
    pub(crate) fn n_ranked(&self) -> usize {
        let for_score = if self.score == Score::Margin { 2 } else { 1 };
        self.n_likeliest.clamp(for_score, MAX_LIKELIEST)
    }
}

/// Classifier-free guidance: logits are extrapolated from another row's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guidance {
    /// Row of the hidden states that was computed without the prompt.
    pub unguided_row: u32,
    /// Guidance scale; 0 changes nothing.
    pub scale: f32,
}

/// A change of one token's logit `x`: first `x + bias`; then `/ repetition` where that is above 0 and `* repetition`
/// elsewhere (CTRL, section 4.1); then `- penalty`.
///
/// The host sums up: a client's logit bias; its presence penalty and its frequency penalty times the number of occurrences;
/// the penalty of the edit rule `joint`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitChange {
    /// Token id.
    pub token: u32,
    /// Added to the logit.
    pub bias: f32,
    /// Repetition penalty, above 0; 1 changes nothing.
    pub repetition: f32,
    /// Subtracted from the logit.
    pub penalty: f32,
}

impl LogitChange {
    /// A change of `token` that changes nothing.
    pub fn none(token: u32) -> Self {
        Self { token, bias: 0.0, repetition: 1.0, penalty: 0.0 }
    }

    /// The changed logit.
    pub fn apply(&self, logit: f32) -> f32 {
        let biased = logit + self.bias;
        (if biased > 0.0 { biased / self.repetition } else { biased * self.repetition }) - self.penalty
    }
}

/// Source of a row's token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// Sampled with this uniform number in [0, 1).
    Uniform(f64),
    /// Given: this token of the vocabulary. Its probability is 0 if the cuts remove it.
    Token(u32),
}

/// Inputs and output buffer of the self-conditioning of canvases.
pub struct SelfConditioning<'a, O: Ops> {
    /// The embedding, `[vocab_size, hidden]`.
    pub table: &'a O::Matrix,
    /// Factor on the mean embedding.
    pub scale: f32,
    /// Output `[n, hidden]`; specs name the rows to overwrite.
    pub rows: &'a mut O::Tensor,
}

/// The result of scoring a row.
///
/// `confidence`, `score` and `likeliest` are under the distribution that the token is sampled from. Those of
/// `log_probabilities` and `classes` are under the softmax of `x / temperature` (`x`, where greedy) over the whole
/// vocabulary, before anything is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct RowScore {
    /// The token.
    pub token: u32,
    /// Probability of the token.
    pub confidence: f32,
    /// The requested score.
    pub score: f32,
    /// Likeliest sampleable token and its probability, ties to the highest id; in greedy rows the token.
    pub likeliest: (u32, f32),
    /// The next likeliest sampleable tokens, in falling order, ties to the highest id first; at most `n_likeliest - 1`.
    pub runners_up: Vec<(u32, f32)>,
    /// Log-probabilities of [`ScoreSpec::asked`], in that order.
    pub log_probabilities: Vec<f32>,
    /// Scores of the classes, [`ClassScore::NOTHING`] for class 0; empty without classes.
    pub classes: Vec<ClassScore>,
}
