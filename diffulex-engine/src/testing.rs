//! A look inside networks, for tests.
//!
//! Never here: anything that the product calls.

use crate::error::StepError;
use crate::kernels::{ModelBatch, Ops, RowList};
use crate::models::{Adapters, Network};

/// Intermediate results of a network.
pub trait Inspect<O: Ops>: Network<O> {
    /// Runs a forward. Returns the logits of the batch's `state_rows`: `[n_rows, vocab_size]`, row-major.
    fn forward(
        &self,
        ops: &O,
        batch: &ModelBatch,
        adapters: &Adapters<'_, O>,
        cache: &mut O::Cache,
    ) -> Result<Vec<f32>, StepError> {
        let step = ops.begin(batch)?;
        let x = self.hidden(ops, &step, adapters, cache)?;
        ops.host(&self.head().logits(ops, &ops.select(&x, &step, RowList::States)?)?)
    }

    /// Runs a forward. Returns the residual stream after the embedding and after each layer: `[n_rows, hidden_size]` each, row-major.
    fn hidden_states(&self, ops: &O, batch: &ModelBatch, cache: &mut O::Cache) -> Result<Vec<Vec<f32>>, StepError> {
        let step = ops.begin(batch)?;
        let mut x = self.embed(ops, &step)?;
        let mut states = vec![ops.host(&x)?];
        for index in 0..self.n_layers() {
            self.run_layer(index, &mut x, ops, &step, &Adapters::none(), cache)?;
            states.push(ops.host(&x)?);
        }
        Ok(states)
    }
}

impl<O: Ops, N: Network<O> + ?Sized> Inspect<O> for N {}
