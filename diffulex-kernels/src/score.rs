//! Scoring: from the hidden states of some rows to a token for each, and what strategies and clients ask about it.
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
//! and the result depends on no order: what is kept is everything that is at least as likely as some number.
//!
//! The drawn token is the first, by id, at which the sum of the kept probabilities exceeds the uniform number. Bodies may
//! take sums in any fixed order, so two bodies can draw different tokens where the number lies within rounding of a border;
//! one body gives the same bits for a row whatever the rows beside it and the number of threads.
//!
//! Never here: requests, randomness, how a body does it.

use std::sync::Arc;

use super::Ops;
use crate::error::StepError;

/// Maximum of [`ScoreSpec::n_likeliest`], OpenAI's.
pub const MAX_LIKELIEST: usize = 20;

/// The score that a row is ranked by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Score {
    /// The token's probability.
    #[default]
    Probability,
    /// The likeliest token's probability less the second's.
    Margin,
    /// `sum p ln p` of the distribution: 0 where one token is certain.
    NegativeEntropy,
}

/// The output head: it makes logits of the residual stream.
pub struct Head<'a, O: Ops> {
    /// Before the product, with its epsilon.
    pub norm: (&'a O::Vector, f32),
    /// `[vocab_size, hidden]`.
    pub matrix: &'a O::Matrix,
    /// On the logits.
    pub soft_cap: Option<f32>,
}

impl<O: Ops> Head<'_, O> {
    /// Inputs of the product, of all rows of the residual stream: `[n_rows, hidden]`.
    pub fn states(&self, ops: &O, x: &O::Tensor) -> Result<O::Tensor, StepError> {
        let (norm, eps) = self.norm;
        ops.rms_norm(x, norm, eps)
    }

    /// Logits of all rows of the residual stream, whole: `[n_rows, vocab_size]`.
    pub fn logits(&self, ops: &O, x: &O::Tensor) -> Result<O::Tensor, StepError> {
        let mut logits = ops.linear(&self.states(ops, x)?, self.matrix, None)?;
        if let Some(cap) = self.soft_cap {
            ops.soft_cap(&mut logits, cap)?;
        }
        Ok(logits)
    }
}

/// Which ids may be drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleableTokens {
    /// Ids below this are tokens; the head may have more rows.
    pub n_sampleable: usize,
    /// Never drawn.
    pub mask_token_id: Option<u32>,
}

impl SampleableTokens {
    /// It may be drawn.
    pub fn has(self, id: usize) -> bool {
        id < self.n_sampleable && self.mask_token_id.is_none_or(|mask| id != mask as usize)
    }
}

/// How one row is scored.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreSpec {
    /// Row of the hidden states. Several specs may name the same.
    pub row: u32,
    /// Divides the logits before anything else; above 0. 1 but for canvases, whose strategy lowers it from step to step.
    pub strategy_temperature: f32,
    /// Classifier-free guidance, where the request has it.
    pub guidance: Option<Guidance>,
    /// Changes of single tokens' logits: each token at most once, ascending, all in the vocabulary.
    pub changes: Vec<LogitChange>,
    /// Tokens that may be drawn.
    pub vocabulary: SampleableTokens,
    /// The request's temperature; 0: greedy, and the cuts and the draw are ignored.
    pub temperature: f32,
    /// Keep this many of the likeliest tokens, and those as likely as the last of them; at least 1.
    pub top_k: Option<u32>,
    /// Keep the tokens before which, by falling probability, no more than this share of what top-k left is taken; 0 to 1.
    pub top_p: Option<f32>,
    /// Keep tokens at least as likely as this share of the likeliest one; 0 to 1.
    pub min_p: Option<f32>,
    /// How the token is drawn.
    pub draw: Draw,
    /// The score to rank the row by.
    pub score: Score,
    /// How many of the likeliest tokens are reported, 1 to [`MAX_LIKELIEST`].
    pub n_likeliest: usize,
    /// Tokens whose log-probabilities are asked for.
    pub asked: Vec<u32>,
    /// Classes of tokens over which the row is summed up.
    pub classes: Option<Arc<Classes>>,
    /// Row of [`SelfConditioning::rows`] that is overwritten by the mean embedding under the row's logits.
    pub conditions: Option<u32>,
}

impl ScoreSpec {
    /// The likeliest token of a row and its probability, and nothing more.
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

    /// It takes the likeliest token.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Something is cut off the distribution. Clients often send a top-p of 1, which cuts nothing.
    pub fn is_cut(&self) -> bool {
        let cuts_share = self.top_p.is_some_and(|top_p| top_p < 1.0) || self.min_p.is_some_and(|min_p| min_p > 0.0);
        !self.is_greedy() && (self.top_k.is_some() || cuts_share)
    }

    /// Log-probabilities over the whole vocabulary are asked for.
    pub(crate) fn asks_log_probabilities(&self) -> bool {
        self.classes.is_some() || !self.asked.is_empty()
    }

    /// The factor on logits before the softmax, finite: a temperature close to 0 makes the likeliest token certain.
    pub(crate) fn inverse_temperature(&self) -> f32 {
        if self.is_greedy() { 1.0 } else { self.temperature.recip().min(f32::MAX) }
    }

    /// How many of the likeliest tokens a body has to find.
    pub(crate) fn n_ranked(&self) -> usize {
        let for_score = if self.score == Score::Margin { 2 } else { 1 };
        self.n_likeliest.clamp(for_score, MAX_LIKELIEST)
    }
}

/// Logits are moved on from those of another row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guidance {
    /// The row of the hidden states without the prompt.
    pub unguided_row: u32,
    /// How far: 0 leaves them as they are.
    pub scale: f32,
}

/// A change of one token's logit `x`: first `x + bias`; then `/ repetition` where that is above 0 and `* repetition`
/// elsewhere (CTRL, section 4.1); then `- penalty`.
///
/// The host sums up: a client's logit bias; its presence penalty and its frequency penalty times the number of occurrences;
/// the penalty of the edit rule `joint`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitChange {
    /// Which token.
    pub token: u32,
    /// Added.
    pub bias: f32,
    /// Above 0; 1 changes nothing.
    pub repetition: f32,
    /// Subtracted.
    pub penalty: f32,
}

impl LogitChange {
    /// `token`, unchanged.
    pub fn none(token: u32) -> Self {
        Self { token, bias: 0.0, repetition: 1.0, penalty: 0.0 }
    }

    /// The changed logit.
    pub fn apply(&self, logit: f32) -> f32 {
        let biased = logit + self.bias;
        (if biased > 0.0 { biased / self.repetition } else { biased * self.repetition }) - self.penalty
    }
}

/// How a token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// By a uniform number in [0, 1).
    Uniform(f64),
    /// It was drawn elsewhere: this token of the vocabulary, whose probability is 0 where it is cut off.
    Token(u32),
}

/// A partition of the vocabulary, shared by the rows of many steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Classes {
    /// Class of each row of the head, below `n_classes`.
    pub class_of: Vec<u32>,
    /// Number of classes.
    pub n_classes: usize,
}

/// Where canvases' self-conditioning goes, and what it is made of.
pub struct SelfConditioning<'a, O: Ops> {
    /// The embedding, `[vocab_size, hidden]`.
    pub table: &'a O::Matrix,
    /// Factor on the mean embedding.
    pub scale: f32,
    /// `[n, hidden]`; specs name the rows that are overwritten.
    pub rows: &'a mut O::Tensor,
}

/// The result of scoring a row.
///
/// Probabilities of `confidence`, `score` and `likeliest` are under the row's distribution as it is drawn from. Those of
/// `log_probabilities` and `classes` are under the softmax of `x / temperature` (`x`, where greedy) over the whole
/// vocabulary, before anything is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct RowScore {
    /// The token.
    pub token: u32,
    /// Its probability.
    pub confidence: f32,
    /// The score that was asked for.
    pub score: f32,
    /// The likeliest token that may be drawn, ties to the highest id; in greedy rows the token.
    pub likeliest: (u32, f32),
    /// The likeliest after that, in falling order, ties to the highest id first, as far as they are asked for and may be drawn.
    pub runners_up: Vec<(u32, f32)>,
    /// Of the tokens asked for, in that order.
    pub log_probabilities: Vec<f32>,
    /// Of each class, where there are classes.
    pub classes: Vec<ClassScore>,
}

/// A class of tokens, summed up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassScore {
    /// Its likeliest token, ties to the highest id; 0 in a class without tokens.
    pub token: u32,
    /// That token's log-probability; minus infinity in a class without tokens.
    pub log_max: f32,
    /// Logarithm of the probabilities' sum.
    pub log_sum: f32,
}
