//! One network on one device, with the KV cache it reads and writes.

use std::collections::BTreeMap;

use crate::AdapterId;
use crate::error::{BatchError, LoadError, StepError};
use crate::files::ModelFiles;
use crate::kernels::{CacheShape, ModelBatch, Ops};
use crate::models::{self, Adapters, LowRank, ModelSpec, Network, Outputs};

/// Runs forwards of the loaded network on its device.
pub trait Runner: Send {
    /// Facts about the loaded network.
    fn spec(&self) -> &ModelSpec;

    /// Runs a forward of `text`, then of `canvases`, which attend to the K/V of `text`. Returns the scores of all recipes, in this
    /// order, and the states of `text`. The K/V of every row of `text` are written.
    fn forward(&mut self, text: &ModelBatch, canvases: &ModelBatch) -> Result<Outputs, StepError>;

    /// Loads an adapter under an id that rows may have from now on, of `max_bytes` at most. Returns the bytes it takes.
    fn load_adapter(&mut self, id: AdapterId, files: &ModelFiles, max_bytes: u64) -> Result<u64, LoadError>;

    /// Forgets an adapter; no later batch has it.
    fn unload_adapter(&mut self, id: AdapterId);
}

/// A network with its device and cache.
pub struct DeviceRunner<O: Ops> {
    ops: O,
    network: Box<dyn Network<O>>,
    cache: O::Cache,
    adapters: BTreeMap<AdapterId, LowRank<O>>,
    /// Self-conditioning of each position of a canvas, for networks that denoise canvases.
    conditioning: Option<O::Tensor>,
}

impl<O: Ops> DeviceRunner<O> {
    /// A runner with an empty cache of this extent and buffers for `n_canvas_rows` rows of canvases.
    pub fn new(
        ops: O,
        network: Box<dyn Network<O>>,
        cache: &[CacheShape],
        n_canvas_rows: usize,
    ) -> Result<Self, LoadError> {
        let cache = ops.cache(cache).map_err(|error| LoadError::of("KV cache", error))?;
        let conditioning = network.canvas().map(|canvas| ops.zeros(n_canvas_rows, canvas.conditioning_width()));
        let conditioning =
            conditioning.transpose().map_err(|error| LoadError::of("buffer for self-conditioning", error))?;
        Ok(Self { ops, network, cache, adapters: BTreeMap::new(), conditioning })
    }
}

impl<O: Ops> Runner for DeviceRunner<O> {
    fn spec(&self) -> &ModelSpec {
        self.network.spec()
    }

    fn forward(&mut self, text: &ModelBatch, canvases: &ModelBatch) -> Result<Outputs, StepError> {
        let Self { ops, network, cache, adapters: loaded, conditioning } = self;
        let mut adapters = Adapters::none();
        for id in text.adapted.keys() {
            adapters.push(*id, loaded.get(id).ok_or(BatchError::AdapterNotLoaded(*id))?);
        }
        let mut outputs = Outputs::default();
        if !text.ids.is_empty() {
            outputs = network.score(ops, text, &adapters, cache)?;
        }
        if !canvases.ids.is_empty() {
            let (Some(canvas_network), Some(conditioning)) = (network.canvas(), conditioning) else {
                return Err(BatchError::NoCanvases.into());
            };
            let step = ops.begin(canvases)?;
            let x = canvas_network.denoise(ops, canvases, &step, conditioning, cache)?;
            let conditioning = canvas_network.self_conditioning(conditioning);
            outputs.scored.extend(ops.score(&x, &network.head(), &canvases.specs, Some(conditioning))?);
        }
        Ok(outputs)
    }

    fn load_adapter(&mut self, id: AdapterId, files: &ModelFiles, max_bytes: u64) -> Result<u64, LoadError> {
        let adapter = models::load_adapter(files, &self.ops, self.network.as_ref(), max_bytes)?;
        let n_bytes = adapter.n_bytes();
        self.adapters.insert(id, adapter);
        Ok(n_bytes)
    }

    fn unload_adapter(&mut self, id: AdapterId) {
        self.adapters.remove(&id);
    }
}
