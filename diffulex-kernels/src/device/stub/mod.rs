//! The smallest device: a driver on host memory, and the kernels as plain functions. An example for a further device, and a test that
//! nothing outside of `cuda` depends on CUDA.
//!
//! Addresses are invented and every access is checked against the allocations. Work runs when it is given to the driver, and there are no
//! graphs. A kernel computes all blocks of its grid; where several kernels share a computation (chunks of attention, tiles of logits),
//! one of them does it whole and the others nothing.

mod call;
mod kernels;
mod memory;
mod score;
mod weights;

use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::driver::{Driver, Extent, Transfer};
use crate::device::stub::call::Call;
use crate::device::stub::memory::Memory;
use crate::device::{DeviceOps, Diagnostics};
use crate::error::DeviceError;
use crate::memory::AvailableMemory;

/// Memory of the device.
const TOTAL: u64 = 1 << 30;

/// The driver.
#[derive(Default)]
pub(crate) struct Stub {
    memory: Mutex<Memory>,
}

/// Operations on host memory.
pub(crate) fn open(diagnostics: Diagnostics) -> DeviceOps {
    DeviceOps::new(Arc::new(Stub::default()), diagnostics)
}

impl Stub {
    fn locked(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for Stub {
    fn name(&self) -> &str {
        "stub"
    }

    fn describe(&self) -> Result<String, DeviceError> {
        Ok("stub (host memory)".to_owned())
    }

    fn memory(&self) -> Result<AvailableMemory, DeviceError> {
        let free = TOTAL - self.locked().n_bytes();
        Ok(AvailableMemory { free, total: TOTAL, source: "stub".to_owned(), is_dedicated: true })
    }

    fn alloc(&self, n_bytes: usize) -> Result<Option<u64>, DeviceError> {
        let fits = self.memory()?.free >= n_bytes as u64;
        Ok(fits.then(|| self.locked().alloc(n_bytes)))
    }

    unsafe fn free(&self, address: u64) {
        self.locked().free(address);
    }

    fn pin(&self, n_bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        Ok(NonNull::from(Box::leak(vec![0; n_bytes].into_boxed_slice())).cast())
    }

    unsafe fn unpin(&self, start: NonNull<u8>, n_bytes: usize) {
        // SAFETY: a box of so many bytes was leaked by `pin`, and is given back once.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start.as_ptr(), n_bytes)) });
    }

    unsafe fn transfer(&self, transfer: Transfer) -> Result<(), DeviceError> {
        let mut memory = self.locked();
        match transfer {
            Transfer::Upload { to, from, n_bytes } => {
                // SAFETY: the caller answers for the host's memory.
                memory.write(to, unsafe { slice::from_raw_parts(from, n_bytes) });
            }
            Transfer::Download { from, to, n_bytes } => {
                // SAFETY: as above.
                unsafe { slice::from_raw_parts_mut(to, n_bytes) }.copy_from_slice(memory.bytes(from, n_bytes));
            }
            Transfer::Copy { from, to, n_bytes } => {
                let bytes = memory.bytes(from, n_bytes).to_vec();
                memory.write(to, &bytes);
            }
            Transfer::Clear { at, n_bytes } => memory.write(at, &vec![0; n_bytes]),
        }
        Ok(())
    }

    unsafe fn launch(&self, kernel: &'static str, extent: Extent, args: &[u64]) -> Result<(), DeviceError> {
        let call = Call { kernel, grid: extent.grid.map(|n| n as usize), args };
        if call.run(&mut self.locked()) {
            return Ok(());
        }
        let message = format!("kernel {kernel} not found");
        Err(DeviceError { device: self.name().to_owned(), operation: "launch", message })
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
