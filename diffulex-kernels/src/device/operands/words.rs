//! Lists of 32-bit words that travel to the device in one upload.

use crate::device::memory::arena::Block;
use crate::device::state::DeviceOps;
use crate::error::StepError;

/// Lists for the device, one after the other.
#[derive(Default)]
pub(crate) struct Words(Vec<u32>);

impl Words {
    /// Appends a list, padded to `n` words; where it begins, in bytes.
    pub(crate) fn push(&mut self, list: impl IntoIterator<Item = u32>, n: usize, padding: u32) -> usize {
        let start = self.0.len().next_multiple_of(4);
        self.0.resize(start, 0);
        self.0.extend(list);
        self.0.resize(start + n, padding);
        4 * start
    }

    /// Little-endian bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

impl DeviceOps {
    /// Appends an upload of the lists, into a block of their own.
    pub(crate) fn upload_words(&self, words: &Words) -> Result<Block, StepError> {
        self.upload(&words.bytes())
    }
}
