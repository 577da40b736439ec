//! NVIDIA GPUs, through the CUDA driver.
//!
//! Kernels are CUDA C in `diffulex-kernels/gpu`, compiled to PTX by `scripts/ptx` and embedded; the driver compiles them for
//! the card when the engine starts. Nothing else is needed at build time or run time. docs/gpu.md describes the whole.
//!
//! Operations append to a queue; results travel to the host only where [`crate::Ops::score`] and [`crate::Ops::host_into`] need them.

#![expect(unsafe_code, reason = "calls of the CUDA driver")]

mod driver;
mod operands;
mod operations;
mod ops;
mod state;

pub use state::{CudaOps, DeviceUse};
