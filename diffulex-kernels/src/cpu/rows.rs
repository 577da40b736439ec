//! Activations on the CPU, in memory that is used again.
//!
//! A forward makes a few hundred tensors and drops them soon. Taken from the system each time, most of their cost would
//! be the pages it maps and clears: a quarter of a forward of 300 rows. So dropped ones are kept for the next.

use std::sync::{Arc, Mutex, PoisonError};

use crate::cpu::pool::threads::Pool;

/// Values below which work on rows stays on one thread: some microseconds of it.
const PARALLEL_VALUES: usize = 1 << 14;

/// Buffers kept at most: more than a layer has alive at once. Chosen by us.
const MAX_KEPT: usize = 32;

/// Values of a buffer that is kept, at most, 64 MiB: logits of many rows are larger, and filling those takes longer than
/// mapping their memory again. Chosen by us.
const MAX_KEPT_VALUES: usize = 1 << 24;

/// Free buffers. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    kept: Arc<Mutex<Vec<Vec<f32>>>>,
}

impl Buffers {
    /// `len` values with arbitrary content.
    fn take(&self, len: usize) -> Vec<f32> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest that holds them, so that a small tensor does not take a large one's place.
        let fit =
            (0..kept.len()).filter(|index| kept[*index].capacity() >= len).min_by_key(|index| kept[*index].capacity());
        let mut buffer = fit.map_or_else(Vec::new, |index| kept.remove(index));
        drop(kept);
        // Cleared only where it grows: the user writes all of it.
        buffer.truncate(len);
        buffer.resize(len, 0.0);
        buffer
    }

    fn give_back(&self, buffer: Vec<f32>) {
        if buffer.capacity() > MAX_KEPT_VALUES {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // The least recently used buffer makes room: the sizes of steps may have changed.
        let is_full = kept.len() == MAX_KEPT;
        let _oldest = is_full.then(|| kept.remove(0));
        kept.push(buffer);
    }
}

/// f32 values `[n_rows, width]`, row-major.
#[derive(Debug)]
pub struct Rows {
    values: Vec<f32>,
    width: usize,
    buffers: Buffers,
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.buffers.give_back(std::mem::take(&mut self.values));
    }
}

impl Clone for Rows {
    fn clone(&self) -> Self {
        let mut copy = self.scratch(self.n_rows(), self.width);
        copy.values.copy_from_slice(&self.values);
        copy
    }
}

impl Rows {
    /// Uninitialised values in memory of `buffers`.
    pub fn new(buffers: &Buffers, n_rows: usize, width: usize) -> Self {
        Self { values: buffers.take(n_rows * width), width, buffers: buffers.clone() }
    }

    /// Zeros, in memory of their own, which costs nothing before it is written.
    pub fn zeros(buffers: &Buffers, n_rows: usize, width: usize) -> Self {
        Self { values: vec![0.0; n_rows * width], width, buffers: buffers.clone() }
    }

    /// The rows of these numbers, in that order.
    pub(crate) fn select(&self, rows: &[u32]) -> Self {
        let mut out = self.scratch(rows.len(), self.width());
        for (place, row) in rows.iter().enumerate() {
            out.row_mut(place).copy_from_slice(self.row(*row as usize));
        }
        out
    }

    /// Uninitialised values in memory of the same buffers.
    pub fn scratch(&self, n_rows: usize, width: usize) -> Self {
        Self::new(&self.buffers, n_rows, width)
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.values.len() / self.width
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..(row + 1) * self.width]
    }

    /// One row, to write.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.width..(row + 1) * self.width]
    }

    /// All rows.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Whether there are enough values to share the work between threads.
    pub(crate) fn are_many(&self) -> bool {
        self.values.len() >= PARALLEL_VALUES
    }

    /// `work` on every row and its number, on several threads where there is enough to do.
    pub(crate) fn each(&mut self, pool: &Pool, work: impl Fn(usize, &mut [f32]) + Sync) {
        let width = self.width;
        if self.are_many() {
            pool.chunks(&mut self.values, width, work);
        } else {
            self.values.chunks_exact_mut(width).enumerate().for_each(|(row, values)| work(row, values));
        }
    }

    /// All rows, to write.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}
