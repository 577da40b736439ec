//! NVIDIA GPUs, through the CUDA driver.
//!
//! Kernels are CUDA C in `diffulex-kernels/gpu`, compiled to PTX by `scripts/ptx` and embedded; the driver compiles them for
//! the card when they are needed. Nothing else is needed at build time or run time. docs/gpu.md describes the whole; the operations are
//! those of every accelerator, in `device`.

#![expect(unsafe_code, reason = "calls of the CUDA driver")]

mod driver;
mod failure;
mod modules;
mod nvml;
mod open;

#[cfg(test)]
pub(crate) use open::open_with;
pub use open::{n_devices, open};
