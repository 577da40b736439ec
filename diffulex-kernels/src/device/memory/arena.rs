//! Device memory for the tensors of a step: ranges of a few large allocations.
//!
//! The same requests in the same order yield the same addresses, so that a step that repeats has the same list of launches
//! and its graph can be replayed. A range may be handed out again as soon as it is dropped: everything runs on one stream, so
//! later launches run after the ones that still use it.
//!
//! Never here: the driver.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Every range begins at a multiple of this: enough for 16-byte copies and whole cache lines.
const ALIGNMENT: usize = 256;

/// Least size of an allocation. Chosen by us: a step of a small model fits into one.
pub(crate) const CHUNK: usize = 32 << 20;

/// Free ranges of the allocations, by address.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    free: BTreeMap<u64, usize>,
    /// Start of each allocation; ranges are not joined across them.
    chunks: Vec<u64>,
    /// Ranges that were dropped, where each block is an allocation of its own; `None` where ranges are handed out again.
    dropped: Option<BTreeMap<u64, usize>>,
}

/// A range of the arena, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Block {
    address: u64,
    n_bytes: usize,
    arena: Arc<Mutex<Arena>>,
}

impl Block {
    /// The device's address of its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner).put_back(self.address, self.n_bytes);
    }
}

impl Arena {
    /// An arena of blocks that are allocations of their own. It hands out nothing again.
    pub(crate) fn apart() -> Self {
        Self { dropped: Some(BTreeMap::new()), ..Self::default() }
    }

    /// A block that is an allocation of its own.
    pub(crate) fn alone(arena: &Arc<Mutex<Self>>, address: u64, n_bytes: usize) -> Block {
        Block { address, n_bytes, arena: arena.clone() }
    }

    /// Whether an address lies in a block that was dropped since the last [`Arena::take_dropped`].
    pub(crate) fn has_dropped(&self, address: u64) -> bool {
        let before = self.dropped.iter().flat_map(|dropped| dropped.range(..=address)).next_back();
        before.is_some_and(|(start, n_bytes)| address < start + *n_bytes as u64)
    }

    /// Addresses of the blocks that were dropped, to be freed.
    pub(crate) fn take_dropped(&mut self) -> Vec<u64> {
        self.dropped.as_mut().map_or_else(Vec::new, |dropped| std::mem::take(dropped).into_keys().collect())
    }

    /// The first range, by address, that has room for `n_bytes`.
    pub(crate) fn take(arena: &Arc<Mutex<Self>>, n_bytes: usize) -> Option<Block> {
        let n_bytes = rounded(n_bytes);
        let mut locked = arena.lock().unwrap_or_else(PoisonError::into_inner);
        let (address, len) = locked.free.iter().find(|(_, len)| **len >= n_bytes).map(|(at, len)| (*at, *len))?;
        locked.free.remove(&address);
        if len > n_bytes {
            locked.free.insert(address + n_bytes as u64, len - n_bytes);
        }
        Some(Block { address, n_bytes, arena: arena.clone() })
    }

    /// Size of the allocation that [`Arena::take`] needs where it finds no room for `n_bytes`.
    pub(crate) fn growth(n_bytes: usize) -> usize {
        rounded(n_bytes).next_multiple_of(CHUNK)
    }

    /// Adds an allocation.
    pub(crate) fn grow(&mut self, address: u64, n_bytes: usize) {
        self.chunks.push(address);
        self.free.insert(address, n_bytes);
    }

    fn put_back(&mut self, mut address: u64, mut n_bytes: usize) {
        if let Some(dropped) = &mut self.dropped {
            dropped.insert(address, n_bytes);
            return;
        }
        if let Some((before, len)) = self.free.range(..address).next_back().map(|(at, len)| (*at, *len))
            && before + len as u64 == address
            && !self.chunks.contains(&address)
        {
            self.free.remove(&before);
            (address, n_bytes) = (before, len + n_bytes);
        }
        let end = address + n_bytes as u64;
        if !self.chunks.contains(&end)
            && let Some(len) = self.free.remove(&end)
        {
            n_bytes += len;
        }
        self.free.insert(address, n_bytes);
    }
}

fn rounded(n_bytes: usize) -> usize {
    n_bytes.max(1).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(chunks: &[(u64, usize)]) -> Arc<Mutex<Arena>> {
        let mut arena = Arena::default();
        chunks.iter().for_each(|(address, n_bytes)| arena.grow(*address, *n_bytes));
        Arc::new(Mutex::new(arena))
    }

    #[test]
    fn the_same_requests_get_the_same_addresses() {
        let arena = arena(&[(4096, 4096)]);
        let take = |n_bytes| Arena::take(&arena, n_bytes).unwrap();
        let run = || {
            let (first, second) = (take(300), take(1));
            drop(first);
            let third = take(512);
            let fourth = take(513);
            [second.address(), third.address(), fourth.address()]
        };
        let addresses = run();
        assert_eq!(addresses, [4096 + 512, 4096, 4096 + 768]);
        assert_eq!(run(), addresses);
    }

    #[test]
    fn ranges_join_again_but_not_across_allocations() {
        let arena = arena(&[(4096, 1024), (5120, 1024)]);
        let all: Vec<Block> = (0..8).map(|_| Arena::take(&arena, 256).unwrap()).collect();
        assert!(Arena::take(&arena, 1).is_none());
        // In an odd order, so that ranges join to the left, to the right and on both sides.
        let mut all: Vec<Option<Block>> = all.into_iter().map(Some).collect();
        for index in [1, 3, 2, 0, 5, 4, 7, 6] {
            all[index] = None;
        }
        assert!(Arena::take(&arena, 1025).is_none());
        assert_eq!(Arena::take(&arena, 1024).unwrap().address(), 4096);
    }
}
