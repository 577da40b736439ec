//! Pinned host memory, through which everything travels to the device and back.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::driver::Driver;
use crate::error::DeviceError;

/// Page-locked host memory.
pub(crate) struct Pinned {
    start: NonNull<u8>,
    n_bytes: usize,
    driver: Arc<dyn Driver>,
}

// SAFETY: it owns its memory, which any thread may use.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Zeros.
    pub(crate) fn new(driver: Arc<dyn Driver>, n_bytes: usize) -> Result<Self, DeviceError> {
        let n_bytes = n_bytes.max(1);
        Ok(Self { start: driver.pin(n_bytes)?, n_bytes, driver })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as many bytes are allocated and were written by the driver; copies of the device into them end before they are read.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.n_bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.n_bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it came from `pin` and is given back once. Copies end before it is dropped: `Queue` and `Device` wait.
        unsafe { self.driver.unpin(self.start, self.n_bytes) };
    }
}

/// Pinned memory for one step after the other: handed out from the front, all at once free when the device is idle. The same
/// requests get the same places, so that a graph's copies find the bytes of the step that replays it.
pub(crate) struct Staging {
    driver: Arc<dyn Driver>,
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
    /// None is allocated yet.
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, pieces: Vec::new(), piece: 0, used: 0 }
    }

    /// Takes a range.
    pub(crate) fn take(&mut self, n_bytes: usize) -> Result<Place, DeviceError> {
        while self.pieces.get(self.piece).is_some_and(|piece| piece.n_bytes - self.used < n_bytes) {
            self.piece += 1;
            self.used = 0;
        }
        if self.piece == self.pieces.len() {
            self.pieces.push(Pinned::new(self.driver.clone(), n_bytes.max(PIECE))?);
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
        std::ptr::slice_from_raw_parts_mut(unsafe { piece.start.as_ptr().add(place.start) }, place.n_bytes)
    }

    pub(crate) fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        &mut self.pieces[place.piece].bytes_mut()[place.start..place.start + place.n_bytes]
    }
}
