//! Scoring. (SCORE)
use super::CudaOps;
use super::tensor::Tensor;
use crate::error::StepError;
use crate::kernels::{Head, Recipe, Scored, SelfConditioning};

/// Tables of classes that stay on the device while somebody uses them.
#[derive(Default)]
pub(super) struct Memory {}

impl CudaOps {
    pub(super) fn score_rows(
        &self,
        _x: &Tensor,
        _head: &Head<'_, Self>,
        _recipes: &[Recipe],
        _conditioning: Option<SelfConditioning<'_, Self>>,
    ) -> Result<Vec<Option<Scored>>, StepError> {
        unimplemented!()
    }
}
