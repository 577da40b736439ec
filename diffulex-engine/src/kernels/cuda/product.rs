//! Products. (PRODUCT)
use super::CudaOps;
use super::matrix::Matrix;
use super::rows::Vector;
use super::tensor::Tensor;
use crate::error::StepError;
use crate::kernels::{HoldError, Weighted};

/// Matrices with the same inputs.
pub struct Group<const N: usize> {}

impl CudaOps {
    pub(super) fn join<const N: usize>(&self, _members: [Weighted<Self>; N]) -> Result<Group<N>, HoldError> {
        unimplemented!()
    }

    pub(super) fn multiply(&self, _x: &Tensor, _w: &Matrix, _bias: Option<&Vector>) -> Result<Tensor, StepError> {
        unimplemented!()
    }

    pub(super) fn multiply_group<const N: usize>(&self, _x: &Tensor, _g: &Group<N>) -> Result<[Tensor; N], StepError> {
        unimplemented!()
    }
}
