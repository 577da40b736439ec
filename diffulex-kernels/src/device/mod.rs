//! Accelerators: the operations as lists of launches, for any device with a driver.
//!
//! What is here is the same for all of them: memory, padding, the lists of a step, their fusion and their graphs. A device is a
//! `driver::Driver` and its kernels; `cuda` is one. docs/kernels.md describes how to add another.
//!
//! Operations append to a queue; results travel to the host only where [`crate::Ops::score`] and [`crate::Ops::host_into`] need them.

#![expect(unsafe_code, reason = "calls of a device's driver, which reads and writes memory when it comes to it")]

pub(crate) mod driver;
pub(crate) mod memory;
mod operands;
mod operations;
mod ops;
mod state;
#[cfg(test)]
pub(crate) mod stub;
mod work;

pub use state::{DeviceOps, DeviceUse};
pub(crate) use work::diagnostics::Diagnostics;
