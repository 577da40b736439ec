//! The CUDA devices of a machine.

use std::sync::Arc;

use crate::cuda::driver::Cuda;
use crate::cuda::modules::Texts;
use crate::device::{DeviceOps, Diagnostics};
use crate::error::DeviceError;

/// Number of CUDA devices; 0 without a driver. Fails if there is a driver that does not start, or that reports no device.
pub fn n_devices() -> Result<usize, DeviceError> {
    Cuda::n_devices()
}

/// Opens device `index`. Kernels are those in the folder `DIFFULEX_PTX`, where that is set.
pub fn open(index: usize) -> Result<DeviceOps, DeviceError> {
    open_with(index, Diagnostics::from_environment())
}

/// As [`open`], with these ways to find faults.
pub(crate) fn open_with(index: usize, diagnostics: Diagnostics) -> Result<DeviceOps, DeviceError> {
    let texts = Texts::from_environment(&format!("cuda:{index}"))?;
    Ok(DeviceOps::new(Arc::new(Cuda::open(index, texts)?), diagnostics))
}
