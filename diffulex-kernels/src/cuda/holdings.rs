//! The memory of a device's buffers, those that were dropped included.

use std::sync::{Arc, Mutex, PoisonError};

use super::arena::{Arena, Block};

/// Where a buffer's memory is from.
pub(super) enum Memory {
    Own(u64),
    Shared(Block),
}

/// The memory of a device's buffers.
#[derive(Default)]
pub(super) struct Holdings {
    pub(super) shared: Arc<Mutex<Arena>>,
    pub(super) chunks: Mutex<Vec<u64>>,
    /// Of dropped buffers: launches that wait or run may still use it.
    pub(super) dropped: Mutex<Vec<Memory>>,
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
