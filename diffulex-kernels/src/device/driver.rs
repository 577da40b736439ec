//! What a device's driver does for the operations: memory, copies, launches and graphs.
//!
//! A body for another kind of device is a folder that implements [`Driver`] and has the kernels that the operations name. `stub`
//! is the smallest one: all kernels as functions over host memory.
//!
//! **Order.** Transfers and launches of one driver run in the order in which they are given to it, each after the one before. They
//! may run later than the call; [`Driver::wait`] returns when all have ended. A failure may be reported by any later call.
//!
//! **Kernels.** A kernel is named by the operation that launches it. `diffulex-kernels/gpu` has the contract of each: its arguments, their
//! layouts in memory, and the part of the result that a block of the grid makes. Threads and shared memory of a block are those of the
//! CUDA kernels; others may ignore them.
//!
//! Never here: operations, names of kernels.

use std::ptr::NonNull;

use crate::error::DeviceError;
use crate::memory::AvailableMemory;

/// The most arguments of a kernel.
pub(crate) const MAX_ARGS: usize = 32;

/// Extent of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Extent {
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared: u32,
}

/// A copy, or memory to be cleared. Addresses are of the device, pointers of the host; at least one byte.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    Upload {
        to: u64,
        from: *const u8,
        n_bytes: usize,
    },
    Download {
        from: u64,
        to: *mut u8,
        n_bytes: usize,
    },
    Copy {
        from: u64,
        to: u64,
        n_bytes: usize,
    },
    /// Zeros.
    Clear {
        at: u64,
        n_bytes: usize,
    },
}

/// A device's driver, from any thread.
pub(crate) trait Driver: Send + Sync {
    /// Device name as in `--device`.
    fn name(&self) -> &str;

    /// The device, for people.
    fn describe(&self) -> Result<String, DeviceError>;

    /// Free and total memory.
    fn memory(&self) -> Result<AvailableMemory, DeviceError>;

    /// Recent share of time with a kernel running, 0 to 1; `None` if unknown.
    fn busy(&self) -> Option<f32> {
        None
    }

    /// Some kernels will be launched: a driver that compiles or loads kernels may begin to. An error is reported by the launch.
    fn prepare(&self, _kernels: &[&'static str]) {}

    /// Allocates device memory, at least one byte, at a multiple of 256; its bytes are undefined. `None` where there is not enough.
    fn alloc(&self, n_bytes: usize) -> Result<Option<u64>, DeviceError>;

    /// Gives memory of [`Driver::alloc`] back.
    ///
    /// # Safety
    /// It is given back once, and nothing uses it any more: no transfer or launch that has not ended.
    unsafe fn free(&self, address: u64);

    /// Allocates host memory for transfers, at least one byte, filled with zeros.
    fn pin(&self, n_bytes: usize) -> Result<NonNull<u8>, DeviceError>;

    /// Gives memory of [`Driver::pin`] back.
    ///
    /// # Safety
    /// As for [`Driver::free`]; `n_bytes` is what was asked for.
    unsafe fn unpin(&self, start: NonNull<u8>, n_bytes: usize);

    /// Appends a transfer.
    ///
    /// # Safety
    /// Addresses are of live memory of this driver. Host memory is of [`Driver::pin`]; until the driver was waited for, it stays, what
    /// is uploaded does not change, and nobody reads or writes what is downloaded to.
    unsafe fn transfer(&self, transfer: Transfer) -> Result<(), DeviceError>;

    /// Appends a launch. `args` are the bits of the kernel's arguments, little-endian.
    ///
    /// # Safety
    /// Number, types and meaning of the arguments are the kernel's; addresses are of live memory.
    unsafe fn launch(&self, kernel: &'static str, extent: Extent, args: &[u64]) -> Result<(), DeviceError>;

    /// Waits until everything has run.
    fn wait(&self) -> Result<(), DeviceError>;

    /// Records what `start` gives to the driver, instead of running it. `None`, without a call of `start`, if the device has no graphs;
    /// `None` also if it has no memory for this one.
    fn record(
        &self,
        _start: &mut dyn FnMut() -> Result<(), DeviceError>,
    ) -> Result<Option<Box<dyn Graph>>, DeviceError> {
        Ok(None)
    }
}

/// Recorded work.
pub(crate) trait Graph: Send {
    /// Appends the work to the driver that recorded it.
    ///
    /// # Safety
    /// What held for the recorded transfers and launches holds again.
    unsafe fn launch(&self) -> Result<(), DeviceError>;
}
