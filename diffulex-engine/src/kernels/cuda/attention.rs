//! Attention over pages, and the cache. (ATTEND)
use super::CudaOps;
use super::step::Step;
use super::tensor::Tensor;
use crate::error::StepError;
use crate::kernels::{Attention, CacheShape, HoldError};

/// K and V of every layer and slot.
pub struct Cache {}

/// Tiles of a step, for a number of query heads that share a K/V head.
pub(super) struct Tiles {}

impl CudaOps {
    pub(super) fn hold_cache(&self, _layers: &[CacheShape]) -> Result<Cache, HoldError> {
        unimplemented!()
    }

    pub(super) fn attend_rows(
        &self,
        _q: &Tensor,
        _cache: &Cache,
        _layer: usize,
        _attention: Attention,
        _step: &Step<'_>,
    ) -> Result<Tensor, StepError> {
        unimplemented!()
    }
}
