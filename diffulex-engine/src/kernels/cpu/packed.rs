//! Weights packed once at load, in the order in which products read them.
//!
//! A matrix is cut into panels of [`PANEL`] outputs, each stored `[n_in][PANEL]`, several inputs to a word where they are
//! smaller than 32 bits, so that one step along the inputs reads one vector of weights and serves every row of a tile.

use super::groups::Integers;
use super::threads::Pool;
use super::vector::LANES;
use crate::kernels::{WeightData, WeightType};

/// Outputs of a panel: one vector.
pub(super) const PANEL: usize = LANES;

/// Bytes of a vector of integers.
pub(super) const BYTES: usize = 4 * PANEL;

/// Inputs to a word of int8 weights.
pub(super) const QUAD: usize = 4;

/// A weight `[n_out, n_in]`, packed. Outputs beyond `n_out` in the last panel are zero.
pub struct PackedMatrix {
    n_out: usize,
    n_in: usize,
    pub(super) panels: Panels,
}

pub(super) enum Panels {
    F32(Vec<[f32; PANEL]>),
    /// Two inputs to a word, the first in its lower half; a last odd input is paired with zero.
    Bf16(Vec<[u32; PANEL]>),
    Integers(Integers),
}

impl PackedMatrix {
    /// Packs `n_out * n_in` values. They are widened a panel at a time: a matrix never stands in memory twice.
    /// The data can be held so.
    pub(super) fn pack(pool: &Pool, data: WeightData<'_>, n_out: usize, n_in: usize, hold: WeightType) -> Self {
        assert_eq!(data.n_values(), n_out * n_in, "a matrix of {n_out} x {n_in}");
        let row = |out: usize| data.slice(out * n_in..(out + 1) * n_in).to_f32();
        let panels = match hold {
            WeightType::F32 => Panels::F32(pack_rows(pool, n_out, n_in, [0.0; PANEL], |out, lane, vectors| {
                for (vector, value) in vectors.iter_mut().zip(row(out)) {
                    vector[lane] = value;
                }
            })),
            WeightType::Bf16 => {
                Panels::Bf16(pack_rows(pool, n_out, n_in.div_ceil(2), [0; PANEL], |out, lane, vectors| {
                    for (vector, pair) in vectors.iter_mut().zip(row(out).chunks(2)) {
                        vector[lane] = pair_bf16(pair[0], pair.get(1).copied().unwrap_or(0.0));
                    }
                }))
            }
            WeightType::Int8 => Panels::Integers(Integers::int8(pool, data, n_out, n_in)),
            WeightType::Int4 => Panels::Integers(Integers::int4(pool, data, n_out, n_in)),
            WeightType::Blocks(kind) => match data {
                WeightData::Blocks(stored, bytes) if stored == kind => {
                    Panels::Integers(Integers::blocks(pool, kind, bytes, n_out, n_in))
                }
                other => panic!("{} held as {}", other.weight_type().name(), kind.name()),
            },
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
            Panels::Integers(integers) => integers.unpack_row(panel, lane, row),
        }
    }
}

/// Panels of `n_words` vectors, each `empty` at first. `write` sets one output's lane of the vectors of its panel.
pub(super) fn pack_rows<W: Copy + Send + Sync>(
    pool: &Pool,
    n_out: usize,
    n_words: usize,
    empty: W,
    write: impl Fn(usize, usize, &mut [W]) + Sync,
) -> Vec<W> {
    let mut panels = vec![empty; n_out.div_ceil(PANEL) * n_words];
    pool.chunks(&mut panels, n_words, |panel, vectors| {
        let first = panel * PANEL;
        for (lane, out) in (first..n_out.min(first + PANEL)).enumerate() {
            write(out, lane, vectors);
        }
    });
    panels
}

/// The bits of the nearest bfloat16, to even.
#[inline(always)]
pub(super) fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding could carry a NaN into a number.
    if value.is_nan() { 0x7fc0 } else { rounded as u16 }
}

/// The value that has these bits.
#[inline(always)]
pub(super) fn unbf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Two values as bfloat16; the first goes to the lower half.
#[inline(always)]
pub(super) fn pair_bf16(low: f32, high: f32) -> u32 {
    u32::from(bf16(low)) | u32::from(bf16(high)) << 16
}

/// The two values of a word.
#[inline(always)]
pub(super) fn unpair_bf16(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
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
