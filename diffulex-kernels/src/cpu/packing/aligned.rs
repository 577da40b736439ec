//! Memory for products: it begins with a cache line, and lies on huge pages where it is large.
//!
//! A vector across two cache lines costs two reads. On pages of 4 KiB, the weights of a forward need a hundred times the entries
//! of a processor's TLB, and it prefetches within a page only.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

/// Bytes of a line of the caches.
pub(crate) const CACHE_LINE: usize = 64;

/// Bytes of a huge page on x86-64, and on ARM with pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// `len` values.
pub(crate) struct Aligned<T> {
    bytes: Bytes,
    /// Offset of the first value in `bytes`.
    start: usize,
    len: usize,
    values: PhantomData<T>,
}

enum Bytes {
    Heap(Vec<u8>),
    Mapped(MmapMut),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

/// Zeros, on as many huge pages as they fill. They take no memory before they are written.
fn map(n_bytes: usize) -> io::Result<(Bytes, usize)> {
    let bytes = MmapMut::map_anon(n_bytes + HUGE_PAGE)?;
    let start = bytes.as_ptr().align_offset(HUGE_PAGE);
    // The rest of the last one would take a whole huge page. A system that has none leaves the pages small.
    #[cfg(target_os = "linux")]
    let _ = bytes.advise_range(memmap2::Advice::HugePage, start, n_bytes / HUGE_PAGE * HUGE_PAGE);
    Ok((Bytes::Mapped(bytes), start))
}

fn allocate(n_bytes: usize) -> (Bytes, usize) {
    let bytes = vec![0; n_bytes + CACHE_LINE];
    let start = bytes.as_ptr().align_offset(CACHE_LINE);
    (Bytes::Heap(bytes), start)
}

impl<T: Pod> Aligned<T> {
    /// `len` values of zero bytes.
    pub(crate) fn zeroed(len: usize) -> Self {
        let n_bytes = len * size_of::<T>();
        let mapped = (n_bytes >= HUGE_PAGE).then(|| map(n_bytes).ok()).flatten();
        // Memory that cannot be mapped may still be allocated; if not, the allocator says so.
        let (bytes, start) = mapped.unwrap_or_else(|| allocate(n_bytes));
        Self { bytes, start, len, values: PhantomData }
    }
}

impl<T: Pod> Default for Aligned<T> {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<T: Pod> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.bytes[self.start..self.start + self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let n_bytes = self.len * size_of::<T>();
        bytemuck::cast_slice_mut(&mut self.bytes[self.start..self.start + n_bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_every_size_is_zero_and_begins_with_a_line() {
        for len in [0, 1, 15, 16, 1000, HUGE_PAGE / 64 - 1, HUGE_PAGE / 64, HUGE_PAGE / 64 + 1, HUGE_PAGE / 16] {
            let mut memory = Aligned::<[u8; 64]>::zeroed(len);
            assert_eq!(memory.len(), len);
            assert!(memory.iter().flatten().all(|byte| *byte == 0));
            let boundary = if len * 64 >= HUGE_PAGE { HUGE_PAGE } else { CACHE_LINE };
            assert_eq!(memory.as_ptr().align_offset(boundary), 0, "{len}");
            memory.fill([7; 64]);
            assert!(memory.iter().flatten().all(|byte| *byte == 7));
        }
    }
}
