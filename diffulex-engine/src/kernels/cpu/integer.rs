//! `x W^T` in integers: rows quantized to int8, exact sums of 32 bits, one scale per row and per output (and group).
//!
//! What a row's integers add up to depends on nothing else: not on the rows beside it, the threads or the instructions.

use super::linear::Output;
use super::packed::{BYTES, Integers, PANEL, QUAD};
use super::threads::Pool;
use super::vector::{Vector, for_each_instruction_set};
use super::{Rows, Simd};
use crate::kernels::quantization::{GROUP, ZERO_INT4, ZERO_INT8, inverse, nearest, scale_int8};

/// Vectors of weights by which the only tile of a panel asks for them before it reads them: 8 KiB, far enough for main
/// memory. Where there are more tiles, the last of them asks for the next panels while it works on what the caches have.
const PREFETCH: usize = (8 << 10) / BYTES;

/// How integers lie in a vector of weights.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// A quad of bytes per output.
    Int8,
    /// Two quads per output, one in the halves of the other's bytes.
    Int4,
}

impl Form {
    fn quads_per_vector(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Int4 => 2,
        }
    }

    /// Quads of a group, where there are `n_quads`.
    fn quads_per_group(self, n_quads: usize) -> usize {
        match self {
            Self::Int8 => n_quads,
            Self::Int4 => GROUP / QUAD,
        }
    }

    /// What stands for 0.
    fn zero(self) -> i32 {
        match self {
            Self::Int8 => ZERO_INT8,
            Self::Int4 => ZERO_INT4,
        }
    }
}

/// Rows made ready: of each, its quads of int8; for each group, where a sum begins so that weights stored unsigned need
/// no correction; its scale. Integers stand in the bits of f32, so that their memory is used again, too.
pub(super) struct IntegerRows {
    words: Rows,
    n_quads: usize,
}

impl IntegerRows {
    pub(super) fn new(pool: &Pool, simd: Simd, x: &Rows, form: Form) -> Self {
        let n_quads = x.width().div_ceil(QUAD * form.quads_per_vector()) * form.quads_per_vector();
        let n_groups = n_quads.div_ceil(form.quads_per_group(n_quads));
        let mut words = x.scratch(x.n_rows(), n_quads + n_groups + 1);
        words.each(pool, |row, words| quantize(simd, x.row(row), words, n_quads, form));
        Self { words, n_quads }
    }
}

for_each_instruction_set! {
    /// One row of [`IntegerRows`].
    fn quantize => quantize_body(row: &[f32], words: &mut [f32], n_quads: usize, form: Form)
}

#[inline(always)]
unsafe fn quantize_body<V: Vector>(row: &[f32], words: &mut [f32], n_quads: usize, form: Form) {
    let scale = scale_int8(row);
    let inverse = inverse(scale);

    let (quads, ends) = words.split_at_mut(n_quads);
    let (starts, scale_place) = ends.split_at_mut(ends.len() - 1);
    scale_place[0] = scale;
    let quads_per_group = form.quads_per_group(n_quads);
    let mut groups = row.chunks(QUAD * quads_per_group);
    for (start, quads) in starts.iter_mut().zip(quads.chunks_mut(quads_per_group)) {
        let mut sums = [0i32; PANEL];
        let mut vectors = groups.next().unwrap_or_default().chunks(PANEL);
        for words in quads.chunks_mut(PANEL / QUAD) {
            let mut values = [0i32; PANEL];
            for (value, given) in values.iter_mut().zip(vectors.next().unwrap_or_default()) {
                // The rounded inverse takes nothing beyond 127.4.
                *value = nearest(*given * inverse);
            }
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += value;
            }
            for (word, quad) in words.iter_mut().zip(values.as_chunks::<QUAD>().0) {
                *word = f32::from_bits(u32::from_le_bytes(quad.map(|value| value as u8)));
            }
        }
        *start = f32::from_bits((-form.zero() * sums.iter().sum::<i32>()) as u32);
    }
}

for_each_instruction_set! {
    /// All rows times the panels `start..end`, which belong to the caller's task.
    pub(super) fn product_int8 => product_int8_body(
        rows: &IntegerRows,
        weight: &Integers,
        start: usize,
        end: usize,
        output: &Output<'_>,
    )
}

for_each_instruction_set! {
    /// All rows times the panels `start..end`, which belong to the caller's task.
    pub(super) fn product_int4 => product_int4_body(
        rows: &IntegerRows,
        weight: &Integers,
        start: usize,
        end: usize,
        output: &Output<'_>,
    )
}

#[inline(always)]
unsafe fn product_int8_body<V: Vector>(
    rows: &IntegerRows,
    weight: &Integers,
    start: usize,
    end: usize,
    output: &Output<'_>,
) {
    // SAFETY: passed on from the caller.
    unsafe { product::<V, Int8>(rows, weight, start, end, output) };
}

#[inline(always)]
unsafe fn product_int4_body<V: Vector>(
    rows: &IntegerRows,
    weight: &Integers,
    start: usize,
    end: usize,
    output: &Output<'_>,
) {
    // SAFETY: passed on from the caller.
    unsafe { product::<V, Int4>(rows, weight, start, end, output) };
}

/// What a vector of weights holds of each output: [`Form::quads_per_vector`] quads of unsigned bytes.
trait Unpack<V: Vector> {
    const FORM: Form;
    type Quads: Copy + AsRef<[V::Quads]>;
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn load(bytes: &[u8; BYTES]) -> Self::Quads;
}

struct Int8;

impl<V: Vector> Unpack<V> for Int8 {
    const FORM: Form = Form::Int8;
    type Quads = [V::Quads; 1];
    #[inline(always)]
    unsafe fn load(bytes: &[u8; BYTES]) -> [V::Quads; 1] {
        // SAFETY: passed on from the caller.
        [unsafe { V::load_quads(bytes) }]
    }
}

struct Int4;

impl<V: Vector> Unpack<V> for Int4 {
    const FORM: Form = Form::Int4;
    type Quads = [V::Quads; 2];
    #[inline(always)]
    unsafe fn load(bytes: &[u8; BYTES]) -> [V::Quads; 2] {
        // SAFETY: passed on from the caller.
        unsafe { V::load_halves(bytes) }
    }
}

/// Tiles of as many rows and panels as the registers hold sums for: sixteen where there are 32 registers.
#[inline(always)]
unsafe fn product<V: Vector, U: Unpack<V>>(
    rows: &IntegerRows,
    weight: &Integers,
    start: usize,
    end: usize,
    output: &Output<'_>,
) {
    let mut panel = start;
    while panel < end {
        // SAFETY: passed on from the caller.
        unsafe {
            if V::HAS_32_REGISTERS && rows.words.n_rows() <= 4 && panel + 4 <= end {
                tiles::<V, U, 4>(rows, weight, panel, output);
                panel += 4;
            } else if V::HAS_32_REGISTERS && rows.words.n_rows() < 16 && panel + 2 <= end {
                tiles::<V, U, 2>(rows, weight, panel, output);
                panel += 2;
            } else {
                tiles::<V, U, 1>(rows, weight, panel, output);
                panel += 1;
            }
        }
    }
}

/// All rows times `P` panels.
#[inline(always)]
unsafe fn tiles<V: Vector, U: Unpack<V>, const P: usize>(
    rows: &IntegerRows,
    weight: &Integers,
    panel: usize,
    output: &Output<'_>,
) {
    let mut row = 0;
    while row < rows.words.n_rows() {
        let left = rows.words.n_rows() - row;
        let height = match left {
            16.. if V::HAS_32_REGISTERS && P == 1 => 16,
            8.. if V::HAS_32_REGISTERS && P <= 2 => 8,
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        let n_vectors = rows.n_quads / U::FORM.quads_per_vector();
        let ahead = match (row, left - height) {
            (0, 0) => PREFETCH,
            (_, 0) => P * n_vectors,
            _ => 0,
        };
        // SAFETY: passed on from the caller.
        unsafe {
            match height {
                16 => tile::<V, U, 16, P>(rows, weight, row, panel, ahead, output),
                8 => tile::<V, U, 8, P>(rows, weight, row, panel, ahead, output),
                4 => tile::<V, U, 4, P>(rows, weight, row, panel, ahead, output),
                2 => tile::<V, U, 2, P>(rows, weight, row, panel, ahead, output),
                _ => tile::<V, U, 1, P>(rows, weight, row, panel, ahead, output),
            }
        }
        row += height;
    }
}

/// `R` rows times `P` panels, asking for the weights `ahead` vectors on.
#[inline(always)]
unsafe fn tile<V: Vector, U: Unpack<V>, const R: usize, const P: usize>(
    rows: &IntegerRows,
    weight: &Integers,
    row: usize,
    panel: usize,
    ahead: usize,
    output: &Output<'_>,
) {
    let n_quads = rows.n_quads;
    let quads_per_vector = U::FORM.quads_per_vector();
    let (n_vectors, n_groups) = (n_quads / quads_per_vector, weight.n_groups);
    let vectors_per_group = U::FORM.quads_per_group(n_quads) / quads_per_vector;
    let inputs: [&[f32]; R] = std::array::from_fn(|r| rows.words.row(row + r));
    let vectors = &weight.words[panel * n_vectors..(panel + P) * n_vectors];
    let scales = &weight.scales[panel * n_groups..(panel + P) * n_groups];
    assert!(inputs.iter().all(|words| words.len() == n_quads + n_groups + 1));
    // SAFETY: passed on from the caller.
    let mut sums = [[unsafe { V::splat(0.0) }; P]; R];
    for group in 0..n_groups {
        let mut dots: [[V::Ints; P]; R] = std::array::from_fn(|r| {
            // SAFETY: passed on from the caller.
            [unsafe { V::ints(inputs[r][n_quads + group].to_bits() as i32) }; P]
        });
        for vector in group * vectors_per_group..((group + 1) * vectors_per_group).min(n_vectors) {
            // SAFETY: `vector < n_vectors`, there are `P * n_vectors` vectors of weights, and `n_quads` words of inputs in
            // each row, which are `quads_per_vector` for each vector; the rest is passed on.
            unsafe {
                let weights: [U::Quads; P] = std::array::from_fn(|p| {
                    let place = vectors.as_ptr().add(p * n_vectors + vector);
                    V::prefetch(place.wrapping_add(ahead).cast());
                    U::load(&*place)
                });
                for quad in 0..quads_per_vector {
                    for (dots, inputs) in dots.iter_mut().zip(inputs) {
                        let input = *inputs.get_unchecked(vector * quads_per_vector + quad);
                        for (dot, weights) in dots.iter_mut().zip(&weights) {
                            *dot = V::add_quads(*dot, *weights.as_ref().get_unchecked(quad), input);
                        }
                    }
                }
            }
        }
        for (sums, dots) in sums.iter_mut().zip(dots) {
            for (p, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
                // SAFETY: passed on from the caller.
                *sum = unsafe { V::from_ints(dot).mul_add(V::load(&scales[p * n_groups + group]), *sum) };
            }
        }
    }
    let mut lanes = [0.0; PANEL];
    for (r, (sums, inputs)) in sums.iter().zip(inputs).enumerate() {
        let scale = inputs[n_quads + n_groups];
        for (p, sum) in sums.iter().enumerate() {
            // SAFETY: passed on from the caller.
            unsafe {
                sum.store(&mut lanes);
                output.write(row + r, panel + p, &lanes.map(|lane| lane * scale));
            }
        }
    }
}
