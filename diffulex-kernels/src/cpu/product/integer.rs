//! `x W^T` in integers: rows quantized to int8, exact sums of 32 bits over each group, scaled per group and per row.
//!
//! The sum of a row's integers does not depend on other rows, threads or instructions.

use std::marker::PhantomData;
use std::ops::Range;

use crate::BlockType;
use crate::cpu::isa::sets::for_each_instruction_set;
use crate::cpu::isa::simd::Simd;
use crate::cpu::isa::vector::Vector;
use crate::cpu::packing::groups::{Form, Integers};
use crate::cpu::packing::panels::{BYTES, PANEL, QUAD, TileWeights};
use crate::cpu::pool::threads::Pool;
use crate::cpu::product::lines::{LINE, Lines, RowLines, TileLines};
use crate::cpu::product::output::Output;
use crate::cpu::product::tiles::{self, Tiles};
use crate::cpu::rows::Rows;
use crate::quantization::{inverse, scale_of_magnitudes};

/// Rows made ready: of each, its quads of int8; then for each group, where a sum begins so that weights stored unsigned need
/// no correction, or, for weights with offsets, what these are multiplied with; then its scale.
pub(crate) struct IntegerRows {
    lines: Lines,
    n_quads: usize,
    n_groups: usize,
    pub(crate) form: Form,
}

impl IntegerRows {
    pub(crate) fn new(pool: &Pool, simd: Simd, x: &Rows, form: Form) -> Self {
        let n_quads = form.n_quads(x.width());
        let n_groups = n_quads.div_ceil(form.quads_per_group(n_quads));
        let n_lines = n_quads.div_ceil(LINE) + (n_groups + 1).div_ceil(LINE);
        let lines = Lines::of(pool, x, n_lines, |row, lines| quantize(simd, row, lines, n_quads, form));
        Self { lines, n_quads, n_groups, form }
    }

    /// A row's word for a group: the start of its integer sums, or the factor of its offsets.
    #[inline(always)]
    fn start(&self, group: usize) -> usize {
        self.n_quads.next_multiple_of(LINE) + group
    }

    #[inline(always)]
    fn scale(&self, row: usize) -> f32 {
        self.lines.word(row, self.start(self.n_groups))
    }
}

for_each_instruction_set! {
    of floats:
    /// One row of [`IntegerRows`].
    fn quantize => quantize_body(row: &[f32], lines: RowLines<'_>, n_quads: usize, form: Form)
}

#[inline(always)]
unsafe fn quantize_body<V: Vector>(row: &[f32], mut lines: RowLines<'_>, n_quads: usize, form: Form) {
    /// Vectors of values in a line of quads.
    const VECTORS: usize = LINE * QUAD / PANEL;

    // SAFETY: passed on from the caller.
    let scale = unsafe { scale_of::<V>(row) };
    let inverse = inverse(scale);
    let quads_per_group = form.quads_per_group(n_quads);
    let mut ends = Words { line: n_quads.div_ceil(LINE), words: [0.0; LINE], n_words: 0 };
    // NaN and infinity have no integer; neither have values with a scale that is too small to be inverted.
    if !inverse.is_finite() || !scale.is_finite() {
        (0..ends.line).for_each(|line| lines.set(line, [0.0; LINE]));
        (0..n_quads.div_ceil(quads_per_group)).for_each(|_| ends.push(&mut lines, 0.0));
        ends.push(&mut lines, if scale.is_finite() { 0.0 } else { f32::NAN });
        return ends.flush(&mut lines);
    }

    let vectors_per_group = quads_per_group.div_ceil(PANEL / QUAD);
    let mut sums = [0i32; PANEL];
    let mut n_left = vectors_per_group;
    let start_of = |sums: [i32; PANEL]| {
        let sum = sums.iter().sum::<i32>();
        f32::from_bits(if form.has_offsets() { sum } else { -form.zero() * sum } as u32)
    };
    for (line, values) in row.chunks(LINE * QUAD).enumerate() {
        let (vectors, rest) = values.as_chunks::<PANEL>();
        // Where a row ends inside a vector, zeros fill it.
        let mut last = [0.0; PANEL];
        last[..rest.len()].copy_from_slice(rest);
        let vectors = vectors.iter().chain((!rest.is_empty()).then_some(&last));
        let mut bytes = [[0; PANEL]; VECTORS];
        for (bytes, vector) in bytes.iter_mut().zip(vectors) {
            // SAFETY: passed on from the caller.
            *bytes = unsafe { V::quantize(vector, inverse, &mut sums) };
            n_left -= 1;
            if n_left == 0 {
                ends.push(&mut lines, start_of(std::mem::take(&mut sums)));
                n_left = vectors_per_group;
            }
        }
        lines.set(line, bytemuck::cast(bytes));
    }
    if n_left < vectors_per_group {
        ends.push(&mut lines, start_of(sums));
    }
    ends.push(&mut lines, scale);
    ends.flush(&mut lines);
}

/// Words that are written one after another, a line at a time.
struct Words {
    line: usize,
    words: [f32; LINE],
    n_words: usize,
}

impl Words {
    #[inline(always)]
    fn push(&mut self, lines: &mut RowLines<'_>, word: f32) {
        self.words[self.n_words] = word;
        self.n_words += 1;
        if self.n_words == LINE {
            lines.set(self.line, self.words);
            (self.line, self.n_words) = (self.line + 1, 0);
        }
    }

    #[inline(always)]
    fn flush(self, lines: &mut RowLines<'_>) {
        if self.n_words > 0 {
            lines.set(self.line, self.words);
        }
    }
}

/// The int8 scale of a row.
#[inline(always)]
unsafe fn scale_of<V: Vector>(row: &[f32]) -> f32 {
    let (vectors, rest) = row.as_chunks::<PANEL>();
    let mut largest = [0; PANEL];
    for vector in vectors {
        // SAFETY: passed on from the caller.
        unsafe { V::magnitudes(vector, &mut largest) };
    }
    scale_of_magnitudes(rest.iter().map(|value| value.abs().to_bits()).chain(largest))
}

/// All rows times the panels `start..end`, which belong to the caller's task.
pub(crate) fn product(
    simd: Simd,
    rows: &IntegerRows,
    weight: &Integers,
    start: usize,
    end: usize,
    output: &Output<'_>,
) {
    match weight.form {
        Form::Int8 => product_int8(simd, rows, weight, start, end, output),
        Form::Int4 => product_int4(simd, rows, weight, start, end, output),
        Form::Blocks(BlockType::Q8_0) => product_q8_0(simd, rows, weight, start, end, output),
        Form::Blocks(BlockType::Q4K) => product_q4_k(simd, rows, weight, start, end, output),
        Form::Blocks(BlockType::Q6K) => product_q6_k(simd, rows, weight, start, end, output),
    }
}

/// The part of each output in a vector of weights: [`Form::quads_per_vector`] quads of unsigned bytes.
trait Unpack<V: Vector> {
    const FORM: Form;
    type Quads: Copy + AsRef<[V::Quads]>;
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn load(bytes: &[u8; BYTES]) -> Self::Quads;
}

/// A quad of bytes.
#[inline(always)]
unsafe fn bytes<V: Vector>(bytes: &[u8; BYTES]) -> [V::Quads; 1] {
    // SAFETY: passed on from the caller.
    [unsafe { V::load_quads(bytes) }]
}

/// Two quads of halves of bytes.
#[inline(always)]
unsafe fn halves<V: Vector>(bytes: &[u8; BYTES]) -> [V::Quads; 2] {
    // SAFETY: passed on from the caller.
    unsafe { V::load_halves(bytes) }
}

/// Declares the product of a form.
macro_rules! product_of {
    ($name:ident: $form:expr, $tiles:ident of $n_quads:literal x $load:ident, $product:ident => $body:ident) => {
        struct $name;

        impl<V: Vector> Unpack<V> for $name {
            const FORM: Form = $form;
            type Quads = [V::Quads; $n_quads];
            #[inline(always)]
            unsafe fn load(bytes: &[u8; BYTES]) -> Self::Quads {
                // SAFETY: passed on from the caller.
                unsafe { $load::<V>(bytes) }
            }
        }

        for_each_instruction_set! {
            of quads:
            fn $product => $body(
                rows: &IntegerRows,
                weight: &Integers,
                start: usize,
                end: usize,
                output: &Output<'_>,
            )
        }

        #[inline(always)]
        unsafe fn $body<V: Vector>(
            rows: &IntegerRows,
            weight: &Integers,
            start: usize,
            end: usize,
            output: &Output<'_>,
        ) {
            let products = Products::<$name> { rows, weight, output, unpack: PhantomData };
            // SAFETY: passed on from the caller.
            unsafe {
                tiles::product::<V, _>(&$tiles(products), rows.lines.n_rows(), weight.words.n_vectors(), start, end)
            };
        }
    };
}

product_of!(Int8: Form::Int8, Whole of 1 x bytes, product_int8 => product_int8_body);
product_of!(Int4: Form::Int4, Grouped of 2 x halves, product_int4 => product_int4_body);
product_of!(Q8: Form::Blocks(BlockType::Q8_0), Grouped of 1 x bytes, product_q8_0 => product_q8_0_body);
product_of!(Q4K: Form::Blocks(BlockType::Q4K), Grouped of 2 x halves, product_q4_k => product_q4_k_body);
product_of!(Q6K: Form::Blocks(BlockType::Q6K), Grouped of 1 x bytes, product_q6_k => product_q6_k_body);

/// A product in integers.
struct Products<'a, U> {
    rows: &'a IntegerRows,
    weight: &'a Integers,
    output: &'a Output<'a>,
    unpack: PhantomData<U>,
}

impl<U> Products<'_, U> {
    /// Adds the products of some vectors of `P` panels, which meet one line of each row, to the sums of `R` rows. See
    /// [`Tiles::add`].
    #[inline(always)]
    unsafe fn dots<V: Vector, const R: usize, const P: usize>(
        &self,
        rows: TileLines<'_, R>,
        panels: TileWeights<'_, [u8; BYTES], P>,
        vectors: Range<usize>,
        ahead: isize,
        mut dots: [[V::Ints; P]; R],
    ) -> [[V::Ints; P]; R]
    where
        U: Unpack<V>,
    {
        let quads_per_vector = U::FORM.quads_per_vector();
        let (line, first) = (vectors.start * quads_per_vector / LINE, vectors.start * quads_per_vector % LINE);
        let inputs = rows.line(line);
        assert!(vectors.end <= self.weight.words.n_vectors() && first + vectors.len() * quads_per_vector <= LINE);
        let mut words = inputs.as_ptr().cast::<f32>().wrapping_add(first);
        for vector in vectors {
            // SAFETY: `vector < n_vectors`, and there are `R` lines of inputs in which the words of these vectors end; the rest
            // is passed on.
            unsafe {
                // No closures, which would be compiled without the vector instructions.
                let stored = panels.at(vector);
                let mut weights = [U::load(&stored[0]); P];
                for (weights, stored) in weights.iter_mut().zip(stored) {
                    V::prefetch(std::ptr::from_ref(stored).wrapping_offset(ahead).cast());
                    *weights = U::load(stored);
                }
                for quad in 0..quads_per_vector {
                    for (r, dots) in dots.iter_mut().enumerate() {
                        let input = *words.add(r * LINE + quad);
                        for (dot, weights) in dots.iter_mut().zip(&weights) {
                            *dot = V::add_quads(*dot, *weights.as_ref().get_unchecked(quad), input);
                        }
                    }
                }
                words = words.wrapping_add(quads_per_vector);
            }
        }
        dots
    }

    /// Multiplies with the row's scale and writes.
    #[inline(always)]
    unsafe fn write<V: Vector>(&self, row: usize, panel: usize, sum: V) {
        let scale = self.rows.scale(row);
        // SAFETY: passed on from the caller.
        unsafe {
            let mut sums = sum.lanes();
            for sum in &mut sums {
                *sum *= scale;
            }
            self.output.write(row, panel, sums);
        }
    }
}

/// Product with one group per row of weights: sums are integers to the end.
struct Whole<'a, U>(Products<'a, U>);

impl<V: Vector, U: Unpack<V>> Tiles<V> for Whole<'_, U> {
    type Sum = V::Ints;

    #[inline(always)]
    unsafe fn start(&self, row: usize) -> V::Ints {
        // SAFETY: passed on from the caller.
        unsafe { V::ints(self.0.rows.lines.word(row, self.0.rows.start(0)).to_bits() as i32) }
    }

    #[inline(always)]
    unsafe fn add<const R: usize, const P: usize>(
        &self,
        row: usize,
        panel: usize,
        vectors: Range<usize>,
        ahead: isize,
        mut sums: [[V::Ints; P]; R],
    ) -> [[V::Ints; P]; R] {
        let rows = self.0.rows.lines.tile(row);
        let panels = self.0.weight.words.tile(panel);
        let vectors_per_line = LINE / U::FORM.quads_per_vector();
        for start in vectors.clone().step_by(vectors_per_line) {
            let line = start..vectors.end.min(start + vectors_per_line);
            // SAFETY: passed on from the caller.
            sums = unsafe { self.0.dots::<V, R, P>(rows, panels, line, ahead, sums) };
        }
        sums
    }

    #[inline(always)]
    unsafe fn finish(&self, row: usize, panel: usize, sum: V::Ints) {
        // SAFETY: passed on from the caller.
        unsafe {
            let scale = self.0.weight.scales.load::<V>(panel, 1);
            self.0.write(row, panel, V::from_ints(sum).mul_add(scale, V::splat(0.0)))
        };
    }
}

/// Product with several groups per row of weights: each group's integer sum is scaled before the next group.
struct Grouped<'a, U>(Products<'a, U>);

impl<V: Vector, U: Unpack<V>> Tiles<V> for Grouped<'_, U> {
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
        let Integers { scales, offsets, .. } = self.0.weight;
        let n_groups = self.0.rows.n_groups;
        let groups_per_unit = U::FORM.groups_per_unit();
        let rows = self.0.rows.lines.tile(row);
        let panels = self.0.weight.words.tile(panel);
        // A chunk begins with a group: 64 vectors are a multiple of every form's groups.
        let vectors_per_group = U::FORM.quads_per_group(self.0.rows.n_quads) / U::FORM.quads_per_vector();
        for start in vectors.clone().step_by(vectors_per_group) {
            let group = start / vectors_per_group;
            let word = self.0.rows.start(group);
            let starts = rows.line(word / LINE);
            // SAFETY: passed on from the caller.
            unsafe {
                let mut dots = [[V::ints(0); P]; R];
                if !U::FORM.has_offsets() {
                    for (dots, start) in dots.iter_mut().zip(starts) {
                        *dots = [V::ints(start[word % LINE].to_bits() as i32); P];
                    }
                }
                let end = (start + vectors_per_group).min(vectors.end);
                let dots = self.0.dots::<V, R, P>(rows, panels, start..end, ahead, dots);
                let (mut scale, mut offset) = ([V::splat(0.0); P], [V::splat(0.0); P]);
                for (p, (scale, offset)) in scale.iter_mut().zip(&mut offset).enumerate() {
                    let place = (panel + p) * n_groups + group;
                    *scale = scales.load(place, groups_per_unit);
                    if U::FORM.has_offsets() {
                        *offset = offsets.load(place, groups_per_unit);
                    }
                }
                for (sums, dots) in sums.iter_mut().zip(dots) {
                    for ((sum, dot), scale) in sums.iter_mut().zip(dots).zip(scale) {
                        *sum = V::from_ints(dot).mul_add(scale, *sum);
                    }
                }
                if U::FORM.has_offsets() {
                    for (sums, start) in sums.iter_mut().zip(starts) {
                        let input = V::splat(start[word % LINE].to_bits() as i32 as f32);
                        for (sum, offset) in sums.iter_mut().zip(offset) {
                            *sum = input.mul_add(offset, *sum);
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
        unsafe { self.0.write(row, panel, sum) };
    }
}
