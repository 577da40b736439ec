//! `x W^T` over weights packed once at load.
//!
//! A matrix is cut into panels of [`PANEL`] outputs, each stored `[n_in][PANEL]`, so that one step along the inputs
//! reads one vector of weights and serves every row of a tile. Whatever the tile, an output is the sum over the inputs
//! in ascending order, one fused product at a time: a row's result does not depend on how many rows there are.

use rayon::prelude::*;

use super::vector::{LANES, Vector, for_each_instruction_set};
use super::{Rows, Simd};
use crate::kernels::{WeightData, WeightType};

/// Outputs of a panel: one vector.
const PANEL: usize = LANES;

/// Products below this many multiply-adds stay on one thread: waking another costs 10 to 20 µs, in which one core does
/// about this much.
const PARALLEL_MULTIPLY_ADDS: usize = 1 << 20;

/// Rows of the largest tile.
const MAX_TILE_ROWS: usize = 8;

/// A weight `[n_out, n_in]`, packed. Outputs beyond `n_out` in the last panel are zero.
pub struct PackedMatrix {
    n_out: usize,
    n_in: usize,
    panels: Panels,
}

enum Panels {
    F32(Vec<f32>),
    /// The upper halves of f32 values.
    Bf16(Vec<u16>),
}

impl PackedMatrix {
    /// Packs `n_out * n_in` values.
    pub fn pack(data: WeightData<'_>, n_out: usize, n_in: usize, hold: WeightType) -> Self {
        let values = data.to_f32();
        assert_eq!(values.len(), n_out * n_in, "a matrix of {n_out} x {n_in}");
        let n_panels = n_out.div_ceil(PANEL);
        let packed = |index: usize| {
            let (panel, k, lane) = (index / (n_in * PANEL), index / PANEL % n_in, index % PANEL);
            let out = panel * PANEL + lane;
            if out < n_out { values[out * n_in + k] } else { 0.0 }
        };
        let len = n_panels * n_in * PANEL;
        let panels = match hold {
            WeightType::F32 => Panels::F32((0..len).map(packed).collect()),
            WeightType::Bf16 => {
                Panels::Bf16((0..len).map(|index| half::bf16::from_f32(packed(index)).to_bits()).collect())
            }
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
        let first = out / PANEL * self.n_in * PANEL + out % PANEL;
        for (k, value) in row.iter_mut().enumerate() {
            let index = first + k * PANEL;
            *value = match &self.panels {
                Panels::F32(panels) => panels[index],
                Panels::Bf16(panels) => half::bf16::from_bits(panels[index]).to_f32(),
            };
        }
    }
}

/// `x W^T + bias`: `[n_rows, n_out]`.
pub(super) fn linear(simd: Simd, x: &Rows, weight: &PackedMatrix, bias: Option<&[f32]>) -> Rows {
    assert_eq!(x.width(), weight.n_in);
    let mut out = Rows::zeros(x.n_rows(), weight.n_out);
    if x.n_rows() == 0 {
        return out;
    }
    let n_panels = weight.n_out.div_ceil(PANEL);
    let output = Output { start: out.values_mut().as_mut_ptr(), n_out: weight.n_out };
    let multiply_adds = x.n_rows() * weight.n_in * weight.n_out;
    let n_tasks = if multiply_adds < PARALLEL_MULTIPLY_ADDS { 1 } else { rayon::current_num_threads() };
    let panels_per_task = n_panels.div_ceil(n_tasks);
    let task = |index: usize| {
        for panel in index * panels_per_task..((index + 1) * panels_per_task).min(n_panels) {
            // SAFETY: every panel belongs to one task, so no two write the same outputs, and `out` outlives the tasks.
            unsafe { panel_product(simd, x, weight, panel, bias, &output) };
        }
    };
    if n_tasks == 1 {
        task(0);
    } else {
        (0..n_tasks).into_par_iter().for_each(task);
    }
    out
}

/// Where results go: row `r`, output `o` at `start + r * n_out + o`.
struct Output {
    start: *mut f32,
    n_out: usize,
}

// SAFETY: the pointer is only written through, at places each of which belongs to one task.
unsafe impl Sync for Output {}

/// All rows times one panel.
///
/// # Safety
/// Nobody else touches this panel's columns of `output`, which holds `x.n_rows()` rows.
unsafe fn panel_product(
    simd: Simd,
    x: &Rows,
    weight: &PackedMatrix,
    panel: usize,
    bias: Option<&[f32]>,
    output: &Output,
) {
    let place = panel * weight.n_in * PANEL..(panel + 1) * weight.n_in * PANEL;
    let first_out = panel * PANEL;
    let n_lanes = PANEL.min(weight.n_out - first_out);
    let mut row = 0;
    while row < x.n_rows() {
        let n_rows = MAX_TILE_ROWS.min(x.n_rows() - row);
        let inputs = &x.values()[row * weight.n_in..(row + n_rows) * weight.n_in];
        let mut sums = [[0.0; PANEL]; MAX_TILE_ROWS];
        match &weight.panels {
            Panels::F32(panels) => tile_f32(simd, inputs, &panels[place.clone()], n_rows, &mut sums),
            Panels::Bf16(panels) => tile_bf16(simd, inputs, &panels[place.clone()], n_rows, &mut sums),
        }
        for (index, sums) in sums.iter().take(n_rows).enumerate() {
            for (lane, sum) in sums.iter().take(n_lanes).enumerate() {
                let out = first_out + lane;
                let value = bias.map_or(*sum, |bias| sum + bias[out]);
                // SAFETY: inside the matrix, and in this panel's columns.
                unsafe { *output.start.add((row + index) * output.n_out + out) = value };
            }
        }
        row += n_rows;
    }
}

type Sums = [[f32; PANEL]; MAX_TILE_ROWS];

for_each_instruction_set! {
    /// Sums of up to [`MAX_TILE_ROWS`] rows over a panel of 32-bit floats.
    fn tile_f32 => tile_f32_body(inputs: &[f32], panel: &[f32], n_rows: usize, sums: &mut Sums)
}

for_each_instruction_set! {
    /// Sums of up to [`MAX_TILE_ROWS`] rows over a panel of bfloat16.
    fn tile_bf16 => tile_bf16_body(inputs: &[f32], panel: &[u16], n_rows: usize, sums: &mut Sums)
}

#[inline(always)]
unsafe fn tile_f32_body<V: Vector>(inputs: &[f32], panel: &[f32], n_rows: usize, sums: &mut Sums) {
    let (vectors, _) = panel.as_chunks::<PANEL>();
    // SAFETY: passed on from the caller.
    unsafe { tile::<V, f32>(inputs, vectors, n_rows, sums, |vector| V::load(vector)) };
}

#[inline(always)]
unsafe fn tile_bf16_body<V: Vector>(inputs: &[f32], panel: &[u16], n_rows: usize, sums: &mut Sums) {
    let (vectors, _) = panel.as_chunks::<PANEL>();
    // SAFETY: passed on from the caller.
    unsafe { tile::<V, u16>(inputs, vectors, n_rows, sums, |vector| V::load_bf16(vector)) };
}

/// Picks the tile whose row count is known when it is compiled, so that its sums stay in registers.
#[inline(always)]
unsafe fn tile<V: Vector, T>(
    inputs: &[f32],
    vectors: &[[T; PANEL]],
    n_rows: usize,
    sums: &mut Sums,
    load: impl Fn(&[T; PANEL]) -> V,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match n_rows {
            1 => rows::<V, T, 1>(inputs, vectors, sums, load),
            2 => rows::<V, T, 2>(inputs, vectors, sums, load),
            3 => rows::<V, T, 3>(inputs, vectors, sums, load),
            4 => rows::<V, T, 4>(inputs, vectors, sums, load),
            5 => rows::<V, T, 5>(inputs, vectors, sums, load),
            6 => rows::<V, T, 6>(inputs, vectors, sums, load),
            7 => rows::<V, T, 7>(inputs, vectors, sums, load),
            _ => rows::<V, T, MAX_TILE_ROWS>(inputs, vectors, sums, load),
        }
    }
}

#[inline(always)]
unsafe fn rows<V: Vector, T, const R: usize>(
    inputs: &[f32],
    vectors: &[[T; PANEL]],
    sums: &mut Sums,
    load: impl Fn(&[T; PANEL]) -> V,
) {
    let n_in = vectors.len();
    assert_eq!(inputs.len(), R * n_in);
    // SAFETY: passed on from the caller.
    let mut sum = [unsafe { V::splat(0.0) }; R];
    for (k, vector) in vectors.iter().enumerate() {
        let weights = load(vector);
        for (row, sum) in sum.iter_mut().enumerate() {
            // SAFETY: `row < R` and `k < n_in`, and there are `R * n_in` inputs; the rest is passed on from the caller.
            unsafe { *sum = V::splat(*inputs.get_unchecked(row * n_in + k)).mul_add(weights, *sum) };
        }
    }
    for (sum, place) in sum.iter().zip(sums) {
        // SAFETY: passed on from the caller.
        unsafe { sum.store(place) };
    }
}
