//! One network on one device, with the KV cache it reads and writes.

use crate::error::{LoadError, StepError};
use crate::kernels::Ops;
use crate::models::{ModelBatch, ModelSpec, Network};

/// A forward of whatever is loaded, wherever it runs.
pub trait Runner: Send {
    /// What is loaded.
    fn spec(&self) -> &ModelSpec;

    /// Logits `[batch.logit_rows.len(), vocab_size]`. When it returns, the K/V of every row of `batch` are written.
    fn forward(&mut self, batch: &ModelBatch) -> Result<Vec<f32>, StepError>;
}

/// A network with its device and cache.
pub struct DeviceRunner<O: Ops> {
    ops: O,
    network: Box<dyn Network<O>>,
    cache: O::Cache,
}

impl<O: Ops> DeviceRunner<O> {
    /// A runner with an empty cache of `n_pages`.
    pub fn new(ops: O, network: Box<dyn Network<O>>, n_pages: usize, page_size: usize) -> Result<Self, LoadError> {
        let spec = network.spec();
        let cache =
            ops.cache(&spec.cache_shapes(n_pages, page_size)).map_err(|error| LoadError::of("KV cache", error))?;
        Ok(Self { ops, network, cache })
    }
}

impl<O: Ops> Runner for DeviceRunner<O> {
    fn spec(&self) -> &ModelSpec {
        self.network.spec()
    }

    fn forward(&mut self, batch: &ModelBatch) -> Result<Vec<f32>, StepError> {
        let Self { ops, network, cache } = self;
        ops.scope(|| network.forward(ops, batch, cache))
    }
}
