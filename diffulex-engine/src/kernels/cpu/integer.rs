//! `x W^T` in integers: rows quantized to int8, exact sums of 32 bits, one scale per row and per output (and group).
//!
//! What a row's integers add up to depends on nothing else: not on the rows beside it, the threads or the instructions.

use std::marker::PhantomData;
use std::ops::Range;

use super::linear::Output;
use super::packed::{BYTES, Integers, PANEL, QUAD};
use super::threads::Pool;
use super::tiles::{Tiles, product};
use super::vector::{Vector, for_each_instruction_set};
use super::{Rows, Simd};
use crate::kernels::quantization::{GROUP, ZERO_INT4, ZERO_INT8, inverse, nearest, scale_int8};

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
    unsafe { product::<V, _>(&Products::<Int8> { rows, weight, output, unpack: PhantomData }, start, end) };
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
    unsafe { product::<V, _>(&Products::<Int4> { rows, weight, output, unpack: PhantomData }, start, end) };
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

/// A product in integers.
struct Products<'a, U> {
    rows: &'a IntegerRows,
    weight: &'a Integers,
    output: &'a Output<'a>,
    unpack: PhantomData<U>,
}

impl<U> Products<'_, U> {
    /// Adds the products of some vectors of `P` panels to the sums of `R` rows. See [`Tiles::add`].
    #[inline(always)]
    unsafe fn dots<V: Vector, const R: usize, const P: usize>(
        &self,
        row: usize,
        panel: usize,
        vectors: Range<usize>,
        ahead: isize,
        mut dots: [[V::Ints; P]; R],
    ) -> [[V::Ints; P]; R]
    where
        U: Unpack<V>,
    {
        let quads_per_vector = U::FORM.quads_per_vector();
        let n_vectors = self.rows.n_quads / quads_per_vector;
        let inputs: [&[f32]; R] = std::array::from_fn(|r| &self.rows.words.row(row + r)[..self.rows.n_quads]);
        let panels = &self.weight.words[panel * n_vectors..(panel + P) * n_vectors];
        assert!(vectors.end <= n_vectors);
        for vector in vectors {
            // SAFETY: `vector < n_vectors`, there are `P * n_vectors` vectors of weights, and `n_quads` words of inputs in
            // each row, which are `quads_per_vector` for each vector; the rest is passed on.
            unsafe {
                let place = panels.as_ptr().add(vector);
                let mut weights = [U::load(&*place); P];
                for (p, weights) in weights.iter_mut().enumerate() {
                    let place = place.add(p * n_vectors);
                    V::prefetch(place.wrapping_offset(ahead).cast());
                    *weights = U::load(&*place);
                }
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
        dots
    }

    /// Where the integer sums of a row's group begin.
    fn start_of(&self, row: usize, group: usize) -> i32 {
        self.rows.words.row(row)[self.rows.n_quads + group].to_bits() as i32
    }

    /// Multiplies with the row's scale and writes.
    #[inline(always)]
    unsafe fn write<V: Vector>(&self, row: usize, panel: usize, sum: V) {
        let scale = self.rows.words.row(row)[self.rows.n_quads + self.weight.n_groups];
        let mut lanes = [0.0; PANEL];
        // SAFETY: passed on from the caller.
        unsafe {
            sum.store(&mut lanes);
            self.output.write(row, panel, &lanes.map(|lane| lane * scale));
        }
    }
}

impl<V: Vector> Tiles<V> for Products<'_, Int8> {
    type Sum = V::Ints;

    #[inline(always)]
    fn n_rows(&self) -> usize {
        self.rows.words.n_rows()
    }

    #[inline(always)]
    fn n_vectors(&self) -> usize {
        self.rows.n_quads
    }

    #[inline(always)]
    unsafe fn start(&self, row: usize) -> V::Ints {
        // SAFETY: passed on from the caller.
        unsafe { V::ints(self.start_of(row, 0)) }
    }

    #[inline(always)]
    unsafe fn add<const R: usize, const P: usize>(
        &self,
        row: usize,
        panel: usize,
        vectors: Range<usize>,
        ahead: isize,
        sums: [[V::Ints; P]; R],
    ) -> [[V::Ints; P]; R] {
        // SAFETY: passed on from the caller.
        unsafe { self.dots::<V, R, P>(row, panel, vectors, ahead, sums) }
    }

    #[inline(always)]
    unsafe fn finish(&self, row: usize, panel: usize, sum: V::Ints) {
        // SAFETY: passed on from the caller.
        unsafe {
            self.write(row, panel, V::from_ints(sum).mul_add(V::load(&self.weight.scales[panel]), V::splat(0.0)))
        };
    }
}

impl<V: Vector> Tiles<V> for Products<'_, Int4> {
    type Sum = V;

    #[inline(always)]
    fn n_rows(&self) -> usize {
        self.rows.words.n_rows()
    }

    #[inline(always)]
    fn n_vectors(&self) -> usize {
        self.rows.n_quads / Form::Int4.quads_per_vector()
    }

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
        let n_groups = self.weight.n_groups;
        let vectors_per_group = Form::Int4.quads_per_group(self.rows.n_quads) / Form::Int4.quads_per_vector();
        let scales = &self.weight.scales[panel * n_groups..(panel + P) * n_groups];
        for start in vectors.clone().step_by(vectors_per_group) {
            let group = start / vectors_per_group;
            // SAFETY: passed on from the caller.
            unsafe {
                let starts = std::array::from_fn(|r| [V::ints(self.start_of(row + r, group)); P]);
                let end = (start + vectors_per_group).min(vectors.end);
                let dots = self.dots::<V, R, P>(row, panel, start..end, ahead, starts);
                for (sums, dots) in sums.iter_mut().zip(dots) {
                    for (p, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
                        *sum = V::from_ints(dot).mul_add(V::load(&scales[p * n_groups + group]), *sum);
                    }
                }
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn finish(&self, row: usize, panel: usize, sum: V) {
        // SAFETY: passed on from the caller.
        unsafe { self.write(row, panel, sum) };
    }
}
