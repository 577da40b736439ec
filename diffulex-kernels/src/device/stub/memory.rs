//! Memory with invented addresses.

use std::collections::BTreeMap;

/// Allocations by address.
#[derive(Default)]
pub(crate) struct Memory {
    blocks: BTreeMap<u64, Vec<u8>>,
    /// Addresses are used once.
    end: u64,
}

impl Memory {
    pub(crate) fn n_bytes(&self) -> u64 {
        self.blocks.values().map(|block| block.len() as u64).sum()
    }

    /// Bytes that are no likely numbers.
    pub(crate) fn alloc(&mut self, n_bytes: usize) -> u64 {
        let address = (self.end + 1).next_multiple_of(1 << 20);
        self.blocks.insert(address, vec![0xfe; n_bytes]);
        self.end = address + n_bytes as u64;
        address
    }

    pub(crate) fn free(&mut self, address: u64) {
        assert!(self.blocks.remove(&address).is_some(), "nothing was allocated at {address:#x}");
    }

    /// From an address to the end of its allocation.
    pub(crate) fn rest(&self, at: u64) -> &[u8] {
        let (start, block) = self.blocks.range(..=at).next_back().unwrap_or_else(|| panic!("{at:#x} is not allocated"));
        let offset = (at - start) as usize;
        assert!(offset <= block.len(), "{at:#x} is not allocated");
        &block[offset..]
    }

    pub(crate) fn bytes(&self, at: u64, n_bytes: usize) -> &[u8] {
        &self.rest(at)[..n_bytes]
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        let (start, block) =
            self.blocks.range_mut(..=at).next_back().unwrap_or_else(|| panic!("{at:#x} is not allocated"));
        block[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn words(&self, at: u64, n: usize) -> Vec<u32> {
        self.bytes(at, 4 * n).as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
    }

    pub(crate) fn floats(&self, at: u64, n: usize) -> Vec<f32> {
        self.words(at, n).into_iter().map(f32::from_bits).collect()
    }

    pub(crate) fn put_words(&mut self, at: u64, words: &[u32]) {
        self.write(at, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    }

    pub(crate) fn put(&mut self, at: u64, values: &[f32]) {
        self.write(at, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
    }
}
