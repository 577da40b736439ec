//! `x W^T` over packed weights.
//!
//! Whatever the tile, an output is the sum over the inputs in ascending order: a row's result does not depend on how many
//! rows there are.
//!
//! A bfloat16 matrix is multiplied with activations rounded to bfloat16, two products at a time, and summed in f32: what
//! processors with AVX-512 BF16 do in one instruction, some of them at twice the speed of f32. On others both are widened.

use std::ops::Range;

use bytemuck::Pod;

use crate::cpu::isa::bf16::{bf16, pair_bf16, unbf16};
use crate::cpu::isa::sets::for_each_instruction_set;
use crate::cpu::isa::simd::Simd;
use crate::cpu::isa::vector::Vector;
use crate::cpu::packing::matrix::{PackedMatrix, Panels};
use crate::cpu::packing::panels::{PANEL, Weights};
use crate::cpu::pool::shared::Shared;
use crate::cpu::pool::threads::Pool;
use crate::cpu::product::integer::{self, IntegerRows};
use crate::cpu::product::lines::{LINE, Lines, RowLines};
use crate::cpu::product::output::Output;
use crate::cpu::product::tiles::{PANELS, Tiles, product};
use crate::cpu::rows::Rows;

/// Outputs of a tile of a [`TiledProduct`]: whole panels, few enough that a tile of many rows stays in the second cache and
/// that a small vocabulary has one for each thread.
pub(crate) const TILE: usize = 512;

/// Products below this many multiply-adds stay on one thread: sharing one with a thread that is awake costs 1 to 2 µs, in
/// which one core does about this much.
const PARALLEL_MULTIPLY_ADDS: usize = 1 << 17;

for_each_instruction_set! {
    of pairs:
    /// A row rounded to bfloat16, as words that [`Vector::add_pairs`] takes.
    fn pack_row => pack_row_body(row: &[f32], lines: RowLines<'_>)
}

#[inline(always)]
unsafe fn pack_row_body<V: Vector>(row: &[f32], mut lines: RowLines<'_>) {
    // Plain loops, which the compiler turns into vectors.
    if V::PAIR_WORDS == 2 {
        copy_row(row, lines, |value| unbf16(bf16(value)));
        return;
    }
    let pack = |values: &[f32; 2 * LINE]| {
        let mut words = [0.0; LINE];
        for (word, [low, high]) in words.iter_mut().zip(values.as_chunks().0) {
            *word = f32::from_bits(pair_bf16(*low, *high));
        }
        words
    };
    let (chunks, rest) = row.as_chunks();
    chunks.iter().enumerate().for_each(|(line, values)| lines.set(line, pack(values)));
    if !rest.is_empty() {
        let mut last = [0.0; 2 * LINE];
        last[..rest.len()].copy_from_slice(rest);
        lines.set(chunks.len(), pack(&last));
    }
}

/// A word for each value of a row.
#[inline(always)]
fn copy_row(row: &[f32], mut lines: RowLines<'_>, word: impl Fn(f32) -> f32) {
    for (line, values) in row.chunks(LINE).enumerate() {
        let mut words = [0.0; LINE];
        words.iter_mut().zip(values).for_each(|(place, value)| *place = word(*value));
        lines.set(line, words);
    }
}

/// `softmax(logits) W` per row.
pub(crate) fn mix_softmax(pool: &Pool, simd: Simd, mut logits: Rows, weight: &PackedMatrix) -> Rows {
    logits.each(pool, |_, weights| {
        let top = simd.max(weights);
        let scale = 1.0 / simd.exp_sub_sum(weights, top);
        weights.iter_mut().for_each(|weight| *weight *= scale);
    });
    mix(pool, &logits, weight)
}

/// `x W`: `[n_rows, n_in]`, the weighted sum of the rows of `weight`, widened.
fn mix(pool: &Pool, x: &Rows, weight: &PackedMatrix) -> Rows {
    assert_eq!(x.width(), weight.n_out());
    let n_in = weight.n_in();
    let mut out = x.scratch(x.n_rows(), n_in);
    out.values_mut().fill(0.0);
    // Each task widens the weights once for all of its rows.
    let rows_per_task = x.n_rows().div_ceil(pool.n_tasks(x.n_rows())).max(1);
    pool.chunks(out.values_mut(), rows_per_task * n_in, |task, rows| {
        let mut weights = vec![0.0; n_in];
        for out in 0..weight.n_out() {
            weight.unpack_row(out, &mut weights);
            for (row, sums) in (task * rows_per_task..).zip(rows.chunks_exact_mut(n_in)) {
                let factor = x.row(row)[out];
                for (sum, weight) in sums.iter_mut().zip(&weights) {
                    *sum += weight * factor;
                }
            }
        }
    });
    out
}

/// `x W^T + bias` of several matrices, `[n_rows, n_out]` each: rows are made ready once, and threads meet once.
pub(crate) fn linears<const N: usize>(
    pool: &Pool,
    simd: Simd,
    x: &Rows,
    weights: [(&PackedMatrix, Option<&[f32]>); N],
) -> [Rows; N] {
    let mut products = weights.map(|(weight, _)| x.scratch(x.n_rows(), weight.n_out()));
    if x.n_rows() == 0 {
        return products;
    }
    let mut inputs: Vec<Inputs> = Vec::new();
    let mut parts = Vec::with_capacity(N);
    for ((weight, bias), product) in weights.iter().zip(&mut products) {
        let ready = inputs.iter().position(|inputs| inputs.fit(weight)).unwrap_or_else(|| {
            inputs.push(Inputs::new(pool, simd, x, weight));
            inputs.len() - 1
        });
        let values = Shared::new(product.values_mut());
        parts.push((ready, *weight, Output { values, n_rows: x.n_rows(), outs: 0..weight.n_out(), bias: *bias }));
    }
    let n_outs: usize = weights.iter().map(|(weight, _)| weight.n_out()).sum();
    let n_panels: usize = weights.iter().map(|(weight, _)| weight.n_out().div_ceil(PANEL)).sum();
    let n_tasks = if x.n_rows() * x.width() * n_outs < PARALLEL_MULTIPLY_ADDS { 1 } else { pool.n_tasks(n_panels) };
    let panels_per_task = n_panels.div_ceil(n_tasks).next_multiple_of(PANELS);
    let mut tasks = Vec::new();
    for part in &parts {
        let n_panels = part.1.n_out().div_ceil(PANEL);
        tasks.extend((0..n_panels).step_by(panels_per_task).map(|first| (part, first, n_panels)));
    }
    pool.run(tasks.len(), &|index| {
        let ((ready, weight, output), first, n_panels) = tasks[index];
        inputs[*ready].product(simd, weight, first, n_panels.min(first + panels_per_task), output);
    });
    products
}

/// `x W^T`, computed in tiles of [`TILE`] outputs, of which only a few are in memory at a time.
pub(crate) struct TiledProduct<'a> {
    simd: Simd,
    x: &'a Rows,
    inputs: Inputs,
    weight: &'a PackedMatrix,
}

impl<'a> TiledProduct<'a> {
    /// Makes the rows of `x` ready.
    pub(crate) fn new(pool: &Pool, simd: Simd, x: &'a Rows, weight: &'a PackedMatrix) -> Self {
        Self { simd, x, inputs: Inputs::new(pool, simd, x, weight), weight }
    }

    /// Number of tiles.
    pub(crate) fn n_tiles(&self) -> usize {
        self.weight.n_out().div_ceil(TILE)
    }

    /// Outputs of tile `tile`, and all rows of them.
    pub(crate) fn tile(&self, tile: usize) -> (Range<usize>, Rows) {
        let outs = tile * TILE..((tile + 1) * TILE).min(self.weight.n_out());
        let mut values = self.x.scratch(self.x.n_rows(), outs.len());
        let shared = Shared::new(values.values_mut());
        let output = Output { values: shared, n_rows: self.x.n_rows(), outs: outs.clone(), bias: None };
        self.inputs.product(self.simd, self.weight, outs.start / PANEL, outs.end.div_ceil(PANEL), &output);
        (outs, values)
    }
}

/// Rows as products with a matrix take them.
enum Inputs {
    F32(Lines),
    Pairs(Lines),
    Integers(IntegerRows),
}

impl Inputs {
    fn new(pool: &Pool, simd: Simd, x: &Rows, weight: &PackedMatrix) -> Self {
        let n_in = weight.n_in();
        assert_eq!(x.width(), n_in);
        match &weight.panels {
            Panels::F32(_) => Self::F32(Lines::of(pool, x, n_in.div_ceil(LINE), |row, lines| {
                copy_row(row, lines, |value| value);
            })),
            Panels::Bf16(_) => {
                let n_lines = (n_in.div_ceil(2) * simd.pair_words()).div_ceil(LINE);
                Self::Pairs(Lines::of(pool, x, n_lines, |row, lines| pack_row(simd, row, lines)))
            }
            Panels::Integers(integers) => Self::Integers(IntegerRows::new(pool, simd, x, integers.form)),
        }
    }

    /// Whether the rows are also prepared for products with `weight`.
    fn fit(&self, weight: &PackedMatrix) -> bool {
        match (self, &weight.panels) {
            (Self::F32(_), Panels::F32(_)) | (Self::Pairs(_), Panels::Bf16(_)) => true,
            (Self::Integers(rows), Panels::Integers(integers)) => rows.form == integers.form,
            _ => false,
        }
    }

    /// All rows times the panels `start..end`, which belong to the caller's task.
    fn product(&self, simd: Simd, weight: &PackedMatrix, start: usize, end: usize, output: &Output<'_>) {
        match (self, &weight.panels) {
            (Self::F32(rows), Panels::F32(panels)) => {
                product_f32(simd, rows, panels, start, end, output);
            }
            (Self::Pairs(rows), Panels::Bf16(panels)) => {
                product_bf16(simd, rows, panels, start, end, output);
            }
            (Self::Integers(rows), Panels::Integers(integers)) => {
                integer::product(simd, rows, integers, start, end, output);
            }
            _ => panic!("rows were prepared for another weight type"),
        }
    }
}

/// Product of a panel's words and a row's words.
trait Format<V: Vector> {
    type Weight: Pod;
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
    of floats:
    /// All rows times the panels `start..end`, which belong to the caller's task.
    fn product_f32 => product_f32_body(
        inputs: &Lines,
        panels: &Weights<[f32; PANEL]>,
        start: usize,
        end: usize,
        output: &Output<'_>,
    )
}

for_each_instruction_set! {
    of pairs:
    /// All rows times the panels `start..end`, which belong to the caller's task.
    fn product_bf16 => product_bf16_body(
        inputs: &Lines,
        panels: &Weights<[u32; PANEL]>,
        start: usize,
        end: usize,
        output: &Output<'_>,
    )
}

#[inline(always)]
unsafe fn product_f32_body<V: Vector>(
    inputs: &Lines,
    panels: &Weights<[f32; PANEL]>,
    start: usize,
    end: usize,
    output: &Output<'_>,
) {
    // SAFETY: passed on from the caller.
    unsafe { product(&Floats::<V, F32> { inputs, panels, output }, output.n_rows, panels.n_vectors(), start, end) };
}

#[inline(always)]
unsafe fn product_bf16_body<V: Vector>(
    inputs: &Lines,
    panels: &Weights<[u32; PANEL]>,
    start: usize,
    end: usize,
    output: &Output<'_>,
) {
    // SAFETY: passed on from the caller.
    unsafe { product(&Floats::<V, Bf16> { inputs, panels, output }, output.n_rows, panels.n_vectors(), start, end) };
}

/// A product in floats: a vector of weights is met by `F::N_WORDS` words of a row.
struct Floats<'a, V: Vector, F: Format<V>> {
    inputs: &'a Lines,
    panels: &'a Weights<[F::Weight; PANEL]>,
    output: &'a Output<'a>,
}

impl<V: Vector, F: Format<V>> Tiles<V> for Floats<'_, V, F> {
    type Sum = V;

    #[inline(always)]
    unsafe fn start(&self, _: usize) -> V {
        // SAFETY: passed on from the caller.
        unsafe { V::splat(0.0) }
    }

    #[inline(always)]
    unsafe fn add<const R: usize, const P: usize>(
        &self,
        row: usize,
        panel: usize,
        vectors: Range<usize>,
        ahead: isize,
        mut sums: [[V; P]; R],
    ) -> [[V; P]; R] {
        let panels = self.panels.tile::<P>(panel);
        assert!(vectors.end <= self.panels.n_vectors());
        let rows = self.inputs.tile::<R>(row);
        let vectors_per_line = LINE / F::N_WORDS;
        for start in vectors.clone().step_by(vectors_per_line) {
            let inputs = rows.line(start / vectors_per_line);
            for vector in start..vectors.end.min(start + vectors_per_line) {
                // SAFETY: `vector < n_vectors`, and there are `R` lines of inputs, in which the words of the vector are; the rest is
                // passed on.
                unsafe {
                    // No closures, which would be compiled without the vector instructions.
                    let stored = panels.at(vector);
                    let mut weights = [F::load(&stored[0]); P];
                    for (weights, stored) in weights.iter_mut().zip(stored) {
                        V::prefetch(std::ptr::from_ref(stored).wrapping_offset(ahead).cast());
                        *weights = F::load(stored);
                    }
                    let first = (vector - start) * F::N_WORDS;
                    for (sums, line) in sums.iter_mut().zip(inputs) {
                        let words = line.get_unchecked(first..first + F::N_WORDS);
                        for (sum, weights) in sums.iter_mut().zip(weights) {
                            *sum = F::add(*sum, words, weights);
                        }
                    }
                }
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn finish(&self, row: usize, panel: usize, sum: V) {
        // SAFETY: passed on from the caller.
        unsafe { self.output.write(row, panel, sum.lanes()) };
    }
}
