//! `x W^T` over weights packed once at load.
//!
//! A matrix is cut into panels of [`PANEL`] outputs, each stored `[n_in][PANEL]` (bfloat16: in pairs of inputs), so that
//! one step along the inputs reads one vector of weights and serves every row of a tile. Whatever the tile, an output is
//! the sum over the inputs in ascending order: a row's result does not depend on how many rows there are.
//!
//! A bfloat16 matrix is multiplied with activations rounded to bfloat16, two products at a time, and summed in f32: what
//! processors with AVX-512 BF16 do in one instruction, some of them at twice the speed of f32. On others both are widened.

use rayon::prelude::*;

use super::vector::{LANES, Vector, for_each_instruction_set};
use super::{Rows, Simd};
use crate::kernels::{WeightData, WeightType};

/// Outputs of a panel: one vector.
const PANEL: usize = LANES;

/// Products below this many multiply-adds stay on one thread: waking another costs 10 to 20 µs, in which one core does
/// about this much.
const PARALLEL_MULTIPLY_ADDS: usize = 1 << 20;

/// A weight `[n_out, n_in]`, packed. Outputs beyond `n_out` in the last panel are zero.
pub struct PackedMatrix {
    n_out: usize,
    n_in: usize,
    panels: Panels,
}

enum Panels {
    F32(Vec<[f32; PANEL]>),
    /// Two inputs to a word, the first in its lower half; a last odd input is paired with zero.
    Bf16(Vec<[u32; PANEL]>),
}

impl PackedMatrix {
    /// Packs `n_out * n_in` values. They are widened a row at a time: a matrix never stands in memory twice.
    pub fn pack(data: WeightData<'_>, n_out: usize, n_in: usize, hold: WeightType) -> Self {
        assert_eq!(data.n_values(), n_out * n_in, "a matrix of {n_out} x {n_in}");
        let row = |out: usize| data.slice(out * n_in..(out + 1) * n_in).to_f32();
        let panels = match hold {
            WeightType::F32 => Panels::F32(pack_rows(n_out, n_in, |out, set| {
                row(out).into_iter().enumerate().for_each(|(k, value)| set(k, value));
            })),
            WeightType::Bf16 => Panels::Bf16(pack_rows(n_out, n_in.div_ceil(2), |out, set| {
                for (k, pair) in row(out).chunks(2).enumerate() {
                    set(k, pair_bf16(pair[0], pair.get(1).copied().unwrap_or(0.0)));
                }
            })),
        };
        Self { n_out, n_in, panels }
    }

    /// Outputs.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Inputs.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Writes the weights of one output, which is a row of an embedding table.
    pub(super) fn unpack_row(&self, out: usize, row: &mut [f32]) {
        let (panel, lane) = (out / PANEL, out % PANEL);
        match &self.panels {
            Panels::F32(panels) => {
                for (value, vector) in row.iter_mut().zip(&panels[panel * self.n_in..]) {
                    *value = vector[lane];
                }
            }
            Panels::Bf16(panels) => {
                let n_pairs = self.n_in.div_ceil(2);
                for (values, vector) in row.chunks_mut(2).zip(&panels[panel * n_pairs..]) {
                    for (value, widened) in values.iter_mut().zip(unpair_bf16(vector[lane])) {
                        *value = widened;
                    }
                }
            }
        }
    }
}

/// Panels of `n_words` vectors. `read` sets the words of one output.
fn pack_rows<W: Copy + Default + Send>(
    n_out: usize,
    n_words: usize,
    read: impl Fn(usize, &mut dyn FnMut(usize, W)) + Sync,
) -> Vec<[W; PANEL]> {
    let mut panels = vec![[W::default(); PANEL]; n_out.div_ceil(PANEL) * n_words];
    panels.par_chunks_exact_mut(n_words.max(1)).enumerate().for_each(|(panel, vectors)| {
        let first = panel * PANEL;
        for (lane, out) in (first..n_out.min(first + PANEL)).enumerate() {
            read(out, &mut |k, word| vectors[k][lane] = word);
        }
    });
    panels
}

/// Rounds two values to bfloat16, to nearest even; the first goes to the lower half.
#[inline(always)]
fn pair_bf16(low: f32, high: f32) -> u32 {
    let round = |value: f32| {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // Rounding could carry a NaN into a number.
        if value.is_nan() { 0x7fc0 } else { rounded }
    };
    round(low) | round(high) << 16
}

for_each_instruction_set! {
    /// A row rounded to bfloat16, as words that [`Vector::add_pairs`] takes.
    fn pack_row => pack_row_body(row: &[f32], words: &mut [f32])
}

#[inline(always)]
unsafe fn pack_row_body<V: Vector>(row: &[f32], words: &mut [f32]) {
    let (both, last) = row.as_chunks::<2>();
    let last = last.first().map(|low| [*low, 0.0]);
    for ([low, high], words) in both.iter().chain(&last).zip(words.chunks_exact_mut(V::PAIR_WORDS)) {
        let pair = pair_bf16(*low, *high);
        match words {
            [word] => *word = f32::from_bits(pair),
            widened => widened.copy_from_slice(&unpair_bf16(pair)),
        }
    }
}

/// The two values of a word.
#[inline(always)]
pub(super) fn unpair_bf16(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

/// `x W`: `[n_rows, n_in]`, the weighted sum of the rows of `weight`, widened.
pub(super) fn mix(x: &Rows, weight: &PackedMatrix) -> Rows {
    assert_eq!(x.width(), weight.n_out);
    let mut out = x.zeros(x.n_rows(), weight.n_in);
    let n_in = weight.n_in;
    out.values_mut().par_chunks_exact_mut(n_in).enumerate().for_each(|(row, sums)| {
        for (panel, factors) in x.row(row).chunks(PANEL).enumerate() {
            match &weight.panels {
                Panels::F32(panels) => {
                    for (sum, vector) in sums.iter_mut().zip(&panels[panel * n_in..]) {
                        *sum += vector.iter().zip(factors).map(|(weight, factor)| weight * factor).sum::<f32>();
                    }
                }
                Panels::Bf16(panels) => {
                    for (sums, vector) in sums.chunks_mut(2).zip(&panels[panel * n_in.div_ceil(2)..]) {
                        for (pair, factor) in vector.iter().zip(factors) {
                            for (sum, weight) in sums.iter_mut().zip(unpair_bf16(*pair)) {
                                *sum += weight * factor;
                            }
                        }
                    }
                }
            }
        }
    });
    out
}

/// `x W^T + bias`: `[n_rows, n_out]`.
pub(super) fn linear(simd: Simd, x: &Rows, weight: &PackedMatrix, bias: Option<&[f32]>) -> Rows {
    assert_eq!(x.width(), weight.n_in);
    let mut out = x.zeros(x.n_rows(), weight.n_out);
    if x.n_rows() == 0 {
        return out;
    }
    let n_panels = weight.n_out.div_ceil(PANEL);
    let output = Output { start: out.values_mut().as_mut_ptr(), n_rows: x.n_rows(), n_out: weight.n_out, bias };
    let multiply_adds = x.n_rows() * weight.n_in * weight.n_out;
    let n_tasks = if multiply_adds < PARALLEL_MULTIPLY_ADDS { 1 } else { rayon::current_num_threads() };
    // Tasks begin at even panels, so that all but the last can go two by two.
    let panels_per_task = n_panels.div_ceil(n_tasks).next_multiple_of(2);
    let in_tasks = |task: &(dyn Fn(usize, usize) + Sync)| {
        let range = |index: usize| task(index * panels_per_task, ((index + 1) * panels_per_task).min(n_panels));
        if n_tasks == 1 { range(0) } else { (0..n_tasks).into_par_iter().for_each(range) }
    };
    match &weight.panels {
        Panels::F32(panels) => in_tasks(&|start, end| {
            product_f32(simd, x.values(), panels, weight.n_in, start, end, &output);
        }),
        Panels::Bf16(panels) => {
            let n_pairs = weight.n_in.div_ceil(2);
            // The words of a row stand in the bits of f32, so that their memory is used again, too.
            let mut pairs = x.zeros(x.n_rows(), n_pairs * simd.pair_words());
            for row in 0..x.n_rows() {
                pack_row(simd, x.row(row), pairs.row_mut(row));
            }
            in_tasks(&|start, end| product_bf16(simd, pairs.values(), panels, n_pairs, start, end, &output));
        }
    }
    out
}

/// Where results go: row `r`, output `o` at `start + r * n_out + o`.
struct Output<'a> {
    start: *mut f32,
    n_rows: usize,
    n_out: usize,
    bias: Option<&'a [f32]>,
}

// SAFETY: the pointer is only written through, at panels each of which belongs to one task, while `linear` waits.
unsafe impl Sync for Output<'_> {}

impl Output<'_> {
    /// Adds the bias and writes one row of one panel.
    ///
    /// # Safety
    /// No other task has this panel.
    #[inline(always)]
    unsafe fn write(&self, row: usize, panel: usize, sums: &[f32; PANEL]) {
        let first = panel * PANEL;
        let n_lanes = PANEL.min(self.n_out - first);
        assert!(row < self.n_rows);
        for (lane, sum) in sums.iter().take(n_lanes).enumerate() {
            let value = self.bias.map_or(*sum, |bias| sum + bias[first + lane]);
            // SAFETY: inside the matrix, and in this task's columns.
            unsafe { *self.start.add(row * self.n_out + first + lane) = value };
        }
    }
}

/// How a panel's words and a row's words make a sum.
trait Format<V: Vector> {
    type Weight: Copy;
    type Loaded: Copy;
    /// Words of a row that go with one vector of weights.
    const N_WORDS: usize;
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn load(weights: &[Self::Weight; PANEL]) -> Self::Loaded;
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn add(sum: V, words: &[f32], weights: Self::Loaded) -> V;
}

struct F32;

impl<V: Vector> Format<V> for F32 {
    type Weight = f32;
    type Loaded = V;
    const N_WORDS: usize = 1;
    #[inline(always)]
    unsafe fn load(weights: &[f32; PANEL]) -> V {
        // SAFETY: passed on from the caller.
        unsafe { V::load(weights) }
    }
    #[inline(always)]
    unsafe fn add(sum: V, words: &[f32], weights: V) -> V {
        // SAFETY: there is one word; the rest is passed on from the caller.
        unsafe { V::splat(*words.get_unchecked(0)).mul_add(weights, sum) }
    }
}

struct Bf16;

impl<V: Vector> Format<V> for Bf16 {
    type Weight = u32;
    type Loaded = V::Pairs;
    const N_WORDS: usize = V::PAIR_WORDS;
    #[inline(always)]
    unsafe fn load(weights: &[u32; PANEL]) -> V::Pairs {
        // SAFETY: passed on from the caller.
        unsafe { V::load_pairs(weights) }
    }
    #[inline(always)]
    unsafe fn add(sum: V, words: &[f32], weights: V::Pairs) -> V {
        // SAFETY: passed on from the caller.
        unsafe { sum.add_pairs(words, weights) }
    }
}

for_each_instruction_set! {
    /// All rows times the panels `start..end`, which belong to the caller's task.
    fn product_f32 => product_f32_body(
        inputs: &[f32],
        panels: &[[f32; PANEL]],
        n_in: usize,
        start: usize,
        end: usize,
        output: &Output<'_>,
    )
}

for_each_instruction_set! {
    /// All rows times the panels `start..end`, which belong to the caller's task.
    fn product_bf16 => product_bf16_body(
        inputs: &[f32],
        panels: &[[u32; PANEL]],
        n_in: usize,
        start: usize,
        end: usize,
        output: &Output<'_>,
    )
}

#[inline(always)]
unsafe fn product_f32_body<V: Vector>(
    inputs: &[f32],
    panels: &[[f32; PANEL]],
    n_in: usize,
    start: usize,
    end: usize,
    output: &Output<'_>,
) {
    // SAFETY: passed on from the caller.
    unsafe { product::<V, F32>(inputs, panels, n_in, start, end, output) };
}

#[inline(always)]
unsafe fn product_bf16_body<V: Vector>(
    inputs: &[f32],
    panels: &[[u32; PANEL]],
    n_in: usize,
    start: usize,
    end: usize,
    output: &Output<'_>,
) {
    // SAFETY: passed on from the caller.
    unsafe { product::<V, Bf16>(inputs, panels, n_in, start, end, output) };
}

/// Tiles of as many rows and panels as the registers hold sums for: sixteen where there are 32 registers.
#[inline(always)]
unsafe fn product<V: Vector, F: Format<V>>(
    inputs: &[f32],
    panels: &[[F::Weight; PANEL]],
    n_in: usize,
    start: usize,
    end: usize,
    output: &Output<'_>,
) {
    let mut panel = start;
    while panel < end {
        // SAFETY: passed on from the caller.
        unsafe {
            if V::HAS_32_REGISTERS && panel + 2 <= end {
                rows::<V, F, 2>(inputs, panels, n_in, panel, output);
                panel += 2;
            } else {
                rows::<V, F, 1>(inputs, panels, n_in, panel, output);
                panel += 1;
            }
        }
    }
}

/// All rows times `P` panels.
#[inline(always)]
unsafe fn rows<V: Vector, F: Format<V>, const P: usize>(
    inputs: &[f32],
    panels: &[[F::Weight; PANEL]],
    n_in: usize,
    panel: usize,
    output: &Output<'_>,
) {
    let panels = &panels[panel * n_in..(panel + P) * n_in];
    let mut row = 0;
    while row < output.n_rows {
        let left = output.n_rows - row;
        // SAFETY: passed on from the caller.
        row += unsafe {
            match left {
                8.. if V::HAS_32_REGISTERS => tile::<V, F, 8, P>(inputs, panels, n_in, row, panel, output),
                4.. => tile::<V, F, 4, P>(inputs, panels, n_in, row, panel, output),
                2.. => tile::<V, F, 2, P>(inputs, panels, n_in, row, panel, output),
                _ => tile::<V, F, 1, P>(inputs, panels, n_in, row, panel, output),
            }
        };
    }
}

/// `R` rows times `P` panels; returns `R`.
#[inline(always)]
unsafe fn tile<V: Vector, F: Format<V>, const R: usize, const P: usize>(
    inputs: &[f32],
    panels: &[[F::Weight; PANEL]],
    n_in: usize,
    row: usize,
    panel: usize,
    output: &Output<'_>,
) -> usize {
    let width = n_in * F::N_WORDS;
    let inputs = &inputs[row * width..(row + R) * width];
    assert_eq!(panels.len(), P * n_in);
    // SAFETY: passed on from the caller.
    let mut sums = [[unsafe { V::splat(0.0) }; P]; R];
    for k in 0..n_in {
        // SAFETY: `k < n_in`, and there are `P * n_in` vectors and `R * n_in * N_WORDS` words; the rest is passed on.
        unsafe {
            let weights: [F::Loaded; P] = std::array::from_fn(|p| F::load(panels.get_unchecked(p * n_in + k)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let first = r * width + k * F::N_WORDS;
                let words = inputs.get_unchecked(first..first + F::N_WORDS);
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    *sum = F::add(*sum, words, weights);
                }
            }
        }
    }
    let mut lanes = [0.0; PANEL];
    for (r, sums) in sums.iter().enumerate() {
        for (p, sum) in sums.iter().enumerate() {
            // SAFETY: passed on from the caller.
            unsafe {
                sum.store(&mut lanes);
                output.write(row + r, panel + p, &lanes);
            }
        }
    }
    R
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_rounding_is_to_nearest_even() {
        let values = [0.0, -0.0, 1.0, 1.003_906_2, 1.011_718_8, -1.234_567_9, f32::INFINITY, 1e-40, 65_504.0];
        for low in values {
            for high in values {
                let want = [low, high].map(|value| half::bf16::from_f32(value).to_f32());
                assert_eq!(unpair_bf16(pair_bf16(low, high)), want);
            }
        }
        assert!(unpair_bf16(pair_bf16(f32::from_bits(0x7fff_ffff), 1.0))[0].is_nan());
    }
}
