//! Routed experts. (PRODUCT)
use super::CudaOps;
use super::tensor::Tensor;
use crate::error::StepError;
use crate::kernels::routing::Routing;
use crate::kernels::{GatedMlp, HoldError};

/// The experts of a layer.
pub struct Experts {}

impl CudaOps {
    pub(super) fn stack_experts(&self, _mlps: Vec<GatedMlp<Self>>, _routing: Routing) -> Result<Experts, HoldError> {
        unimplemented!()
    }

    pub(super) fn route(&self, _x: &Tensor, _logits: &Tensor, _experts: &Experts) -> Result<Tensor, StepError> {
        unimplemented!()
    }
}
