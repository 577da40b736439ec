//! The fast bodies for a CPU: packed weights, one thread pool, vector code chosen at run time.

mod attention;
mod experts;
mod groups;
mod integer;
mod linear;
mod packed;
mod rows;
mod simd;
mod threads;
mod tiles;
mod vector;

use super::routing::Routing;
use super::{
    Activation, AttentionBatch, Blend, CacheShape, GatedMlp, HeadNorm, LEAST_BLEND, Look, Ops, RopeTable, Summary,
    WeightData, WeightType, Weighted,
};
use crate::error::{LoadError, StepError};
use attention::LayerCache;
pub use packed::PackedMatrix;
pub use rows::{Buffers, Rows};
pub(crate) use simd::Simd;
use threads::Pool;

/// The CPU's kernels.
pub struct CpuOps {
    pool: Pool,
    simd: Simd,
    buffers: Buffers,
}

/// K and V of every layer.
pub struct CpuCache {
    layers: Vec<LayerCache>,
}

impl CpuOps {
    /// Kernels on `n_threads` threads, the caller's included; at least 1.
    pub fn new(n_threads: usize) -> Result<Self, LoadError> {
        Ok(Self { pool: Pool::new(n_threads)?, simd: Simd::detect(), buffers: Buffers::default() })
    }

    /// Kernels on one thread with the given instructions.
    #[cfg(test)]
    pub(crate) fn with_simd(simd: Simd) -> Self {
        Self { simd, ..Self::new(1).expect("a thread") }
    }

    /// The vector instructions in use, for messages.
    pub fn simd_name(&self) -> &'static str {
        self.simd.name()
    }
}

/// `activation(gate) * up`, in place of the gate.
fn activate(simd: Simd, gate: &mut [f32], up: &[f32], activation: Activation) {
    match activation {
        Activation::Silu => simd.silu_mul(gate, up),
        Activation::GeluTanh => simd.gelu_mul(gate, up),
    }
}

impl Ops for CpuOps {
    type Tensor = Rows;
    type Matrix = PackedMatrix;
    type Vector = Vec<f32>;
    type Cache = CpuCache;

    fn matrix(
        &self,
        data: WeightData<'_>,
        n_out: usize,
        n_in: usize,
        hold: WeightType,
    ) -> Result<PackedMatrix, StepError> {
        hold.check(data, n_in)?;
        Ok(PackedMatrix::pack(&self.pool, data, n_out, n_in, hold))
    }

    fn vector(&self, data: WeightData<'_>) -> Result<Vec<f32>, StepError> {
        Ok(data.to_f32())
    }

    fn cache(&self, layers: &[CacheShape]) -> Result<CpuCache, StepError> {
        Ok(CpuCache { layers: layers.iter().map(|shape| LayerCache::new(*shape)).collect() })
    }

    fn tensor(&self, values: &[f32], width: usize) -> Result<Rows, StepError> {
        let mut rows = Rows::new(&self.buffers, values.len() / width, width);
        rows.values_mut().copy_from_slice(values);
        Ok(rows)
    }

    fn embed(&self, table: &PackedMatrix, ids: &[u32]) -> Result<Rows, StepError> {
        let mut out = Rows::new(&self.buffers, ids.len(), table.n_in());
        for (row, id) in ids.iter().enumerate() {
            if *id as usize >= table.n_out() {
                return Err(StepError(format!("token id {id} is outside the vocabulary of {}", table.n_out())));
            }
            table.unpack_row(*id as usize, out.row_mut(row));
        }
        Ok(out)
    }

    fn blend(&self, x: &mut Rows, table: &PackedMatrix, blends: &[Blend]) -> Result<(), StepError> {
        let length = |row: &[f32]| row.iter().map(|value| value * value).sum::<f32>().sqrt();
        for blend in blends {
            let parts = self.embed(table, &blend.parts.iter().map(|(token, _)| *token).collect::<Vec<u32>>())?;
            let row = x.row_mut(blend.row as usize);
            row.fill(0.0);
            let mut wanted = 0.0;
            for (index, (_, weight)) in blend.parts.iter().enumerate() {
                let part = parts.row(index);
                row.iter_mut().zip(part).for_each(|(value, part)| *value += weight * part);
                wanted += weight * length(part);
            }
            if blend.keeps_length {
                let factor = wanted / length(row).max(LEAST_BLEND);
                row.iter_mut().for_each(|value| *value *= factor);
            }
        }
        Ok(())
    }

    fn embed_mixed(&self, table: &PackedMatrix, logits: &Rows) -> Result<Rows, StepError> {
        let mut weights = logits.clone();
        weights.each(&self.pool, |_, weights| {
            let top = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let scale = 1.0 / self.simd.exp_sub_sum(weights, top);
            weights.iter_mut().for_each(|weight| *weight *= scale);
        });
        Ok(linear::mix(&self.pool, &weights, table))
    }

    fn rms_norm(&self, x: &Rows, weight: &Vec<f32>, eps: f32) -> Result<Rows, StepError> {
        let mut out = x.scratch(x.n_rows(), x.width());
        out.each(&self.pool, |row, values| {
            values.copy_from_slice(x.row(row));
            self.simd.rms_norm(values, weight, eps);
        });
        Ok(out)
    }

    fn linears<const N: usize>(&self, x: &Rows, weights: [Weighted<'_, Self>; N]) -> Result<[Rows; N], StepError> {
        let weights = weights.map(|(weight, bias)| (weight, bias.map(Vec::as_slice)));
        Ok(linear::linears(&self.pool, self.simd, x, weights))
    }

    fn add(&self, x: &mut Rows, y: &Rows) -> Result<(), StepError> {
        x.each(&self.pool, |row, values| {
            for (x, y) in values.iter_mut().zip(y.row(row)) {
                *x += y;
            }
        });
        Ok(())
    }

    fn add_rows(&self, x: &mut Rows, rows: &[u32], y: &Rows) -> Result<(), StepError> {
        for (place, row) in rows.iter().enumerate() {
            for (x, y) in x.row_mut(*row as usize).iter_mut().zip(y.row(place)) {
                *x += y;
            }
        }
        Ok(())
    }

    fn scale(&self, x: &mut Rows, factor: f32) -> Result<(), StepError> {
        x.each(&self.pool, |_, values| values.iter_mut().for_each(|value| *value *= factor));
        Ok(())
    }

    fn soft_cap(&self, x: &mut Rows, cap: f32) -> Result<(), StepError> {
        x.each(&self.pool, |_, values| self.simd.soft_cap(values, cap));
        Ok(())
    }

    fn norm_rope(
        &self,
        x: &mut Rows,
        norm: HeadNorm<'_, Self>,
        rope: &RopeTable,
        positions: &[u32],
    ) -> Result<(), StepError> {
        x.each(&self.pool, |row, values| {
            let position = positions[row] as usize;
            let place = position * rope.half..(position + 1) * rope.half;
            let (cos, sin) = (&rope.cos[place.clone()], &rope.sin[place]);
            for head in values.chunks_exact_mut(rope.head_dim) {
                if let Some((weight, eps)) = norm {
                    self.simd.rms_norm(head, weight, eps);
                }
                let (low, high) = head[..2 * rope.half].split_at_mut(rope.half);
                for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                    (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
                }
            }
        });
        Ok(())
    }

    fn store(&self, cache: &mut CpuCache, layer: usize, k: &Rows, v: &Rows, slots: &[u32]) -> Result<(), StepError> {
        cache.layers[layer].store(&self.pool, k, v, slots);
        Ok(())
    }

    fn attend(&self, q: &Rows, cache: &CpuCache, layer: usize, batch: AttentionBatch<'_>) -> Result<Rows, StepError> {
        Ok(attention::attend(&self.pool, self.simd, q, &cache.layers[layer], batch))
    }

    fn gate(&self, mut gate: Rows, up: &Rows, activation: Activation) -> Result<Rows, StepError> {
        gate.each(&self.pool, |row, gate| activate(self.simd, gate, up.row(row), activation));
        Ok(gate)
    }

    fn experts(
        &self,
        x: &Rows,
        scores: &Rows,
        routing: &Routing,
        experts: &[GatedMlp<PackedMatrix>],
    ) -> Result<Rows, StepError> {
        let choices: Vec<_> = (0..x.n_rows()).map(|row| routing.choose(scores.row(row))).collect();
        Ok(experts::experts(&self.pool, self.simd, x, &choices, experts))
    }

    fn summarise(
        &self,
        x: &Rows,
        head: &PackedMatrix,
        soft_cap: Option<f32>,
        look: Look,
    ) -> Result<Vec<Summary>, StepError> {
        let summary = |first: usize, logits: &mut [f32]| {
            if let Some(cap) = soft_cap {
                self.simd.soft_cap(logits, cap);
            }
            Summary::of_tile(self.simd, first, logits, look)
        };
        let tiles = linear::tiles(&self.pool, self.simd, x, head, summary);
        Ok((0..x.n_rows()).map(|row| Summary::joined(tiles.iter().map(|tile| tile[row].clone()), look)).collect())
    }

    fn select(&self, x: &Rows, rows: &[u32]) -> Result<Rows, StepError> {
        let mut out = x.scratch(rows.len(), x.width());
        for (place, row) in rows.iter().enumerate() {
            out.row_mut(place).copy_from_slice(x.row(*row as usize));
        }
        Ok(out)
    }

    fn host_into(&self, x: &Rows, values: &mut Vec<f32>) -> Result<(), StepError> {
        values.extend_from_slice(x.values());
        Ok(())
    }
}
