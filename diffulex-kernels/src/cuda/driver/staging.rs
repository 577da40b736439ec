//! Pinned host memory, through which everything travels to the device and back.

use cudarc::driver::{DriverError, result};

/// Page-locked host memory.
pub(crate) struct Pinned {
    start: *mut u8,
    n_bytes: usize,
}

// SAFETY: it owns its memory, which any thread may use.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Zeros. The context must be bound to this thread.
    pub(crate) fn new(n_bytes: usize) -> Result<Self, DriverError> {
        let n_bytes = n_bytes.max(1);
        // SAFETY: allocates; 0 asks for ordinary pinned memory.
        let start = unsafe { result::malloc_host(n_bytes, 0) }?.cast::<u8>();
        // SAFETY: the allocation has `n_bytes` bytes, which nobody else uses yet.
        unsafe { start.write_bytes(0, n_bytes) };
        Ok(Self { start, n_bytes })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as many bytes are allocated and were written by `new`; copies of the device into them end before they are read.
        unsafe { std::slice::from_raw_parts(self.start, self.n_bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.n_bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it came from `malloc_host` and is freed once. An error means that the context is gone, and the memory with it.
        let _ = unsafe { result::free_host(self.start.cast()) };
    }
}

/// Pinned memory for one step after the other: handed out from the front, all at once free when the device is idle. The same
/// requests get the same places, so that a graph's copies find the bytes of the step that replays it.
#[derive(Default)]
pub(crate) struct Staging {
    pieces: Vec<Pinned>,
    /// The piece that is handed out from, and how much of it is.
    piece: usize,
    used: usize,
}

/// A range of the staging memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    piece: usize,
    start: usize,
    pub(crate) n_bytes: usize,
}

/// Least size of a piece. Chosen by us: a step's lists are some kilobytes.
const PIECE: usize = 1 << 20;

impl Staging {
    /// Takes a range. The context must be bound to this thread.
    pub(crate) fn take(&mut self, n_bytes: usize) -> Result<Place, DriverError> {
        while self.pieces.get(self.piece).is_some_and(|piece| piece.n_bytes - self.used < n_bytes) {
            self.piece += 1;
            self.used = 0;
        }
        if self.piece == self.pieces.len() {
            self.pieces.push(Pinned::new(n_bytes.max(PIECE))?);
        }
        let place = Place { piece: self.piece, start: self.used, n_bytes };
        // Copies are fastest between whole cache lines.
        self.used = (self.used + n_bytes).next_multiple_of(64).min(self.pieces[self.piece].n_bytes);
        Ok(place)
    }

    /// Bytes that were handed out since the last reset, about.
    pub(crate) fn used(&self) -> usize {
        self.pieces[..self.piece].iter().map(|piece| piece.n_bytes).sum::<usize>() + self.used
    }

    /// Everything is free again. The device must be idle.
    pub(crate) fn reset(&mut self) {
        (self.piece, self.used) = (0, 0);
    }

    pub(crate) fn bytes(&self, place: Place) -> &[u8] {
        &self.pieces[place.piece].bytes()[place.start..place.start + place.n_bytes]
    }

    /// Memory that the device writes to; it is read only after the device has been waited for.
    pub(crate) fn target(&self, place: Place) -> *mut [u8] {
        let piece = &self.pieces[place.piece];
        assert!(place.start + place.n_bytes <= piece.n_bytes, "a place of the staging memory");
        // SAFETY: within the allocation, as checked.
        std::ptr::slice_from_raw_parts_mut(unsafe { piece.start.add(place.start) }, place.n_bytes)
    }

    pub(crate) fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        &mut self.pieces[place.piece].bytes_mut()[place.start..place.start + place.n_bytes]
    }
}
