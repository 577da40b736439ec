//! `x W^T` over weights packed once at load.
//!
//! A matrix is cut into panels of [`PANEL`] outputs, each stored `[n_in][PANEL]`, so that one step along the inputs
//! reads one vector of weights and serves every row of a tile. Whatever the tile, an output is the sum over the inputs
//! in ascending order, one fused product at a time: a row's result does not depend on how many rows there are.

use rayon::prelude::*;

use super::{Rows, Simd};
use crate::kernels::{WeightData, WeightType};

/// Outputs of a panel: one AVX-512 register of f32.
const PANEL: usize = 16;

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

/// Calls the tile for a row count that is known when it is compiled, so that its sums stay in registers.
macro_rules! by_rows {
    ($n_rows:expr, $tile:ident, $($arg:expr),*) => {
        match $n_rows {
            1 => $tile::<1>($($arg),*),
            2 => $tile::<2>($($arg),*),
            3 => $tile::<3>($($arg),*),
            4 => $tile::<4>($($arg),*),
            5 => $tile::<5>($($arg),*),
            6 => $tile::<6>($($arg),*),
            7 => $tile::<7>($($arg),*),
            _ => $tile::<8>($($arg),*),
        }
    };
}

fn tile_f32(simd: Simd, inputs: &[f32], panel: &[f32], n_rows: usize, sums: &mut Sums) {
    match simd {
        // SAFETY: the variant exists only where the machine has avx512f.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { by_rows!(n_rows, f32_avx512, inputs, panel, sums) },
        // SAFETY: the variant exists only where the machine has avx2 and fma.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { by_rows!(n_rows, f32_avx2, inputs, panel, sums) },
        Simd::Portable => by_rows!(n_rows, f32_portable, inputs, panel, sums),
    }
}

fn tile_bf16(simd: Simd, inputs: &[f32], panel: &[u16], n_rows: usize, sums: &mut Sums) {
    match simd {
        // SAFETY: the variant exists only where the machine has avx512f.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { by_rows!(n_rows, bf16_avx512, inputs, panel, sums) },
        // SAFETY: the variant exists only where the machine has avx2 and fma.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { by_rows!(n_rows, bf16_avx2, inputs, panel, sums) },
        Simd::Portable => by_rows!(n_rows, bf16_portable, inputs, panel, sums),
    }
}

#[inline(always)]
fn portable<const R: usize>(inputs: &[f32], n_in: usize, sums: &mut Sums, weight: impl Fn(usize) -> [f32; PANEL]) {
    for k in 0..n_in {
        let weights = weight(k);
        for (row, sums) in sums.iter_mut().take(R).enumerate() {
            let input = inputs[row * n_in + k];
            for lane in 0..PANEL {
                sums[lane] = if cfg!(target_arch = "aarch64") {
                    input.mul_add(weights[lane], sums[lane])
                } else {
                    sums[lane] + input * weights[lane]
                };
            }
        }
    }
}

fn f32_portable<const R: usize>(inputs: &[f32], panel: &[f32], sums: &mut Sums) {
    let (vectors, _) = panel.as_chunks::<PANEL>();
    portable::<R>(inputs, vectors.len(), sums, |k| vectors[k]);
}

fn bf16_portable<const R: usize>(inputs: &[f32], panel: &[u16], sums: &mut Sums) {
    let (vectors, _) = panel.as_chunks::<PANEL>();
    portable::<R>(inputs, vectors.len(), sums, |k| vectors[k].map(|bits| f32::from_bits(u32::from(bits) << 16)));
}

#[cfg(target_arch = "x86_64")]
use x86::{bf16_avx2, bf16_avx512, f32_avx2, f32_avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{PANEL, Sums};

    /// Bytes ahead of use that weights are asked for: far enough that memory keeps up, measured on the reference
    /// machine of the performance notes.
    const PREFETCH_VECTORS: usize = 64;

    #[target_feature(enable = "avx512f")]
    pub(super) fn f32_avx512<const R: usize>(inputs: &[f32], panel: &[f32], sums: &mut Sums) {
        let (vectors, _) = panel.as_chunks::<PANEL>();
        // SAFETY: a vector holds 16 values.
        avx512::<R, _>(inputs, vectors, sums, |vector| unsafe { _mm512_loadu_ps(vector.as_ptr()) });
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn bf16_avx512<const R: usize>(inputs: &[f32], panel: &[u16], sums: &mut Sums) {
        let (vectors, _) = panel.as_chunks::<PANEL>();
        avx512::<R, _>(inputs, vectors, sums, |vector| {
            // SAFETY: a vector holds 16 values of 2 bytes, and this runs only inside functions with avx512f.
            unsafe {
                let half = _mm256_loadu_si256(vector.as_ptr().cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
            }
        });
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn avx512<const R: usize, T>(
        inputs: &[f32],
        vectors: &[[T; PANEL]],
        sums: &mut Sums,
        load: impl Fn(&[T; PANEL]) -> __m512,
    ) {
        let n_in = vectors.len();
        assert_eq!(inputs.len(), R * n_in);
        let mut sum = [_mm512_setzero_ps(); R];
        for (k, vector) in vectors.iter().enumerate() {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(vector).wrapping_add(PREFETCH_VECTORS).cast());
            let weights = load(vector);
            for (row, sum) in sum.iter_mut().enumerate() {
                // SAFETY: `row < R` and `k < n_in`, and there are `R * n_in` inputs.
                let input = _mm512_set1_ps(unsafe { *inputs.get_unchecked(row * n_in + k) });
                *sum = _mm512_fmadd_ps(input, weights, *sum);
            }
        }
        for row in 0..R {
            // SAFETY: a row of sums holds 16 values.
            unsafe { _mm512_storeu_ps(sums[row].as_mut_ptr(), sum[row]) };
        }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn f32_avx2<const R: usize>(inputs: &[f32], panel: &[f32], sums: &mut Sums) {
        let (vectors, _) = panel.as_chunks::<PANEL>();
        // SAFETY: a vector holds 16 values, two registers.
        avx2::<R, _>(inputs, vectors, sums, |vector, half| unsafe { _mm256_loadu_ps(vector.as_ptr().add(8 * half)) });
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn bf16_avx2<const R: usize>(inputs: &[f32], panel: &[u16], sums: &mut Sums) {
        let (vectors, _) = panel.as_chunks::<PANEL>();
        avx2::<R, _>(inputs, vectors, sums, |vector, half| {
            // SAFETY: a vector holds 16 values of 2 bytes, and this runs only inside functions with avx2.
            unsafe {
                let eighth = _mm_loadu_si128(vector.as_ptr().add(8 * half).cast());
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(eighth)))
            }
        });
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn avx2<const R: usize, T>(
        inputs: &[f32],
        vectors: &[[T; PANEL]],
        sums: &mut Sums,
        load: impl Fn(&[T; PANEL], usize) -> __m256,
    ) {
        let n_in = vectors.len();
        assert_eq!(inputs.len(), R * n_in);
        // One half of the panel after the other: 8 rows of both halves would not fit the 16 registers.
        for half in 0..2 {
            let mut sum = [_mm256_setzero_ps(); R];
            for (k, vector) in vectors.iter().enumerate() {
                let weights = load(vector, half);
                for (row, sum) in sum.iter_mut().enumerate() {
                    // SAFETY: `row < R` and `k < n_in`, and there are `R * n_in` inputs.
                    let input = _mm256_set1_ps(unsafe { *inputs.get_unchecked(row * n_in + k) });
                    *sum = _mm256_fmadd_ps(input, weights, *sum);
                }
            }
            for row in 0..R {
                // SAFETY: a row of sums holds 16 values, two halves of 8.
                unsafe { _mm256_storeu_ps(sums[row].as_mut_ptr().add(8 * half), sum[row]) };
            }
        }
    }
}
