//! The memory of a device's buffers, those that were dropped included.

use std::sync::{Arc, Mutex, PoisonError};

use crate::device::memory::arena::{Arena, Block};

/// Source of a buffer's memory.
pub(crate) enum Memory {
    Own(u64),
    Shared(Block),
}

/// The memory of a device's buffers.
#[derive(Default)]
pub(crate) struct Holdings {
    pub(crate) shared: Arc<Mutex<Arena>>,
    pub(crate) chunks: Mutex<Vec<u64>>,
    /// Memory of dropped buffers, which pending or running launches may still use.
    pub(crate) dropped: Mutex<Vec<Memory>>,
}

impl Holdings {
    /// Frees the memory of dropped buffers. No launch may wait or run.
    pub(crate) fn free_dropped(&self, free: impl Fn(u64)) {
        for memory in std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner)) {
            match memory {
                Memory::Own(address) => free(address),
                Memory::Shared(block) => drop(block),
            }
        }
    }

    /// Frees everything; no buffer is left.
    pub(crate) fn free_all(&self, free: impl Fn(u64)) {
        self.free_dropped(&free);
        let chunks = std::mem::take(&mut *self.chunks.lock().unwrap_or_else(PoisonError::into_inner));
        chunks.into_iter().for_each(free);
    }
}
