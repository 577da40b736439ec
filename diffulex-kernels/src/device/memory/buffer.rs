//! Device memory that stays until it is dropped: weights, tables, cache.

use std::sync::{Arc, PoisonError};

use crate::device::memory::arena::{Arena, Block};
use crate::device::memory::device::Device;
use crate::device::memory::holdings::{Holdings, Memory};
use crate::error::DeviceError;
use crate::memory::AvailableMemory;

/// Sizes that share allocations: the driver rounds what is above a mebibyte to two (an expert of 3.1 MB would lose a quarter), and
/// larger ones lose little.
const SHARED: std::ops::RangeInclusive<usize> = (1 << 20)..=(8 << 20);

/// Size of an allocation that buffers share. Chosen by us.
const SHARED_CHUNK: usize = 64 << 20;

/// Device memory of a weight, a table or a cache.
pub(crate) struct Buffer {
    address: u64,
    n_bytes: usize,
    memory: Option<Memory>,
    device: Arc<Device>,
}

impl Buffer {
    /// A buffer with undefined content; `None` if the device has not enough memory left.
    pub(crate) fn new(device: &Arc<Device>, n_bytes: usize) -> Result<Option<Self>, DeviceError> {
        let shared = if SHARED.contains(&n_bytes) { Self::share(device, n_bytes)? } else { None };
        let Some(block) = shared else { return Self::alone(device, n_bytes) };
        let (address, memory) = (block.address(), Memory::Shared(block));
        Ok(Some(Self { address, n_bytes, memory: Some(memory), device: device.clone() }))
    }

    /// As [`Buffer::new`], in an allocation of its own.
    pub(crate) fn alone(device: &Arc<Device>, n_bytes: usize) -> Result<Option<Self>, DeviceError> {
        let Some(address) = device.driver.alloc(n_bytes.max(1))? else { return Ok(None) };
        Ok(Some(Self { address, n_bytes, memory: Some(Memory::Own(address)), device: device.clone() }))
    }

    /// A part of a shared allocation; `None` if the device has no memory for a further one.
    fn share(device: &Device, n_bytes: usize) -> Result<Option<Block>, DeviceError> {
        let Holdings { shared, chunks, .. } = &device.holdings;
        if let Some(block) = Arena::take(shared, n_bytes) {
            return Ok(Some(block));
        }
        let Some(chunk) = device.driver.alloc(SHARED_CHUNK)? else { return Ok(None) };
        chunks.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
        shared.lock().unwrap_or_else(PoisonError::into_inner).grow(chunk, SHARED_CHUNK);
        Ok(Arena::take(shared, n_bytes))
    }

    /// The device's address of its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    #[cfg(test)]
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Overwrites the bytes from `offset` on.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(offset + bytes.len() <= self.n_bytes, "{} bytes at {offset} of {}", bytes.len(), self.n_bytes);
        self.device.write(self.address + offset as u64, bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let dropped = &self.device.holdings.dropped;
        dropped.lock().unwrap_or_else(PoisonError::into_inner).extend(self.memory.take());
    }
}

impl Device {
    /// An allocation that a load cannot do without.
    pub(crate) fn hold(self: &Arc<Self>, n_bytes: usize) -> Result<Buffer, DeviceError> {
        match Buffer::new(self, n_bytes)? {
            Some(buffer) => Ok(buffer),
            None => Err(self.out_of_memory(n_bytes)?),
        }
    }

    /// The error of a device without `n_bytes` of free memory.
    fn out_of_memory(&self, n_bytes: usize) -> Result<DeviceError, DeviceError> {
        let AvailableMemory { free, total, .. } = self.driver.memory()?;
        let message = format!("out of memory: {n_bytes} bytes are needed, {free} of {total} are free");
        Ok(DeviceError { device: self.driver.name().to_owned(), operation: "allocate", message })
    }

    /// [`Device::hold`] filled with zeros.
    pub(crate) fn hold_zeros(self: &Arc<Self>, n_bytes: usize) -> Result<Buffer, DeviceError> {
        let buffer = self.hold(n_bytes)?;
        self.clear(buffer.address(), n_bytes)?;
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::SHARED_CHUNK;
    use crate::Ops;
    use crate::tests::every_gpu;

    #[test]
    fn a_dropped_buffer_is_freed_when_nothing_waits_that_may_use_it() {
        let Some(ops) = every_gpu() else { return };
        let n_dropped = || ops.device.holdings.dropped.lock().unwrap().len();
        ops.host(&ops.zeros(1, 1).unwrap()).unwrap();
        for n_bytes in [4096, 2 << 20, 16 << 20] {
            assert_eq!(n_dropped(), 0);
            let buffer = ops.device.hold_zeros(n_bytes).unwrap();
            let copy = ops.alloc(n_bytes).unwrap();
            let (from, to) = (buffer.address(), copy.address());
            ops.queue().copy(from, to, n_bytes);
            drop(buffer);
            assert_eq!(n_dropped(), 1, "a copy of it waits");
            assert!(ops.queue().download(&[(to, 4)]).unwrap() == [[0; 4]]);
        }
        assert_eq!(n_dropped(), 0);
    }

    #[test]
    fn buffers_of_experts_share_an_allocation() {
        let Some(ops) = every_gpu() else { return };
        let n_bytes = 3_100_000;
        let [first, second] = [(); 2].map(|()| ops.device.hold(n_bytes).unwrap());
        let distance = first.address().abs_diff(second.address()) as usize;
        assert!((n_bytes..SHARED_CHUNK).contains(&distance), "{distance}");
    }
}
