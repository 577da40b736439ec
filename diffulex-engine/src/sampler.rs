//! Logits of one position to a token and how sure the network is of it, in f32.
//!
//! Greedy takes the likeliest token, ties to the highest id, with its probability under the whole vocabulary, as the
//! authors' loops do. With a temperature the distribution is tempered, cut by top-k, top-p and min-p in this order, and
//! the confidence is the token's probability in what is left (SDAR's generate.py). The mask and rows of the head that
//! are no token are never drawn.

use diffulex_protocol::SamplingParams;
use diffulex_strategies::{MAX_TOP_K, Score};

use crate::kernels::cpu::Simd;
use crate::kernels::{Look, Summary, Vocabulary, largest};

/// Where chance comes from. All of it is keyed, so that the same request is given the same whatever runs beside it.
pub trait Randomness: Send {
    /// Index into `weights`, which are `(token, weight)` and not empty: each as likely as its weight says.
    fn choose(&self, key: DrawKey, weights: &[(usize, f32)]) -> usize;

    /// A token below `n_tokens`, each as likely as any other, and independent of what is chosen.
    fn noise(&self, key: DrawKey, n_tokens: usize) -> u32;

    /// A number in [0, 1) for rules that leave to chance which position is written, independent of both.
    fn chance(&self, key: DrawKey) -> f32 {
        DrawKey { seed: key.seed.wrapping_add(CHANCE), ..key }.uniform() as f32
    }
}

/// What a server uses: numbers mixed from the key.
#[derive(Clone, Copy, Debug)]
pub struct Seeded;

/// Added to the seed where noise is drawn; any number does.
const NOISE: u64 = 0x6E6F_6973_6521;

/// The same for what is left to chance.
const CHANCE: u64 = 0x6368_616E_6365;

impl Randomness for Seeded {
    fn choose(&self, key: DrawKey, weights: &[(usize, f32)]) -> usize {
        let total: f64 = weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let mut left = key.uniform() * total;
        let chosen = weights.iter().position(|(_, weight)| {
            left -= f64::from(*weight);
            left < 0.0
        });
        // Rounding can leave a hair over: then it is the last one.
        chosen.unwrap_or(weights.len() - 1)
    }

    fn noise(&self, key: DrawKey, n_tokens: usize) -> u32 {
        let key = DrawKey { seed: key.seed.wrapping_add(NOISE), ..key };
        (key.uniform() * n_tokens as f64) as u32
    }
}

/// What a draw depends on beside the logits: nothing that a batch, a schedule or a preemption could change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawKey {
    /// The request's seed.
    pub seed: u64,
    /// Absolute position.
    pub position: usize,
    /// Denoise steps the block took before.
    pub step: usize,
}

impl DrawKey {
    /// A number in [0, 1) with 53 random bits.
    fn uniform(self) -> f64 {
        // SplitMix64's finaliser (Steele, Lea, Flood 2014) over a counter, once per part of the key.
        fn mix(mut z: u64) -> u64 {
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        }
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let z = mix(self.seed.wrapping_add(GOLDEN));
        let z = mix(z.wrapping_add((self.position as u64 + 1).wrapping_mul(GOLDEN)));
        let z = mix(z.wrapping_add((self.step as u64 + 1).wrapping_mul(GOLDEN)));
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What a strategy looks at beside the token.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    /// What it ranks by.
    pub score: Score,
    /// How many of the likeliest tokens, 1 to [`MAX_TOP_K`].
    pub n_likeliest: usize,
}

/// What was drawn for one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// Its probability.
    pub confidence: f32,
    /// The likeliest token and its probability; in greedy decoding the sampled one.
    pub likeliest: (u32, f32),
    /// The likeliest after that, as far as they were asked for; probability 0 behind the last.
    pub runners_up: [(u32, f32); MAX_TOP_K - 1],
    /// What was asked to rank it by.
    pub score: f32,
}

/// What a greedy step has to see all logits for, and not their summary alone.
pub fn needs_logits(params: &SamplingParams, score: Score) -> bool {
    params.temperature > 0.0 || score == Score::NegativeEntropy
}

/// Draws a token for one position; `None` where the logits are no numbers.
pub fn sample(
    logits: &[f32],
    vocabulary: Vocabulary,
    params: &SamplingParams,
    key: DrawKey,
    looks: Looks,
    randomness: &dyn Randomness,
) -> Option<Drawn> {
    if params.temperature > 0.0 {
        return draw(logits, vocabulary, params, key, looks, randomness);
    }
    let summary = Summary::of(Simd::detect(), logits, Look { vocabulary, n_likeliest: looks.n_likeliest });
    let drawn = greedy(&summary, looks)?;
    let total = summary.log_sum_exp();
    let of_all = || scored(looks.score, drawn.confidence, logits.iter().map(|logit| (logit - total).exp()));
    Some(if needs_logits(params, looks.score) { Drawn { score: of_all(), ..drawn } } else { drawn })
}

/// The `n - 1` likeliest after the likeliest of a distribution; ties go to the highest token.
fn runners_up(distribution: impl Iterator<Item = (usize, f32)>, n: usize) -> [(u32, f32); MAX_TOP_K - 1] {
    let mut runners_up = [(0, 0.0); MAX_TOP_K - 1];
    if n > 1 {
        let best = largest(distribution.map(|(token, probability)| (token as u32, probability)), n);
        runners_up.iter_mut().zip(best.into_iter().skip(1)).for_each(|(place, next)| *place = next);
    }
    runners_up
}

/// Of a distribution given as probabilities; `confidence` is the chosen token's.
fn scored(score: Score, confidence: f32, probabilities: impl Iterator<Item = f32>) -> f32 {
    match score {
        Score::Probability => confidence,
        Score::Margin => {
            let (first, second) =
                probabilities.fold(
                    (0.0f32, 0.0f32),
                    |(first, second), p| {
                        if p > first { (p, first) } else { (first, second.max(p)) }
                    },
                );
            first - second
        }
        // The small term is Dream's own (generation_utils.py).
        Score::NegativeEntropy => probabilities.map(|p| p * (p + 1e-10).ln()).sum(),
    }
}

fn allowed(logits: &[f32], vocabulary: Vocabulary) -> impl Iterator<Item = (usize, f32)> + '_ {
    logits.iter().copied().enumerate().filter(move |(id, _)| vocabulary.has(*id))
}

/// The likeliest token of a row of which [`needs_logits`] wants no more; `None` where the logits are no numbers or no token
/// may be drawn.
pub fn greedy(summary: &Summary, looks: Looks) -> Option<Drawn> {
    let total = summary.log_sum_exp();
    let mut likeliest = summary.likeliest.iter().map(|(token, logit)| (*token, (logit - total).exp()));
    let (token, confidence) = likeliest.next()?;
    let mut runners_up = [(0, 0.0); MAX_TOP_K - 1];
    runners_up.iter_mut().zip(likeliest.take(looks.n_likeliest - 1)).for_each(|(place, next)| *place = next);
    let score = scored(looks.score, confidence, summary.largest.iter().map(|logit| (logit - total).exp()));
    confidence.is_finite().then_some(Drawn { token, confidence, likeliest: (token, confidence), runners_up, score })
}

fn draw(
    logits: &[f32],
    vocabulary: Vocabulary,
    params: &SamplingParams,
    key: DrawKey,
    looks: Looks,
    randomness: &dyn Randomness,
) -> Option<Drawn> {
    let (top_id, top) = allowed(logits, vocabulary).max_by(|a, b| a.1.total_cmp(&b.1))?;
    if !top.is_finite() {
        return None;
    }
    // (id, weight), weights relative to the likeliest token's 1.
    let mut weights: Vec<(usize, f32)> =
        allowed(logits, vocabulary).map(|(id, logit)| (id, ((logit - top) / params.temperature).exp())).collect();
    if params.top_k.is_some() || params.top_p.is_some() {
        weights.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    if let Some(top_k) = params.top_k
        && let Some((_, least)) = weights.get(top_k as usize - 1).copied()
    {
        // Ties with the last one are kept.
        weights.truncate(weights.partition_point(|(_, weight)| *weight >= least));
    }
    if let Some(top_p) = params.top_p {
        let total: f32 = weights.iter().map(|(_, weight)| weight).sum();
        let mut before = 0.0;
        let kept = weights.iter().take_while(|(_, weight)| {
            let keep = before <= top_p * total;
            before += weight;
            keep
        });
        let n_kept = kept.count().max(1);
        weights.truncate(n_kept);
    }
    if let Some(min_p) = params.min_p {
        weights.retain(|(_, weight)| *weight >= min_p);
    }
    let total: f64 = weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
    if weights.is_empty() {
        return None;
    }
    let (token, weight) = weights.get(randomness.choose(key, &weights))?;
    let confidence = (f64::from(*weight) / total) as f32;
    let score = scored(looks.score, confidence, weights.iter().map(|(_, weight)| (f64::from(*weight) / total) as f32));
    // The likeliest token's weight is 1.
    let likeliest = (top_id as u32, (1.0 / total) as f32);
    let distribution = weights.iter().map(|(token, weight)| (*token, (f64::from(*weight) / total) as f32));
    let runners_up = runners_up(distribution, looks.n_likeliest);
    confidence.is_finite().then_some(Drawn { token: *token as u32, confidence, likeliest, runners_up, score })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(logits: &[f32], vocabulary: Vocabulary, params: &SamplingParams, key: DrawKey) -> Option<(u32, f32)> {
        super::sample(logits, vocabulary, params, key, PLAIN, &Seeded).map(|drawn| (drawn.token, drawn.confidence))
    }

    const PLAIN: Looks = Looks { score: Score::Probability, n_likeliest: 1 };
    const VOCABULARY: Vocabulary = Vocabulary { n_sampleable: 5, mask_token_id: Some(2) };

    fn params(temperature: f32) -> SamplingParams {
        SamplingParams { temperature, ..Default::default() }
    }

    fn key(position: usize) -> DrawKey {
        DrawKey { seed: 7, position, step: 0 }
    }

    #[test]
    fn greedy_takes_the_highest_id_among_equals_and_never_the_mask() {
        let logits = [1.0, 3.0, 9.0, 3.0, 0.0, 99.0];
        let (token, confidence) = sample(&logits, VOCABULARY, &params(0.0), key(0)).unwrap();
        assert_eq!(token, 3);
        assert!(confidence < 1e-6, "the whole vocabulary counts, the mask's and the unused rows' logits too");
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.0, 1.0, 50.0, 2.0, -1.0, 60.0];
        let weights: Vec<f64> = [0.0f64, 1.0, f64::NEG_INFINITY, 2.0, -1.0].iter().map(|x| (x / 0.8).exp()).collect();
        let total: f64 = weights.iter().sum();
        let n = 20_000;
        let mut counts = [0usize; 5];
        for position in 0..n {
            counts[sample(&logits, VOCABULARY, &params(0.8), key(position)).unwrap().0 as usize] += 1;
        }
        for (count, weight) in counts.iter().zip(&weights) {
            let share = weight / total;
            // Five standard deviations of a binomial share.
            let bound = 5.0 * (share * (1.0 - share) / n as f64).sqrt() + 1e-12;
            assert!((*count as f64 / n as f64 - share).abs() <= bound, "{counts:?}");
        }
    }

    #[test]
    fn filters_cut_the_tail() {
        let logits = [0.0, 1.0, 50.0, 2.0, -1.0];
        let drawn = |params: &SamplingParams| -> Vec<u32> {
            let mut seen: Vec<u32> =
                (0..500).map(|position| sample(&logits, VOCABULARY, params, key(position)).unwrap().0).collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(drawn(&params(1.0)), [0, 1, 3, 4]);
        assert_eq!(drawn(&SamplingParams { top_k: Some(2), ..params(1.0) }), [1, 3]);
        assert_eq!(drawn(&SamplingParams { top_p: Some(0.5), ..params(1.0) }), [3]);
        assert_eq!(drawn(&SamplingParams { min_p: Some(0.3), ..params(1.0) }), [1, 3]);
        let only = SamplingParams { top_k: Some(1), ..params(1.0) };
        assert_eq!(sample(&logits, VOCABULARY, &only, key(0)), Some((3, 1.0)));
    }

    #[test]
    fn scores_are_those_of_the_distribution() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        let vocabulary = Vocabulary { n_sampleable: 4, mask_token_id: Some(9) };
        let of = |score, temperature| {
            let looks = Looks { score, ..PLAIN };
            super::sample(&logits, vocabulary, &params(temperature), key(0), looks, &Seeded).unwrap().score
        };
        let entropy: f32 = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p * p.ln()).sum();
        for temperature in [0.0, 1.0] {
            assert!((of(Score::Margin, temperature) - 0.25).abs() < 1e-5);
            assert!((of(Score::NegativeEntropy, temperature) - entropy).abs() < 1e-5);
        }
    }

    #[test]
    fn the_likeliest_are_in_order() {
        let logits: Vec<f32> = [0.125f32, 0.25, 0.375, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        let vocabulary = Vocabulary { n_sampleable: 5, mask_token_id: Some(1) };
        let of = |n_likeliest, temperature| {
            let looks = Looks { n_likeliest, ..PLAIN };
            super::sample(&logits, vocabulary, &params(temperature), key(0), looks, &Seeded).unwrap().runners_up
        };
        assert_eq!(of(1, 0.0)[0], (0, 0.0));
        // The mask is no token but counts; where tokens are drawn, it does not.
        for (temperature, want) in [(0.0, 0.125), (1.0, 0.125 / 0.75)] {
            let two = of(3, temperature);
            assert_eq!([two[0].0, two[1].0, two[2].0], [4, 3, 0]);
            assert!((two[0].1 - want).abs() < 1e-6 && two[2].1 == 0.0, "{two:?}");
        }
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        assert_eq!(sample(&[f32::NAN; 5], VOCABULARY, &params(0.0), key(0)), None);
        assert_eq!(sample(&[f32::NAN; 5], VOCABULARY, &params(1.0), key(0)), None);
    }
}
