//! Device memory that stays until it is dropped: weights, tables, cache.

use std::sync::{Arc, Mutex, PoisonError};

use super::arena::{Arena, Block};
use super::device::Device;
use crate::error::DeviceError;

/// Sizes that share allocations: the driver rounds what is above a mebibyte to two (an expert of 3.1 MB would lose a quarter), and
/// larger ones lose little.
const SHARED: std::ops::RangeInclusive<usize> = (1 << 20)..=(8 << 20);

/// Size of an allocation that buffers share. Chosen by us.
const SHARED_CHUNK: usize = 64 << 20;

/// Device memory that stays until it is dropped.
pub(super) struct Buffer {
    address: u64,
    n_bytes: usize,
    memory: Option<Memory>,
    device: Arc<Device>,
}

/// Where a buffer's memory is from.
enum Memory {
    Own(u64),
    Shared(Block),
}

/// The memory of a device's buffers.
#[derive(Default)]
pub(super) struct Holdings {
    shared: Arc<Mutex<Arena>>,
    chunks: Mutex<Vec<u64>>,
    /// Of dropped buffers: launches that wait or run may still use it.
    dropped: Mutex<Vec<Memory>>,
}

impl Holdings {
    /// Frees the memory of dropped buffers. No launch may wait or run.
    pub(super) fn free_dropped(&self, free: impl Fn(u64)) {
        for memory in std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner)) {
            match memory {
                Memory::Own(address) => free(address),
                Memory::Shared(block) => drop(block),
            }
        }
    }

    /// Frees everything; no buffer is left.
    pub(super) fn free_all(&self, free: impl Fn(u64)) {
        self.free_dropped(&free);
        let chunks = std::mem::take(&mut *self.chunks.lock().unwrap_or_else(PoisonError::into_inner));
        chunks.into_iter().for_each(free);
    }
}

impl Buffer {
    /// A buffer whose bytes are undefined; `None` where the device has no such memory left.
    pub(super) fn new(device: &Arc<Device>, n_bytes: usize) -> Result<Option<Self>, DeviceError> {
        let shared = if SHARED.contains(&n_bytes) { Self::share(device, n_bytes)? } else { None };
        let (address, memory) = match shared {
            Some(block) => (block.address(), Memory::Shared(block)),
            None => match device.allocate(n_bytes)? {
                Some(address) => (address, Memory::Own(address)),
                None => return Ok(None),
            },
        };
        Ok(Some(Self { address, n_bytes, memory: Some(memory), device: device.clone() }))
    }

    /// A part of a shared allocation; `None` where there is no memory for another one.
    fn share(device: &Device, n_bytes: usize) -> Result<Option<Block>, DeviceError> {
        let Holdings { shared, chunks, .. } = &device.holdings;
        if let Some(block) = Arena::take(shared, n_bytes) {
            return Ok(Some(block));
        }
        let Some(chunk) = device.allocate(SHARED_CHUNK)? else { return Ok(None) };
        chunks.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
        shared.lock().unwrap_or_else(PoisonError::into_inner).grow(chunk, SHARED_CHUNK);
        Ok(Arena::take(shared, n_bytes))
    }

    /// The device's address of its first byte.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Overwrites the bytes from `offset` on.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
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

#[cfg(test)]
mod tests {
    use crate::kernels::Ops;
    use crate::kernels::tests::every_gpu;

    #[test]
    fn a_dropped_buffer_is_freed_when_nothing_waits_that_may_use_it() {
        let Some(ops) = every_gpu() else { return };
        let free = || ops.device.memory().unwrap().free;
        // The arena, the pinned piece and the shared allocation are there.
        ops.host(&ops.zeros(1, 1).unwrap()).unwrap();
        for n_bytes in [4096, 16 << 20] {
            let before = free();
            let buffer = ops.device.hold_zeros(n_bytes).unwrap();
            let used = before - free();
            assert!(used >= n_bytes as u64);
            let copy = ops.alloc(n_bytes).unwrap();
            let (from, to) = (buffer.address(), copy.address());
            ops.queue().copy(from, to, n_bytes);
            drop(buffer);
            assert_eq!(before - free(), used, "a copy of it waits");
            assert!(ops.queue().download(&[(to, 4)]).unwrap() == [[0; 4]]);
            assert_eq!(free(), before);
        }
    }

    #[test]
    fn buffers_of_experts_share_an_allocation() {
        let Some(ops) = every_gpu() else { return };
        let of_expert = || ops.device.hold(3_100_000).unwrap();
        let first = of_expert();
        let before = ops.device.memory().unwrap().free;
        let others = [of_expert(), of_expert()];
        assert_eq!(ops.device.memory().unwrap().free, before);
        assert!(others.iter().all(|other| other.address().abs_diff(first.address()) >= 3_100_000));
    }
}
