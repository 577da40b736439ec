//! Low-rank adapters (LoRA) applied to some rows of a batch.
//!
//! A network counts its projections as it loads them: each is a [`Site`]. An adapter has a pair `A [r, in]`, `B [out, r]`
//! for some sites, and its rows become `W x` plus the scaled `B A x`. The rows of an adapter are computed separately, so a result
//! does not depend on the adapters of other requests.
//!
//! Never here: requests, files (see `adapter`).

use std::ops::Range;

use super::adapter::Adapter;
use crate::AdapterId;
use crate::error::{LoadError, StepError};
use crate::kernels::{Ops, RowList, WeightData, WeightError, WeightType};

/// A projection that an adapter may change.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// The tensor's name in the checkpoint, without `.weight`.
    pub module: String,
    /// Outputs of the whole tensor.
    pub n_out: usize,
    /// Inputs.
    pub n_in: usize,
    /// Outputs of this projection: all, or a part of a fused tensor.
    pub outs: Range<usize>,
}

struct Pair<O: Ops> {
    /// `[r, n_in]`.
    a: O::Matrix,
    /// `[n_out, r]`, times the adapter's scale.
    b: O::Matrix,
}

/// An adapter on a device.
pub struct LowRank<O: Ops> {
    /// Pair of each site, by index.
    pairs: Vec<Option<Pair<O>>>,
    n_bytes: u64,
}

impl<O: Ops> LowRank<O> {
    /// Loads `adapter` for a network's `sites`. Fails for tensors of other sites, naming them, and for factors of more than
    /// `max_bytes`. Factors are held as 32-bit floats because they are small and their product is a small difference.
    pub(super) fn load(ops: &O, mut adapter: Adapter, sites: &[Site], max_bytes: u64) -> Result<Self, LoadError> {
        let matrix = |values: &[f32], n_out, n_in| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            ops.matrix(WeightData::F32(&bytes), n_out, n_in, WeightType::F32)
        };
        let (mut pairs, mut n_bytes) = (Vec::with_capacity(sites.len()), 0);
        for Site { module, n_out, n_in, outs } in sites {
            let Some(factors) = adapter.factors(module, *n_out, *n_in)? else {
                pairs.push(None);
                continue;
            };
            let (rank, here) = (factors.rank, |error: WeightError| LoadError::of(module, error));
            n_bytes += (rank * (n_in + outs.len()) * size_of::<f32>()) as u64;
            if n_bytes > max_bytes {
                let what =
                    format!("the adapter needs more than the {max_bytes} bytes that --max-lora-bytes leaves for it");
                return Err(LoadError::new(what));
            }
            pairs.push(Some(Pair {
                a: matrix(&factors.a, rank, *n_in).map_err(here)?,
                b: matrix(&factors.b[outs.start * rank..outs.end * rank], outs.len(), rank).map_err(here)?,
            }));
        }
        adapter.refuse_surplus()?;
        Ok(Self { pairs, n_bytes })
    }

    /// Size of the factors in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}

/// Adapters of a batch; the step holds the rows of each.
pub struct Adapters<'a, O: Ops> {
    adapted: Vec<(AdapterId, &'a LowRank<O>)>,
}

impl<'a, O: Ops> Adapters<'a, O> {
    /// No adapters.
    pub fn none() -> Self {
        Self { adapted: Vec::new() }
    }

    /// Adds `adapter` for the batch's rows with `id`. A row has at most one adapter.
    pub fn push(&mut self, id: AdapterId, adapter: &'a LowRank<O>) {
        self.adapted.push((id, adapter));
    }

    /// Adds the scaled `B A x` of the adapters at `site` to `y`.
    pub(super) fn add(
        &self,
        ops: &O,
        step: &O::Step<'_>,
        site: usize,
        x: &O::Tensor,
        y: &mut O::Tensor,
    ) -> Result<(), StepError> {
        for (id, adapter) in &self.adapted {
            let Some(Some(Pair { a, b })) = adapter.pairs.get(site) else { continue };
            let inner = ops.linear(&ops.select(x, step, RowList::Adapter(*id))?, a, None)?;
            ops.add_rows(y, step, RowList::Adapter(*id), &ops.linear(&inner, b, None)?)?;
        }
        Ok(())
    }
}
