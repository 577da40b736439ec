//! Scores of classes of tokens ([`ClassScore`]).
//!
//! A row's logits are first put in the order of the classes, a token at a time. From then on a class is a run of numbers, and is
//! read with vectors whether it has one token or most of the vocabulary.

use smallvec::SmallVec;

use crate::classes::uniform_of_class;
use crate::cpu::isa::simd::Simd;
use crate::cpu::score::cut::place;
use crate::{ClassScore, Classes, Draw, ScoreSpec};

/// Tokens per 32-bit partial sum, and those that are read again for a draw. The largest classes have about 50 times as many.
const RUN: usize = 2048;

/// A row of which classes are scored.
pub(crate) struct ClassesOfRow<'a> {
    pub(crate) simd: Simd,
    pub(crate) spec: &'a ScoreSpec,
    /// Factor on logits before the softmax.
    pub(crate) factor: f32,
    /// The largest logit, and the logarithm of the sum of all tokens' weights relative to it.
    pub(crate) top: f32,
    pub(crate) log_total: f32,
}

impl ClassesOfRow<'_> {
    /// Scores each class. `logits` has one for each token; `keeps` says, in rows that are cut, whether a token is kept. `gathered` has
    /// room for the tokens of all classes.
    pub(crate) fn scored(
        &self,
        classes: &Classes,
        logits: &[f32],
        keeps: Option<impl Fn(u32) -> bool>,
        gathered: &mut [f32],
    ) -> Vec<ClassScore> {
        for (value, token) in gathered.iter_mut().zip(classes.all_tokens()) {
            *value = logits[*token as usize];
        }
        let mut weights = [0.0; RUN];
        let (mut kept_tokens, mut kept_logits) = (Vec::new(), Vec::new());
        let of_class = |class| {
            let (tokens, logits) = (classes.tokens(class), &gathered[classes.range(class)]);
            let Some(keeps) = &keeps else { return self.class(class, tokens, logits, &mut weights) };
            kept_tokens.clear();
            kept_logits.clear();
            for (token, logit) in tokens.iter().zip(logits).filter(|(token, _)| keeps(**token)) {
                kept_tokens.push(*token);
                kept_logits.push(*logit);
            }
            if kept_tokens.is_empty() {
                ClassScore { is_cut: !tokens.is_empty(), ..self.class(class, tokens, logits, &mut weights) }
            } else {
                self.class(class, &kept_tokens, &kept_logits, &mut weights)
            }
        };
        (0..classes.n_classes()).map(of_class).collect()
    }

    /// Scores tokens of a class, ascending, by their logits.
    fn class(&self, class: usize, tokens: &[u32], logits: &[f32], weights: &mut [f32; RUN]) -> ClassScore {
        let largest = self.simd.max(logits);
        let Some(likeliest) = self.simd.last_place(logits, largest) else { return ClassScore::NOTHING };
        let (token, log_max) = (tokens[likeliest], self.log_probability(largest));
        let alone =
            ClassScore { token, log_max, log_sum: log_max, drawn: token, log_drawn: log_max, ..ClassScore::NOTHING };
        // The difference of two infinities is NaN.
        if tokens.len() == 1 || largest == f32::NEG_INFINITY {
            return alone;
        }
        // Relative to the class's likeliest: relative to the row's, a class far below it would have no weights.
        let sum_of = |run| f64::from(self.simd.sum_exp(run, largest, self.factor));
        let sums: SmallVec<[f64; 64]> = logits.chunks(RUN).map(sum_of).collect();
        let sum: f64 = sums.iter().sum();
        let drawn = match self.spec.draw {
            Draw::Uniform(uniform) if !self.spec.is_greedy() => {
                let target = uniform_of_class(uniform, class) * sum;
                self.drawn(logits, largest, &sums, target, weights).unwrap_or(likeliest)
            }
            _ => likeliest,
        };
        ClassScore {
            log_sum: log_max + sum.ln() as f32,
            drawn: tokens[drawn],
            log_drawn: self.log_probability(logits[drawn]),
            ..alone
        }
    }

    /// The first place at which the sum of weights exceeds `target`; `sums` are those of runs.
    fn drawn(
        &self,
        logits: &[f32],
        largest: f32,
        sums: &[f64],
        target: f64,
        weights: &mut [f32; RUN],
    ) -> Option<usize> {
        let (run, target) = place(sums.iter().copied(), target)?;
        let logits = &logits[run * RUN..logits.len().min((run + 1) * RUN)];
        let weights = &mut weights[..logits.len()];
        self.simd.exp_into(logits, largest, self.factor, weights);
        let (found, _) = place(weights.iter().map(|weight| f64::from(*weight)), target)?;
        Some(run * RUN + found)
    }

    fn log_probability(&self, logit: f32) -> f32 {
        (logit - self.top) * self.factor - self.log_total
    }
}
