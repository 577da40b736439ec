//! Small integers in groups, packed: each group of a row of weights has a scale, and in some forms an offset.
//!
//! A weight is `scale * (stored - zero) + offset`, where `stored` has no sign. A form says how many integers make a group
//! and how it has its scale: as a number of its own, or as a small factor of a number that some groups share, which is how
//! GGUF's blocks have it and takes a fifth of the memory.

use crate::cpu::isa::vector::Vector;
use crate::cpu::packing::aligned::Aligned;
use crate::cpu::packing::panels::{BYTES, PANEL, QUAD, Weights, pack_rows};
use crate::cpu::pool::threads::Pool;
use crate::quantization::{GROUP, quantize_int4, quantize_int8, scale_int4, scale_int8};
use crate::{BlockType, WeightData};

/// Offset of an integer of 8 bits that is stored unsigned: products of bytes take one signed and one unsigned operand.
const ZERO_INT8: i32 = 128;

/// Offset of an integer of 4 bits that is stored unsigned.
const ZERO_INT4: i32 = 8;

/// Format of integer weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// 8 bits, one group to a row.
    Int8,
    /// 4 bits, groups of [`GROUP`].
    Int4,
    /// Those of a kind of block.
    Blocks(BlockType),
}

impl Form {
    /// Quads of inputs to a vector of weights. Two where integers have 4 bits: one in the lower halves of the bytes, the
    /// next in the upper ones.
    pub(crate) const fn quads_per_vector(self) -> usize {
        match self {
            Self::Int8 | Self::Blocks(BlockType::Q8_0 | BlockType::Q6K) => 1,
            Self::Int4 | Self::Blocks(BlockType::Q4K) => 2,
        }
    }

    /// Quads of a row of `n_in`, as many as fill vectors.
    pub(crate) const fn n_quads(self, n_in: usize) -> usize {
        n_in.div_ceil(QUAD * self.quads_per_vector()) * self.quads_per_vector()
    }

    /// Quads of a group, where a row has `n_quads`.
    pub(crate) const fn quads_per_group(self, n_quads: usize) -> usize {
        match self {
            Self::Int8 => n_quads,
            Self::Int4 => GROUP / QUAD,
            Self::Blocks(kind) => kind.group() / QUAD,
        }
    }

    /// Groups per unit, the number that their scales are multiples of; 1 if each group has its own.
    pub(crate) const fn groups_per_unit(self) -> usize {
        match self {
            Self::Int8 | Self::Int4 => 1,
            Self::Blocks(kind) => kind.n_values() / kind.group(),
        }
    }

    /// The byte that represents 0.
    pub(crate) const fn zero(self) -> i32 {
        match self {
            Self::Int8 | Self::Blocks(BlockType::Q8_0 | BlockType::Q6K) => ZERO_INT8,
            Self::Int4 => ZERO_INT4,
            Self::Blocks(BlockType::Q4K) => 0,
        }
    }

    /// Bytes of an output of `n_in` inputs, with its scales and offsets.
    pub(crate) const fn row_bytes(self, n_in: usize) -> usize {
        let n_groups = match self {
            Self::Int8 => 1,
            Self::Int4 => n_in.div_ceil(GROUP),
            Self::Blocks(kind) => n_in / kind.group(),
        };
        let n_shared = self.groups_per_unit();
        let factors = if n_shared > 1 { n_groups } else { 0 };
        let multiples = size_of::<f32>() * (n_groups / n_shared) + factors;
        let integers = QUAD * self.n_quads(n_in) / self.quads_per_vector();
        integers + multiples * if self.has_offsets() { 2 } else { 1 }
    }

    /// Groups have an offset.
    pub(crate) const fn has_offsets(self) -> bool {
        matches!(self, Self::Blocks(BlockType::Q4K))
    }
}

/// Bits of half a byte.
const HALF: usize = 4;

/// A matrix of small integers. Inputs beyond the last are anything, as they meet inputs of 0.
pub(crate) struct Integers {
    pub(crate) form: Form,
    /// Quads of bytes, or of halves of bytes.
    pub(crate) words: Weights<[u8; BYTES]>,
    pub(crate) scales: Multiples,
    /// Empty where the form has none.
    pub(crate) offsets: Multiples,
}

/// A number for each group of each output: `units`, or `factors` of it where groups share one.
#[derive(Default)]
pub(crate) struct Multiples {
    /// `[n_panels][n_groups / groups_per_unit][PANEL]`.
    units: Aligned<[f32; PANEL]>,
    /// `[n_panels][n_groups][PANEL]`; empty where no groups share a unit.
    factors: Aligned<[i8; PANEL]>,
}

impl Multiples {
    #[cfg(test)]
    pub(crate) fn n_bytes(&self) -> usize {
        size_of_val(&*self.units) + size_of_val(&*self.factors)
    }

    /// The numbers of the group `index`, counted over all panels.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub(crate) unsafe fn load<V: Vector>(&self, index: usize, groups_per_unit: usize) -> V {
        // SAFETY: passed on from the caller.
        unsafe {
            let unit = V::load(&self.units[index / groups_per_unit]);
            if groups_per_unit == 1 {
                return unit;
            }
            let mut factors = [0.0; PANEL];
            for (factor, given) in factors.iter_mut().zip(&self.factors[index]) {
                *factor = f32::from(*given);
            }
            V::load(&factors).mul_add(unit, V::splat(0.0))
        }
    }

    fn lane(&self, index: usize, groups_per_unit: usize, lane: usize) -> f32 {
        let unit = self.units[index / groups_per_unit][lane];
        self.factors.get(index).map_or(unit, |factors| f32::from(factors[lane]) * unit)
    }
}

impl Integers {
    /// Rounds to int8.
    pub(crate) fn int8(pool: &Pool, data: WeightData<'_>, n_out: usize, n_in: usize) -> Self {
        let row = |out: usize| data.slice(out * n_in..(out + 1) * n_in).to_f32();
        let units = pack_rows(pool, n_out, 1, |out, lane, scales: &mut [[f32; PANEL]]| {
            scales[0][lane] = scale_int8(&row(out));
        });
        let words = Self::pack(pool, Form::Int8, n_out, n_in, |out, lane| {
            quantize_int8(&row(out), units[out / PANEL][lane]).collect()
        });
        let scales = Multiples { units, ..Multiples::default() };
        Self { form: Form::Int8, words, scales, offsets: Multiples::default() }
    }

    /// Rounds to int4.
    pub(crate) fn int4(pool: &Pool, data: WeightData<'_>, n_out: usize, n_in: usize) -> Self {
        let row = |out: usize| data.slice(out * n_in..(out + 1) * n_in).to_f32();
        let n_groups = n_in.div_ceil(GROUP);
        let units = pack_rows(pool, n_out, n_groups, |out, lane, scales: &mut [[f32; PANEL]]| {
            for (scale, group) in scales.iter_mut().zip(row(out).chunks(GROUP)) {
                scale[lane] = scale_int4(group);
            }
        });
        let words = Self::pack(pool, Form::Int4, n_out, n_in, |out, lane| {
            let row = row(out);
            let groups = row.chunks(GROUP).zip(&units[out / PANEL * n_groups..]);
            groups.flat_map(|(group, scale)| quantize_int4(group, scale[lane])).collect()
        });
        let scales = Multiples { units, ..Multiples::default() };
        Self { form: Form::Int4, words, scales, offsets: Multiples::default() }
    }

    /// Takes the integers and scales of blocks as they are.
    pub(crate) fn blocks(pool: &Pool, kind: BlockType, bytes: &[u8], n_out: usize, n_in: usize) -> Self {
        let form = Form::Blocks(kind);
        let blocks_per_row = n_in / kind.n_values();
        let row = |out: usize| {
            let row_bytes = blocks_per_row * kind.n_bytes();
            bytes[out * row_bytes..(out + 1) * row_bytes].chunks_exact(kind.n_bytes())
        };
        let words =
            Self::pack(pool, form, n_out, n_in, |out, _| row(out).flat_map(|block| kind.values(block)).collect());
        let units = |of: fn(&[u8], BlockType) -> f32| {
            pack_rows(pool, n_out, blocks_per_row, |out, lane, units: &mut [[f32; PANEL]]| {
                for (unit, block) in units.iter_mut().zip(row(out)) {
                    unit[lane] = of(block, kind);
                }
            })
        };
        let n_shared = form.groups_per_unit();
        let factors = |of: fn(&[u8], BlockType) -> [i8; BlockType::MOST_GROUPS]| {
            if n_shared == 1 {
                return Aligned::default();
            }
            pack_rows(pool, n_out, blocks_per_row * n_shared, |out, lane, factors: &mut [[i8; PANEL]]| {
                for (factors, block) in factors.chunks_exact_mut(n_shared).zip(row(out)) {
                    for (factor, given) in factors.iter_mut().zip(of(block, kind)) {
                        factor[lane] = given;
                    }
                }
            })
        };
        let scales = Multiples {
            units: units(|block, kind| kind.block_scales(block).scale),
            factors: factors(|block, kind| kind.block_scales(block).factors),
        };
        let offsets = if form.has_offsets() {
            Multiples {
                units: units(|block, kind| -kind.block_scales(block).min),
                factors: factors(|block, kind| kind.block_scales(block).min_factors),
            }
        } else {
            Multiples::default()
        };
        Self { form, words, scales, offsets }
    }

    /// The words of a matrix, given the integers of each output and its lane.
    fn pack(
        pool: &Pool,
        form: Form,
        n_out: usize,
        n_in: usize,
        integers: impl Fn(usize, usize) -> Vec<i8> + Sync,
    ) -> Weights<[u8; BYTES]> {
        let n_quads = form.quads_per_vector();
        Weights::<[u8; BYTES]>::pack(pool, n_out, form.n_quads(n_in) / n_quads, |out, lane, vectors| {
            for (vector, values) in vectors.zip(integers(out, lane).chunks(n_quads * QUAD)) {
                for (quad, values) in values.chunks(QUAD).enumerate() {
                    for (byte, value) in vector[lane * QUAD..].iter_mut().zip(values) {
                        *byte |= ((i32::from(*value) + form.zero()) as u8) << (HALF * quad);
                    }
                }
            }
        })
    }

    /// Writes the weights of one output of one panel.
    pub(crate) fn unpack_row(&self, panel: usize, lane: usize, row: &mut [f32]) {
        let form = self.form;
        let n_quads = form.n_quads(row.len());
        let (quads_per_group, n_shared) = (form.quads_per_group(n_quads), form.groups_per_unit());
        let n_values = form.quads_per_vector() * QUAD;
        let mut vectors = self.words.panel(panel);
        let first = panel * n_quads.div_ceil(quads_per_group);
        for (group, values) in row.chunks_mut(quads_per_group * QUAD).enumerate() {
            let scale = self.scales.lane(first + group, n_shared, lane);
            let offset = if form.has_offsets() { self.offsets.lane(first + group, n_shared, lane) } else { 0.0 };
            // A group begins with a vector.
            for (values, vector) in values.chunks_mut(n_values).zip(&mut vectors) {
                for (quad, values) in values.chunks_mut(QUAD).enumerate() {
                    for (value, byte) in values.iter_mut().zip(&vector[lane * QUAD..]) {
                        let stored = if form.quads_per_vector() == 1 { *byte } else { byte >> (HALF * quad) & 0xf };
                        *value = scale * (i32::from(stored) - form.zero()) as f32 + offset;
                    }
                }
            }
        }
    }
}
