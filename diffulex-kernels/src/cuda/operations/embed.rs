//! Embeddings: rows of a table by id, blended by weight, and mixed by a softmax over all ids.
//!
//! Kernels: `gpu/embed.cu`.

use crate::cuda::driver::queue::Arg;
use crate::cuda::operands::matrix::Matrix;
use crate::cuda::operands::padding::{NONE, bucket};
use crate::cuda::operands::step::Step;
use crate::cuda::operands::tensor::Tensor;
use crate::cuda::operands::words::Words;
use crate::cuda::operations::rows::{FLAT_THREADS, REDUCTION};
use crate::cuda::state::CudaOps;
use crate::error::{BatchError, StepError};

/// Ids per partial sum. `MIX_CHUNK` of embed.cu.
const MIX_CHUNK: usize = 8192;

/// Rows and channels of a block of a mix. `TILE` of embed.cu.
const MIX_TILE: usize = 64;

/// Bytes of shared memory of a block of a mix: 16 ids of the weights and of the table.
const MIX_SHARED: u32 = 2 * 16 * 4 * MIX_TILE as u32;

impl CudaOps {
    pub(crate) fn embed_ids(&self, table: &Matrix, step: &Step<'_>) -> Result<Tensor, StepError> {
        step.batch.ids.iter().try_for_each(|id| BatchError::check_id(*id, table.n_out))?;
        let out = self.tensor_of(step.n_rows, step.batch.ids.len(), table.n_in)?;
        let args = [&table.as_args()[..], &[Arg::Pointer(step.ids), (&out).into()]].concat();
        self.launch_listed("embed", step.n_rows, table.n_in, &args);
        Ok(out)
    }

    pub(crate) fn blend_rows(&self, x: &mut Tensor, table: &Matrix, step: &Step<'_>) -> Result<(), StepError> {
        let blends = &step.batch.blends;
        if blends.is_empty() {
            return Ok(());
        }
        let parts = || blends.iter().flat_map(|blend| &blend.parts);
        parts().try_for_each(|(id, _)| BatchError::check_id(*id, table.n_out))?;
        // Blends as `Blend` of embed.cu, ids, weights; each rounded up, so that steps of about the same size have the same extent.
        let n_blends = bucket(blends.len());
        let mut descriptions = Vec::new();
        let mut first = 0;
        for blend in blends {
            descriptions.extend([blend.row, first, blend.parts.len() as u32, u32::from(blend.keeps_length)]);
            first += blend.parts.len() as u32;
        }
        let n_parts = (first as usize).next_power_of_two();
        let mut words = Words::default();
        let blends_at = words.push(descriptions, 4 * n_blends, NONE);
        let ids_at = words.push(parts().map(|(id, _)| *id), n_parts, 0);
        let weights_at = words.push(parts().map(|(_, weight)| weight.to_bits()), n_parts, 0);
        let lists = self.upload_words(&words)?;
        let lists_at = [blends_at, ids_at, weights_at].map(|at| Arg::Pointer(lists.address() + at as u64));
        let args = [&[(&*x).into()], &table.as_args()[..], &lists_at].concat();
        self.launch("blend", [n_blends, 1, 1], FLAT_THREADS, REDUCTION, &args);
        Ok(())
    }

    pub(crate) fn mix(&self, table: &Matrix, logits: &Tensor) -> Result<Tensor, StepError> {
        let (n_rows, width) = (logits.n_rows, table.n_in);
        let n_chunks = table.n_out.div_ceil(MIX_CHUNK);
        let weights = self.alloc(8 * n_rows)?;
        let sums = self.alloc(4 * n_chunks * n_rows * width)?;
        let out = self.tensor_of(n_rows, logits.n_real, width)?;
        if n_rows == 0 {
            return Ok(out);
        }
        let args = [logits.into(), table.n_out.into(), (&weights).into()];
        self.launch("mix_weights", [n_rows, 1, 1], 512, REDUCTION, &args);
        let args =
            [&[logits.into(), (&weights).into()], &table.as_args()[..], &[n_rows.into(), (&sums).into()]].concat();
        let grid = [width.div_ceil(MIX_TILE), n_rows.div_ceil(MIX_TILE), n_chunks];
        self.launch("mix_sums", grid, FLAT_THREADS, MIX_SHARED, &args);
        let args = [(&sums).into(), (&weights).into(), n_chunks.into(), width.into(), (&out).into()];
        self.launch_listed("mix_join", n_rows, width, &args);
        Ok(out)
    }
}
