//! Weights packed once at load, in the order in which products read them.
//!
//! A matrix is cut into panels of [`PANEL`] outputs, each `[n_in][PANEL]`, several inputs to a word where they are smaller than 32
//! bits, so that one step along the inputs reads one vector of weights and serves every row of a tile. [`Weights`] has the order of panels.

use crate::cpu::isa::bf16::{pair_bf16, unpair_bf16};
use crate::cpu::packing::groups::Integers;
use crate::cpu::packing::panels::{PANEL, Weights};
use crate::cpu::pool::threads::Pool;
use crate::{WeightData, WeightType};

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
