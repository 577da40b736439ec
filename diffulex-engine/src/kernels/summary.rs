//! What greedy decoding asks of a row of logits, found a tile of the vocabulary at a time.
//!
//! A tile is [`TILE`] neighbouring tokens, wherever the row comes from: whole rows and rows of which no more than a tile
//! ever stands in memory come to the same summary, bit for bit.

use super::cpu::Simd;

/// Tokens of a tile: whole panels, few enough that a tile of many rows stays in the second cache and that a small
/// vocabulary has one for each thread.
pub(super) const TILE: usize = 512;

/// Which ids may be drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// Ids below this are tokens.
    pub n_sampleable: usize,
    /// Never drawn.
    pub mask_token_id: Option<u32>,
}

impl Vocabulary {
    /// It may be drawn.
    pub(crate) fn has(self, id: usize) -> bool {
        id < self.n_sampleable && self.mask_token_id.is_none_or(|mask| id != mask as usize)
    }
}

/// What a summary is to have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// What may be drawn.
    pub vocabulary: Vocabulary,
    /// How many of the likeliest tokens, at least 1.
    pub n_likeliest: usize,
}

/// A row of logits, in short.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The likeliest that may be drawn, with their logits: as many as were asked for, as far as there are so many; ties
    /// go to the highest id.
    pub likeliest: Vec<(u32, f32)>,
    /// The two largest logits of all.
    pub largest: [f32; 2],
    /// Sum of `exp(logit - largest[0])` of all.
    total: f32,
}

impl Summary {
    /// Of a whole row.
    pub(crate) fn of(simd: Simd, logits: &[f32], look: Look) -> Self {
        let tiles = logits.chunks(TILE).enumerate();
        Self::joined(tiles.map(|(index, logits)| Self::of_tile(simd, index * TILE, logits, look)), look)
    }

    /// Of tiles in order.
    pub(super) fn joined(tiles: impl Iterator<Item = Self>, look: Look) -> Self {
        let nothing = Self { likeliest: Vec::new(), largest: [f32::NEG_INFINITY; 2], total: 0.0 };
        tiles.fold(nothing, |before, tile| before.and(tile, look))
    }

    /// Of the tokens from `first` on, a tile or less.
    pub(super) fn of_tile(simd: Simd, first: usize, logits: &[f32], look: Look) -> Self {
        let Look { vocabulary, n_likeliest } = look;
        let top = simd.max(logits);
        let place = logits.iter().rposition(|logit| *logit == top);
        // Whatever is not the largest, and one of those that are.
        let but_one = place.map_or([logits, &[]], |place| [&logits[..place], &logits[place + 1..]]);
        let second = simd.max(but_one[0]).max(simd.max(but_one[1]));
        // Where none is above minus infinity, differences are no numbers.
        let is_nothing = logits.iter().all(|logit| *logit == f32::NEG_INFINITY);
        let total = if is_nothing { 0.0 } else { simd.sum_exp_sub(logits, top) };
        let likeliest = match place {
            // Nearly always: nothing is likelier than the likeliest.
            Some(place) if n_likeliest == 1 && vocabulary.has(first + place) => vec![((first + place) as u32, top)],
            _ => {
                let tokens = (first..).zip(logits.iter().copied()).filter(|(id, _)| vocabulary.has(*id));
                largest(tokens.map(|(id, logit)| (id as u32, logit)), n_likeliest)
            }
        };
        Self { likeliest, largest: [top, second], total }
    }

    /// Of what came before and the tokens behind it.
    fn and(self, behind: Self, look: Look) -> Self {
        let [a, b] = [self.largest, behind.largest];
        let top = a[0].max(b[0]);
        let total = [(a[0], self.total), (b[0], behind.total)].map(|(part, total)| {
            // Of minus infinities alone it is nothing, relative to whatever.
            if part == top { total } else { total * (part - top).exp() }
        });
        let second = if a[0] >= b[0] { a[1].max(b[0]) } else { b[1].max(a[0]) };
        let both = self.likeliest.into_iter().chain(behind.likeliest);
        Self { likeliest: largest(both, look.n_likeliest), largest: [top, second], total: total[0] + total[1] }
    }

    /// `ln(sum(exp(logit)))` of all.
    pub fn log_sum_exp(&self) -> f32 {
        self.largest[0] + self.total.ln()
    }
}

/// The `n` largest in falling order, ties to the highest id first. Of numbers that are none, any.
pub(crate) fn largest(tokens: impl Iterator<Item = (u32, f32)>, n: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(n + 1);
    for (id, logit) in tokens {
        let place = best.partition_point(|(other, larger)| (*larger, *other) > (logit, id));
        if place < n {
            best.insert(place, (id, logit));
            best.truncate(n);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Ties included: logits are multiples of a quarter.
        #[test]
        fn a_summary_is_what_a_plain_look_at_the_row_finds(
            quarters in proptest::collection::vec(-40i32..40, 1..3000),
            n_likeliest in 1usize..9,
            n_sampleable in 0usize..3200,
            mask in proptest::option::of(0u32..3000),
        ) {
            let logits: Vec<f32> = quarters.iter().map(|quarter| *quarter as f32 / 4.0).collect();
            let vocabulary = Vocabulary { n_sampleable, mask_token_id: mask };
            let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
            let mut wanted = sorted.clone();
            wanted.retain(|(id, _)| vocabulary.has(*id as usize));
            wanted.truncate(n_likeliest);
            let log_sum_exp = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
            for simd in Simd::all() {
                let got = Summary::of(simd, &logits, Look { vocabulary, n_likeliest });
                prop_assert_eq!(&got.likeliest, &wanted);
                prop_assert_eq!(got.largest[0], sorted[0].1);
                prop_assert_eq!(got.largest[1], sorted.get(1).map_or(f32::NEG_INFINITY, |(_, logit)| *logit));
                // Sums of up to 3000 terms in 32 bits.
                prop_assert!((f64::from(got.log_sum_exp()) - log_sum_exp).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn rows_of_minus_infinity_and_of_no_numbers_do_not_hide() {
        let of = |logits: &[f32]| {
            let vocabulary = Vocabulary { n_sampleable: logits.len(), mask_token_id: None };
            Summary::of(Simd::detect(), logits, Look { vocabulary, n_likeliest: 1 })
        };
        let mut logits = vec![f32::NEG_INFINITY; 2 * TILE];
        logits[TILE + 3] = 1.5;
        let summary = of(&logits);
        assert_eq!((summary.likeliest[0], summary.log_sum_exp()), ((TILE as u32 + 3, 1.5), 1.5));
        logits[5] = f32::NAN;
        assert!(of(&logits).log_sum_exp().is_nan());
    }
}
