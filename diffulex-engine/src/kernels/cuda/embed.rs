//! Embeddings. (ATTEND)
use super::CudaOps;
use super::matrix::Matrix;
use super::step::Step;
use super::tensor::Tensor;
use crate::error::StepError;

impl CudaOps {
    /// Checks ids on the host first (BatchError::TokenOutsideVocabulary).
    pub(super) fn embed_ids(&self, _table: &Matrix, _step: &Step<'_>) -> Result<Tensor, StepError> {
        unimplemented!()
    }

    pub(super) fn blend_rows(&self, _x: &mut Tensor, _table: &Matrix, _step: &Step<'_>) -> Result<(), StepError> {
        unimplemented!()
    }

    pub(super) fn mix(&self, _table: &Matrix, _logits: &Tensor) -> Result<Tensor, StepError> {
        unimplemented!()
    }
}
