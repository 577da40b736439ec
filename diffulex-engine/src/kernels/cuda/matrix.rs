//! Weights on the device. (PRODUCT)
use super::CudaOps;
use crate::kernels::{HoldError, WeightData, WeightType};

/// A weight `[n_out, n_in]`.
pub struct Matrix {}

impl CudaOps {
    pub(super) fn hold_matrix(
        &self,
        _data: WeightData<'_>,
        _n_out: usize,
        _n_in: usize,
        _hold: WeightType,
    ) -> Result<Matrix, HoldError> {
        unimplemented!()
    }
}
