//! Scores of a row of logits, with a sort of the whole vocabulary and sums in 64 bits.

use crate::classes::uniform_of_class;
use crate::{ClassScore, Draw, RowScore, Score, ScoreSpec};

/// A softmax of logits over some tokens, by token id.
struct Distribution {
    probabilities: Vec<f64>,
    log_probabilities: Vec<f64>,
}

impl Distribution {
    /// Softmax over the tokens for which `has` is true; `None` if a logit is NaN or none is finite.
    fn new(logits: &[f32], temperature: f32, has: impl Fn(usize) -> bool) -> Option<Self> {
        let temperature = if temperature == 0.0 { 1.0 } else { f64::from(temperature) };
        let taken = logits.iter().enumerate().filter(|(id, _)| has(*id)).map(|(_, logit)| *logit);
        let top = taken.clone().max_by(f32::total_cmp).filter(|top| top.is_finite())?;
        if taken.clone().any(f32::is_nan) {
            return None;
        }
        let scaled = |logit: f32| (f64::from(logit) - f64::from(top)) / temperature;
        let log_total = taken.map(|logit| scaled(logit).exp()).sum::<f64>().ln();
        let log_probability = |(id, logit): (usize, &f32)| match has(id) {
            true => scaled(*logit) - log_total,
            false => f64::NEG_INFINITY,
        };
        let log_probabilities: Vec<f64> = logits.iter().enumerate().map(log_probability).collect();
        Some(Self { probabilities: log_probabilities.iter().map(|log| log.exp()).collect(), log_probabilities })
    }

    /// Removes the tokens for which `keeps` is false and normalises the rest.
    fn keep(&mut self, keeps: impl Fn(f64) -> bool) {
        let total: f64 = self.probabilities.iter().filter(|p| keeps(**p)).sum();
        for (p, log) in self.probabilities.iter_mut().zip(&mut self.log_probabilities) {
            (*p, *log) = if keeps(*p) { (*p / total, *log - total.ln()) } else { (0.0, f64::NEG_INFINITY) };
        }
    }

    /// Cuts by top-k, top-p and min-p in this order.
    fn cut(&mut self, spec: &ScoreSpec) {
        if let Some(top_k) = spec.top_k {
            let falling = self.falling();
            let least = falling[(top_k as usize).min(falling.len()) - 1];
            self.keep(|p| p >= least);
        }
        if let Some(top_p) = spec.top_p {
            let (mut before, mut least) = (0.0, 1.0);
            for equals in self.falling().chunk_by(|a, b| a == b) {
                if before > f64::from(top_p) {
                    break;
                }
                least = equals[0];
                before += equals.iter().sum::<f64>();
            }
            self.keep(|p| p >= least);
        }
        if let Some(min_p) = spec.min_p {
            let least = f64::from(min_p) * self.falling()[0];
            self.keep(|p| p >= least);
        }
    }

    fn falling(&self) -> Vec<f64> {
        let mut falling = self.probabilities.clone();
        falling.sort_by(|a, b| b.total_cmp(a));
        falling
    }

    /// The first token at which the sum of probabilities exceeds `uniform`.
    fn draw(&self, uniform: f64) -> Option<usize> {
        let mut left = uniform;
        let drawn = self.probabilities.iter().position(|p| {
            left -= p;
            left < 0.0
        });
        // If rounding keeps the sum below the number, the last token is drawn.
        drawn.or_else(|| self.probabilities.iter().rposition(|p| *p > 0.0))
    }

    fn score(&self, score: Score, confidence: f64) -> f64 {
        match score {
            Score::Probability => confidence,
            Score::Margin => {
                let falling = self.falling();
                falling[0] - falling.get(1).unwrap_or(&0.0)
            }
            // The small term is Dream's own (generation_utils.py).
            Score::NegativeEntropy => self.probabilities.iter().map(|p| p * (p + 1e-10).ln()).sum(),
        }
    }
}

/// A row of the head's logits with the changes of the spec.
pub(super) fn changed(logits: &[f32], unguided: Option<&[f32]>, spec: &ScoreSpec) -> Vec<f32> {
    let temper = |logit: &f32| logit / spec.strategy_temperature;
    let mut logits: Vec<f32> = logits.iter().map(temper).collect();
    if let (Some(guidance), Some(unguided)) = (spec.guidance, unguided) {
        for (logit, base) in logits.iter_mut().zip(unguided.iter().map(temper)) {
            *logit = base + (guidance.scale + 1.0) * (*logit - base);
        }
    }
    for change in &spec.changes {
        let logit = &mut logits[change.token as usize];
        *logit = change.apply(*logit);
    }
    logits
}

/// Scores the tokens of a class under the distribution of all tokens.
fn scored_class(
    whole: &Distribution,
    tokens: &[u32],
    class: usize,
    spec: &ScoreSpec,
    is_kept: impl Fn(usize) -> bool,
) -> ClassScore {
    let all = || tokens.iter().map(|token| *token as usize);
    let mut kept: Vec<usize> = all().filter(|token| is_kept(*token)).collect();
    let is_cut = kept.is_empty();
    if is_cut {
        kept = all().collect();
    }
    let by_log = |a: &&usize, b: &&usize| whole.log_probabilities[**a].total_cmp(&whole.log_probabilities[**b]);
    let Some(&likeliest) = kept.iter().max_by(by_log) else { return ClassScore::NOTHING };
    let log_max = whole.log_probabilities[likeliest];
    // Relative to the likeliest, so that classes far below the row's likeliest token have sums, too.
    let share = |token: usize| (whole.log_probabilities[token] - log_max).exp();
    let sum: f64 = kept.iter().map(|token| share(*token)).sum();
    let drawn = match spec.draw {
        Draw::Uniform(uniform) if !spec.is_greedy() => {
            let mut left = uniform_of_class(uniform, class) * sum;
            let exceeds = |token: &&usize| {
                left -= share(**token);
                left < 0.0
            };
            kept.iter().find(exceeds).copied().unwrap_or(likeliest)
        }
        _ => likeliest,
    };
    let has_probability = log_max > f64::NEG_INFINITY;
    ClassScore {
        token: likeliest as u32,
        log_max: log_max as f32,
        log_sum: if has_probability { (log_max + sum.ln()) as f32 } else { f32::NEG_INFINITY },
        drawn: drawn as u32,
        log_drawn: whole.log_probabilities[drawn] as f32,
        is_cut,
    }
}

/// Scores a row of changed logits; `None` if they are NaN or infinite, or no token may be sampled.
pub(crate) fn scored(logits: &[f32], spec: &ScoreSpec) -> Option<RowScore> {
    let vocabulary = spec.vocabulary;
    let mut distribution = if spec.is_greedy() {
        Distribution::new(logits, spec.temperature, |_| true)?
    } else {
        Distribution::new(logits, spec.temperature, |id| vocabulary.has(id))?
    };
    if spec.is_cut() {
        distribution.cut(spec);
    }
    let mut sorted: Vec<usize> = (0..logits.len()).filter(|id| vocabulary.has(*id)).collect();
    sorted.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(b.cmp(a)));
    let token = match spec.draw {
        _ if spec.is_greedy() => *sorted.first()?,
        Draw::Uniform(uniform) => distribution.draw(uniform)?,
        Draw::Token(token) => token as usize,
    };
    let confidence = distribution.probabilities[token];
    let kept = sorted.iter().filter(|id| distribution.log_probabilities[**id] > f64::NEG_INFINITY);
    let mut likeliest = kept.map(|id| (*id as u32, distribution.probabilities[*id] as f32)).take(spec.n_likeliest);
    let mut scored = RowScore {
        token: token as u32,
        confidence: confidence as f32,
        score: distribution.score(spec.score, confidence) as f32,
        // A greedy row may have no token of a probability above 0: one that is never sampled has it all.
        likeliest: likeliest.next().unwrap_or((token as u32, confidence as f32)),
        runners_up: likeliest.collect(),
        log_probabilities: Vec::new(),
        classes: Vec::new(),
    };
    if spec.asks_log_probabilities() {
        let whole = Distribution::new(logits, spec.temperature, |_| true)?;
        let log_probability = |token: &u32| whole.log_probabilities[*token as usize] as f32;
        scored.log_probabilities = spec.asked.iter().map(log_probability).collect();
        if let Some(classes) = &spec.classes {
            // Nothing of a greedy row is cut.
            let is_kept = |token: usize| spec.is_greedy() || distribution.log_probabilities[token] > f64::NEG_INFINITY;
            let of_class = |class| scored_class(&whole, classes.tokens(class), class, spec, is_kept);
            scored.classes = (0..classes.n_classes()).map(of_class).collect();
        }
    }
    Some(scored)
}
