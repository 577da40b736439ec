//! Weights packed once at load, in the order in which products read them.
//!
//! A matrix is cut into panels of [`PANEL`] outputs, each `[n_in][PANEL]`, several inputs to a word where they are smaller than 32
//! bits, so that one step along the inputs reads one vector of weights and serves every row of a tile. [`Weights`] has the order of panels.

use crate::cpu::isa::bf16::{pair_bf16, unpair_bf16};
use crate::cpu::packing::aligned::CACHE_LINE;
use crate::cpu::packing::groups::{Form, Integers};
use crate::cpu::packing::panels::{PANEL, Weights};
use crate::cpu::pool::threads::Pool;
use crate::{WeightData, WeightType};

/// Bytes of a packed weight `[n_out, n_in]`.
pub(crate) fn packed_bytes(n_out: usize, n_in: usize, weight_type: WeightType) -> usize {
    let of_output = match weight_type {
        WeightType::F32 => size_of::<f32>() * n_in,
        WeightType::Bf16 => size_of::<u32>() * n_in.div_ceil(2),
        WeightType::Int8 => Form::Int8.row_bytes(n_in),
        WeightType::Int4 => Form::Int4.row_bytes(n_in),
        WeightType::Blocks(kind) => Form::Blocks(kind).row_bytes(n_in),
    };
    n_out.next_multiple_of(PANEL) * of_output
}

/// The same with what holds it, which is most of the memory of small ones.
pub(crate) fn held_bytes(n_out: usize, n_in: usize, weight_type: WeightType) -> usize {
    // Integers, and units and factors of scales and of offsets, each with room to begin with a line.
    let n_allocations = if weight_type.is_integer() { 5 } else { 1 };
    packed_bytes(n_out, n_in, weight_type) + n_allocations * CACHE_LINE + size_of::<PackedMatrix>()
}

/// A weight `[n_out, n_in]`, packed. Outputs beyond `n_out` in the last panel are zero.
pub struct PackedMatrix {
    n_out: usize,
    n_in: usize,
    pub(crate) panels: Panels,
}

pub(crate) enum Panels {
    F32(Weights<[f32; PANEL]>),
    /// Two inputs to a word, the first in its lower half; a last odd input is paired with zero.
    Bf16(Weights<[u32; PANEL]>),
    Integers(Integers),
}

impl PackedMatrix {
    /// Packs `n_out * n_in` values, which [`WeightType::check`] has accepted. They are widened a panel at a time, so that a
    /// matrix is never in memory twice.
    pub(crate) fn pack(pool: &Pool, data: WeightData<'_>, n_out: usize, n_in: usize, weight_type: WeightType) -> Self {
        assert_eq!(data.n_values(), n_out * n_in, "a matrix of {n_out} x {n_in}");
        let row = |out: usize| data.slice(out * n_in..(out + 1) * n_in).to_f32();
        let panels = match weight_type {
            WeightType::F32 => Panels::F32(Weights::<[f32; PANEL]>::pack(pool, n_out, n_in, |out, lane, vectors| {
                for (vector, value) in vectors.zip(row(out)) {
                    vector[lane] = value;
                }
            })),
            WeightType::Bf16 => {
                Panels::Bf16(Weights::<[u32; PANEL]>::pack(pool, n_out, n_in.div_ceil(2), |out, lane, vectors| {
                    for (vector, pair) in vectors.zip(row(out).chunks(2)) {
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
                other => panic!("{} cannot be packed as {}", other.weight_type().name(), kind.name()),
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

    #[cfg(test)]
    fn n_bytes(&self) -> usize {
        match &self.panels {
            Panels::F32(weights) => weights.n_bytes(),
            Panels::Bf16(weights) => weights.n_bytes(),
            Panels::Integers(Integers { words, scales, offsets, .. }) => {
                words.n_bytes() + scales.n_bytes() + offsets.n_bytes()
            }
        }
    }

    /// Writes the weights of one output, which is a row of an embedding table.
    pub(crate) fn unpack_row(&self, out: usize, row: &mut [f32]) {
        let (panel, lane) = (out / PANEL, out % PANEL);
        match &self.panels {
            Panels::F32(panels) => {
                for (value, vector) in row.iter_mut().zip(panels.panel(panel)) {
                    *value = vector[lane];
                }
            }
            Panels::Bf16(panels) => {
                for (values, vector) in row.chunks_mut(2).zip(panels.panel(panel)) {
                    for (value, widened) in values.iter_mut().zip(unpair_bf16(vector[lane])) {
                        *value = widened;
                    }
                }
            }
            Panels::Integers(integers) => integers.unpack_row(panel, lane, row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockType;

    #[test]
    fn a_packed_matrix_has_the_bytes_that_are_forecast() {
        let pool = Pool::new(1).unwrap();
        let types = [WeightType::F32, WeightType::Bf16, WeightType::Int8, WeightType::Int4];
        for weight_type in types {
            for (n_out, n_in) in [(1, 1), (16, 64), (17, 65), (33, 130), (50, 7)] {
                let values = vec![0; 4 * n_out * n_in];
                let packed = PackedMatrix::pack(&pool, WeightData::F32(&values), n_out, n_in, weight_type);
                assert_eq!(packed.n_bytes(), packed_bytes(n_out, n_in, weight_type), "{weight_type:?} {n_out} {n_in}");
            }
        }
        for kind in BlockType::ALL {
            let (n_out, n_in) = (20, 2 * kind.n_values());
            let blocks = vec![0; n_out * 2 * kind.n_bytes()];
            let data = WeightData::Blocks(kind, &blocks);
            let packed = PackedMatrix::pack(&pool, data, n_out, n_in, WeightType::Blocks(kind));
            assert_eq!(packed.n_bytes(), packed_bytes(n_out, n_in, WeightType::Blocks(kind)), "{kind:?}");
        }
    }
}
