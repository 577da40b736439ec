//! Summary statistics of a row of logits or of a tile: enough to score every row without cuts.
//!
//! Summaries of tiles are joined in order, so that a row's summary does not depend on the thread that computed each tile.

use smallvec::SmallVec;

use crate::SampleableTokens;
use crate::cpu::isa::simd::Simd;

/// Statistics that a row needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Tokens that may be drawn.
    pub(crate) vocabulary: SampleableTokens,
    /// Number of likeliest tokens, at least 1.
    pub(crate) n_ranked: usize,
    /// Whether the second largest logit is needed.
    pub(crate) second: bool,
    /// [`Summary::log_total`].
    pub(crate) log_total: bool,
    /// Factor on the logits.
    pub(crate) factor: f32,
}

/// The largest of some tokens' logits, in falling order, ties to the highest id first. NaNs may rank anywhere. Most rows want
/// one, some rules two, and a client's alternatives more: only those are worth an allocation for each tile.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ranked(SmallVec<[(u32, f32); 2]>);

impl Ranked {
    /// A list of one token.
    fn one(token: u32, logit: f32) -> Self {
        Self(SmallVec::from_slice(&[(token, logit)]))
    }

    /// Inserts a token if it is among the largest `n`.
    fn insert(&mut self, n: usize, token: u32, logit: f32) {
        let is_smaller = |(other, larger): &(u32, f32)| (*larger, *other) > (logit, token);
        if self.0.len() == n {
            if is_smaller(&self.0[n - 1]) {
                return;
            }
            self.0.pop();
        }
        let place = self.0.partition_point(is_smaller);
        self.0.insert(place, (token, logit));
    }

    /// The tokens and their logits.
    pub(crate) fn tokens(&self) -> &[(u32, f32)] {
        &self.0
    }
}

/// A row of logits in short. Logits are multiplied with a factor for `total` and `log_total`, and for nothing else.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Likeliest sampleable tokens, at most the number wanted.
    pub(crate) ranked: Ranked,
    /// The largest logit of all, and the second where it was wanted.
    pub(crate) largest: [f32; 2],
    /// Sum of `exp(d)` of all, where `d` is the logit less `largest[0]`, times the factor.
    pub(crate) total: f32,
    /// Sum of `exp(d) d` of all, where it was wanted.
    pub(crate) log_total: f32,
}

impl Summary {
    /// Summary of no tokens.
    fn nothing() -> Self {
        Self { ranked: Ranked::default(), largest: [f32::NEG_INFINITY; 2], total: 0.0, log_total: 0.0 }
    }

    /// Summary of the logits of the tokens from `first` on.
    pub(crate) fn of_tile(simd: Simd, first: usize, logits: &[f32], wanted: Wanted) -> Self {
        let Wanted { vocabulary, n_ranked, factor, .. } = wanted;
        let top = simd.max(logits);
        let place = simd.last_place(logits, top);
        let second = match place {
            // Whatever is not the largest, and one of those that are.
            Some(place) if wanted.second => simd.max(&logits[..place]).max(simd.max(&logits[place + 1..])),
            _ => f32::NEG_INFINITY,
        };
        let [total, log_total] = if logits.iter().all(|logit| *logit == f32::NEG_INFINITY) {
            // The difference of two infinities is NaN.
            [0.0; 2]
        } else if wanted.log_total {
            simd.sum_exp_log(logits, top, factor)
        } else {
            [simd.sum_exp(logits, top, factor), 0.0]
        };
        let ranked = match place {
            // Nearly always: nothing is likelier than the likeliest.
            Some(place) if n_ranked == 1 && vocabulary.has(first + place) => Ranked::one((first + place) as u32, top),
            _ => {
                let mut ranked = Ranked::default();
                for (id, logit) in (first..).zip(logits).filter(|(id, _)| vocabulary.has(*id)) {
                    ranked.insert(n_ranked, id as u32, *logit);
                }
                ranked
            }
        };
        Self { ranked, largest: [top, second], total, log_total }
    }

    /// Joins the summaries of consecutive tiles.
    pub(crate) fn joined<'t>(tiles: impl Iterator<Item = &'t Self>, wanted: Wanted) -> Self {
        tiles.fold(Self::nothing(), |before, tile| before.and(tile, wanted))
    }

    /// Joins this summary with that of the tokens after it.
    fn and(mut self, behind: &Self, wanted: Wanted) -> Self {
        let [a, b] = [self.largest, behind.largest];
        let top = a[0].max(b[0]);
        let [before, after] = [(a[0], &self), (b[0], behind)].map(|(part, Self { total, log_total, .. })| {
            // Minus infinities add 0, whatever they are relative to.
            if part == top || *total == 0.0 {
                return [*total, *log_total];
            }
            let d = (part - top) * wanted.factor;
            let share = d.exp();
            [total * share, if share == 0.0 { 0.0 } else { (log_total + total * d) * share }]
        });
        let second = if a[0] >= b[0] { a[1].max(b[0]) } else { b[1].max(a[0]) };
        for (token, logit) in behind.ranked.tokens() {
            self.ranked.insert(wanted.n_ranked, *token, *logit);
        }
        Self {
            ranked: self.ranked,
            largest: [top, second],
            total: before[0] + after[0],
            log_total: before[1] + after[1],
        }
    }

    /// `ln(sum(exp(logit factor)))`, where the factor is 1.
    pub(crate) fn log_sum_exp(&self) -> f32 {
        self.largest[0] + self.total.ln()
    }

    /// Sum of `p ln p` of the softmax.
    pub(crate) fn negative_entropy(&self) -> f32 {
        self.log_total / self.total - self.total.ln()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::product::linear::TILE;

    fn of(simd: Simd, logits: &[f32], wanted: Wanted) -> Summary {
        let tiles = logits.chunks(TILE).enumerate();
        let tiles: Vec<_> = tiles.map(|(tile, logits)| Summary::of_tile(simd, tile * TILE, logits, wanted)).collect();
        Summary::joined(tiles.iter(), wanted)
    }

    proptest! {
        /// Ties included: logits are multiples of a quarter.
        #[test]
        fn a_summary_is_what_a_plain_look_at_the_row_finds(
            quarters in proptest::collection::vec(-40i32..40, 1..3000),
            n_ranked in 1usize..9,
            n_sampleable in 0usize..3200,
            mask in proptest::option::of(0u32..3000),
            factor in 0.5f32..2.0,
        ) {
            let logits: Vec<f32> = quarters.iter().map(|quarter| *quarter as f32 / 4.0).collect();
            let vocabulary = SampleableTokens { n_sampleable, mask_token_id: mask };
            let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
            let mut tokens = sorted.clone();
            tokens.retain(|(id, _)| vocabulary.has(*id as usize));
            tokens.truncate(n_ranked);
            let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) * f64::from(factor)).exp()).collect();
            let total: f64 = weights.iter().sum();
            let entropy: f64 = weights.iter().map(|weight| weight / total * (weight / total).ln()).sum();
            for simd in Simd::all() {
                let got = of(simd, &logits, Wanted { vocabulary, n_ranked, second: true, log_total: true, factor });
                prop_assert_eq!(got.ranked.tokens(), &tokens);
                prop_assert_eq!(got.largest[0], sorted[0].1);
                prop_assert_eq!(got.largest[1], sorted.get(1).map_or(f32::NEG_INFINITY, |(_, logit)| *logit));
                // Sums of up to 3000 terms in 32 bits.
                let log_sum_exp = f64::from(got.largest[0] * factor) + f64::from(got.total).ln();
                prop_assert!((log_sum_exp - total.ln()).abs() < 1e-5);
                prop_assert!((f64::from(got.negative_entropy()) - entropy).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn rows_of_minus_infinity_and_of_no_numbers_do_not_hide() {
        let of = |logits: &[f32]| {
            let vocabulary = SampleableTokens { n_sampleable: logits.len(), mask_token_id: None };
            let wanted = Wanted { vocabulary, n_ranked: 1, second: false, log_total: true, factor: 1.0 };
            of(Simd::detect(), logits, wanted)
        };
        let mut logits = vec![f32::NEG_INFINITY; 2 * TILE];
        logits[TILE + 3] = 1.5;
        let summary = of(&logits);
        assert_eq!((summary.ranked.tokens()[0], summary.log_sum_exp()), ((TILE as u32 + 3, 1.5), 1.5));
        assert!(summary.negative_entropy().abs() < 1e-6);
        logits[5] = f32::NAN;
        assert!(of(&logits).log_sum_exp().is_nan());
    }
}
