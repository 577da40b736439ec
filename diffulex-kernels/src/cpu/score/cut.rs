//! Top-k, top-p and min-p as one threshold, found by bisection instead of a sort.

use crate::ScoreSpec;
use crate::cpu::isa::simd::Simd;
use crate::cpu::product::linear::TILE;

/// The weights of a row that a cut keeps: those above `floor`. Weights are relative to 1 at the likeliest token.
pub(crate) struct Cut {
    floor: f32,
    /// Sum of the kept weights of each tile, and of all.
    sums: Vec<f64>,
    total: f64,
}

impl Cut {
    /// Applies the cuts of `spec` in order; each raises the threshold. Weights below `least` are never kept.
    pub(crate) fn new(simd: Simd, weights: &[f32], spec: &ScoreSpec, mut least: f32) -> Self {
        if let Some(top_k) = spec.top_k.filter(|top_k| (*top_k as usize) < weights.len()) {
            let count = |floor| weights.chunks(RUN).map(|run| f64::from(simd.count_above(run, floor))).sum::<f64>();
            least = least_within(least, |floor| count(floor) < f64::from(top_k));
        }
        if let Some(top_p) = spec.top_p {
            let share = f64::from(top_p) * sum_above(simd, weights, below(least));
            least = least_within(least, |floor| sum_above(simd, weights, floor) <= share);
        }
        if let Some(min_p) = spec.min_p {
            least = least.max(min_p);
        }
        let floor = below(least);
        let sums: Vec<f64> = weights.chunks(TILE).map(|tile| f64::from(simd.sum_above(tile, floor))).collect();
        let total = sums.iter().sum();
        Self { floor, sums, total }
    }

    /// Sum of the kept weights; at least 1.
    pub(crate) fn total(&self) -> f64 {
        self.total
    }

    /// Whether a weight is kept.
    #[inline]
    pub(crate) fn keeps(&self, weight: f32) -> bool {
        weight > self.floor
    }

    /// The weight, or 0 if it is not kept.
    pub(crate) fn kept(&self, weight: f32) -> f32 {
        if self.keeps(weight) { weight } else { 0.0 }
    }

    /// The first token at which the sum of kept weights exceeds `uniform * total`, and its weight.
    pub(crate) fn draw(&self, weights: &[f32], uniform: f64) -> (u32, f32) {
        let (tile, target) = place(self.sums.iter().copied(), uniform * self.total).unwrap_or_default();
        let tokens = &weights[tile * TILE..weights.len().min((tile + 1) * TILE)];
        let (token, _) = place(tokens.iter().map(|weight| f64::from(self.kept(*weight))), target).unwrap_or_default();
        ((tile * TILE + token) as u32, self.kept(tokens[token]))
    }

    /// `sum p ln p` of the kept tokens.
    pub(crate) fn negative_entropy(&self, weights: &[f32]) -> f32 {
        let kept = weights.iter().filter(|weight| self.keeps(**weight) && **weight > 0.0);
        let log_total: f64 = kept.map(|weight| f64::from(*weight) * f64::from(*weight).ln()).sum();
        (log_total / self.total - self.total.ln()) as f32
    }
}

fn sum_above(simd: Simd, weights: &[f32], floor: f32) -> f64 {
    weights.chunks(RUN).map(|run| f64::from(simd.sum_above(run, floor))).sum()
}

/// The largest number below `least`; -1 if `least` is 0.
fn below(least: f32) -> f32 {
    if least > 0.0 { least.next_down() } else { -1.0 }
}

/// A lower bound of top-k's threshold: the `top_k`-th largest of the tiles' largest weights, or 0 with fewer tiles.
pub(crate) fn least_kept(spec: &ScoreSpec, tops: &[f32]) -> f32 {
    let Some(top_k) = spec.top_k.map(|top_k| top_k as usize).filter(|top_k| (1..=tops.len()).contains(top_k)) else {
        return 0.0;
    };
    let mut tops = tops.to_vec();
    *tops.select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a)).1
}

/// Weights per 32-bit partial sum in the search for a threshold: few enough that sums over 64 lanes are exact to about one
/// part in a million.
const RUN: usize = 8 * TILE;

/// The least number from `least` to 1 for which `is_within` is true. `is_within` is monotonic and true for 1. Non-negative
/// floats are ordered as their bits are, so 30 steps of bisection find it.
fn least_within(least: f32, is_within: impl Fn(f32) -> bool) -> f32 {
    let (mut low, mut high) = (least.to_bits(), 1.0f32.to_bits());
    while low < high {
        let middle = low + (high - low) / 2;
        if is_within(f32::from_bits(middle)) { high = middle } else { low = middle + 1 }
    }
    f32::from_bits(low)
}

/// Index of the first element at which the running sum exceeds `target`, and the target minus the sum before it. If rounding
/// keeps the sum below the target, the last element above 0. `None` if no element is above 0.
pub(crate) fn place(sums: impl Iterator<Item = f64>, target: f64) -> Option<(usize, f64)> {
    let mut left = target;
    let mut last = None;
    for (index, sum) in sums.enumerate().filter(|(_, sum)| *sum > 0.0) {
        if left < sum {
            return Some((index, left));
        }
        last = Some((index, left));
        left -= sum;
    }
    last
}
