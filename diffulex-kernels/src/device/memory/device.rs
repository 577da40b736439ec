//! A driver and the memory that was allocated from it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::device::driver::{Driver, Transfer};
use crate::device::memory::holdings::Holdings;
use crate::device::memory::staging::Pinned;
use crate::error::DeviceError;

/// Pieces in which weights travel: large enough for the bus, small beside a tensor. Chosen by us.
const PIECE: usize = 8 << 20;

/// A device.
pub(crate) struct Device {
    pub(crate) driver: Arc<dyn Driver>,
    /// Memory of buffers.
    pub(crate) holdings: Holdings,
    /// Through which bytes travel to buffers; made when it is first needed.
    pinned: Mutex<Option<Pinned>>,
}

impl Device {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { driver, holdings: Holdings::default(), pinned: Mutex::default() })
    }

    /// Frees the memory of dropped buffers. No launch may wait or run.
    pub(crate) fn free_dropped(&self) {
        // SAFETY: nothing runs that may use it, as the caller answers for, and it is forgotten.
        self.holdings.free_dropped(|address| unsafe { self.driver.free(address) });
    }

    /// Copies `bytes` to a range of a buffer, a piece at a time.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned = match &mut *pinned {
            Some(pinned) => pinned,
            none => none.insert(Pinned::new(self.driver.clone(), PIECE)?),
        };
        for (index, piece) in bytes.chunks(PIECE).enumerate() {
            pinned.bytes_mut()[..piece.len()].copy_from_slice(piece);
            let to = address + (index * PIECE) as u64;
            let transfer = Transfer::Upload { to, from: pinned.bytes().as_ptr(), n_bytes: piece.len() };
            // SAFETY: the caller has checked the range; the pinned bytes stay until the device has read them, just below.
            unsafe { self.driver.transfer(transfer) }?;
            self.driver.wait()?;
        }
        Ok(())
    }

    /// Fills a range of a buffer with zeros.
    pub(crate) fn clear(&self, at: u64, n_bytes: usize) -> Result<(), DeviceError> {
        if n_bytes > 0 {
            // SAFETY: the caller has checked the range.
            unsafe { self.driver.transfer(Transfer::Clear { at, n_bytes }) }?;
            self.driver.wait()?;
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Nothing may run any more when memory goes; an error means that the context is gone, and the memory with it.
        let _ = self.driver.wait();
        // SAFETY: no buffer is left.
        self.holdings.free_all(|address| unsafe { self.driver.free(address) });
    }
}
