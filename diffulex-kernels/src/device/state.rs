//! A device and the work that waits for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::device::driver::{Driver, Extent};
use crate::device::memory::arena::Block;
use crate::device::memory::buffer::Buffer;
use crate::device::memory::device::Device;
use crate::device::work::arg::Arg;
use crate::device::work::diagnostics::Diagnostics;
use crate::device::work::queue::{LaunchId, Queue};
use crate::error::{DeviceError, StepError};
use crate::{Classes, WeightError};

/// The operations of an accelerator.
pub struct DeviceOps {
    pub(crate) device: Arc<Device>,
    pub(crate) queue: Mutex<Queue>,
    /// Device copies of [`Classes`], the last used last. They are dropped when the classes are gone, or to make room.
    pub(crate) class_tables: Mutex<Vec<(Weak<Classes>, Arc<Buffer>)>>,
}

/// Memory and load of a device, by all programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceUse {
    /// Free device memory in bytes.
    pub free_bytes: u64,
    /// Recent share of time with a kernel running, 0 to 1; `None` if unknown.
    pub busy: Option<f32>,
}

impl DeviceOps {
    /// The operations of the driver's device.
    pub(crate) fn new(driver: Arc<dyn Driver>, diagnostics: Diagnostics) -> Self {
        let device = Device::new(driver);
        let queue = Mutex::new(Queue::new(device.clone(), diagnostics));
        Self { device, queue, class_tables: Mutex::default() }
    }

    /// Name, card and compute capability, for messages.
    pub fn describe(&self) -> Result<String, DeviceError> {
        self.device.driver.describe()
    }

    /// Returns a function that reads [`DeviceUse`] from any thread at any time; it returns `None` if the device does not report it.
    pub fn monitor(&self) -> impl Fn() -> Option<DeviceUse> + Send + use<> {
        let driver = Arc::clone(&self.device.driver);
        move || {
            // A failed device is not an error here: the next step reports it.
            let free_bytes = driver.memory().ok()?.free;
            Some(DeviceUse { free_bytes, busy: driver.busy() })
        }
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a launch of `kernel` with its arguments in order.
    pub(crate) fn launch(
        &self,
        kernel: &'static str,
        grid: [usize; 3],
        block: u32,
        shared: u32,
        args: &[Arg],
    ) -> LaunchId {
        let grid = grid.map(|n| n as u32);
        self.queue().launch(kernel, Extent { grid, block, shared }, args)
    }

    /// Device memory of this step; its bytes are undefined.
    pub(crate) fn alloc(&self, n_bytes: usize) -> Result<Block, StepError> {
        self.queue().alloc(n_bytes)
    }

    /// Appends an upload of `bytes`, which are copied now, into a block of their own.
    pub(crate) fn upload(&self, bytes: &[u8]) -> Result<Block, StepError> {
        let mut queue = self.queue();
        let block = queue.alloc(bytes.len())?;
        if !bytes.is_empty() {
            queue.upload(block.address(), bytes)?;
        }
        Ok(block)
    }

    /// Runs all pending work and returns the first bytes of some blocks.
    pub(crate) fn download(&self, blocks: &[(&Block, usize)]) -> Result<Vec<Vec<u8>>, StepError> {
        let ranges: Vec<(u64, usize)> = blocks.iter().map(|(block, n_bytes)| (block.address(), *n_bytes)).collect();
        self.queue().download(&ranges)
    }

    /// Allocates a buffer that outlives the step and fills it with `bytes`.
    pub(crate) fn hold(&self, bytes: &[u8]) -> Result<Buffer, WeightError> {
        let buffer = self.device.hold(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }
}
