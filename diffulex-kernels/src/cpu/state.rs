//! State shared by the CPU's operations: threads, instruction set, buffers to reuse.

use std::io;

use crate::cpu::isa::simd::Simd;
use crate::cpu::packing::matrix::PackedMatrix;
use crate::cpu::pool::threads::Pool;
use crate::cpu::rows::{Buffers, Rows};
use crate::cpu::score::findings::Findings;
use crate::error::BatchError;

/// The CPU's kernels.
pub struct CpuOps {
    pub(crate) pool: Pool,
    pub(crate) simd: Simd,
    pub(crate) buffers: Buffers,
    pub(crate) findings: Findings,
}

impl CpuOps {
    /// Kernels on `n_threads` threads, the caller's included; at least 1.
    pub fn new(n_threads: usize) -> io::Result<Self> {
        Ok(Self {
            pool: Pool::new(n_threads)?,
            simd: Simd::detect(),
            buffers: Buffers::default(),
            findings: Findings::default(),
        })
    }

    /// Kernels on one thread with the given instructions.
    #[cfg(test)]
    pub(crate) fn with_simd(simd: Simd) -> Self {
        Self { simd, ..Self::new(1).expect("a thread") }
    }

    /// The vector instructions in use, for messages.
    pub fn simd_name(&self) -> &'static str {
        self.simd.name()
    }

    /// The rows `ids` of `table`.
    pub(crate) fn rows_of(
        &self,
        table: &PackedMatrix,
        ids: impl ExactSizeIterator<Item = u32>,
    ) -> Result<Rows, BatchError> {
        let mut out = Rows::new(&self.buffers, ids.len(), table.n_in());
        for (row, id) in ids.enumerate() {
            BatchError::check_id(id, table.n_out())?;
            table.unpack_row(id as usize, out.row_mut(row));
        }
        Ok(out)
    }
}
