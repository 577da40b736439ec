//! Launches over rows, heads and arrays: their grids.

use crate::device::state::DeviceOps;
use crate::device::work::arg::Arg;
use crate::device::work::queue::LaunchId;

/// Threads of a block that has a row. `THREADS` of rows.cu.
pub(crate) const ROW_THREADS: u32 = 512;

/// Bytes of shared memory of a block that reduces over its threads: a word per warp. `WORDS` of block.h.
pub(crate) const REDUCTION: u32 = 4 * 32;

/// Values of a block that goes through an array, and its threads. `FLAT` of rows.cu.
pub(crate) const FLAT: usize = 1024;
pub(crate) const FLAT_THREADS: u32 = 256;

/// Heads of a block, a warp each, and its threads. `WARPS` of heads.cu.
pub(crate) const HEADS: usize = 4;
pub(crate) const HEAD_THREADS: u32 = 128;

impl DeviceOps {
    /// Launches one block per row; nothing without rows.
    pub(crate) fn launch_rows(&self, kernel: &'static str, n_rows: usize, args: &[Arg]) -> Option<LaunchId> {
        (n_rows > 0).then(|| self.launch(kernel, [n_rows, 1, 1], ROW_THREADS, REDUCTION, args))
    }

    /// Blocks for each part of an array.
    pub(crate) fn launch_flat(&self, kernel: &'static str, n_values: usize, args: &[Arg]) -> Option<LaunchId> {
        (n_values > 0).then(|| self.launch(kernel, [n_values.div_ceil(FLAT), 1, 1], FLAT_THREADS, 0, args))
    }

    /// Blocks for each listed row.
    pub(crate) fn launch_listed(&self, kernel: &'static str, n_rows: usize, width: usize, args: &[Arg]) {
        if n_rows > 0 {
            self.launch(kernel, [n_rows, width.div_ceil(FLAT), 1], FLAT_THREADS, 0, args);
        }
    }

    /// A warp for each head.
    pub(crate) fn launch_heads(&self, kernel: &'static str, n_heads: usize, args: &[Arg]) -> Option<LaunchId> {
        (n_heads > 0).then(|| self.launch(kernel, [n_heads.div_ceil(HEADS), 1, 1], HEAD_THREADS, 0, args))
    }
}
