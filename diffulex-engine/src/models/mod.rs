//! Networks: one file each, written once against [`crate::kernels::Ops`], chosen by `architectures[0]`.
//!
//! A network is a function of a [`ModelBatch`] that owns only its weights; the engine passes the KV cache. [`families`] lists the
//! facts that checkpoints do not state.
//!
//! Never here: requests, schedulers, strategies, messages.

mod adapter;
mod checkpoint;
mod config_fields;
mod config_rules;
mod decoder;
mod dense;
mod diffusion_gemma;
pub mod families;
mod llada2;
mod loader;
mod low_rank;
mod softmax_moe;

pub use crate::alignment::LogitAlignment;
pub use crate::kernels::ModelBatch;
pub use adapter::is_d2f;
pub use checkpoint::Checkpoint;
pub use families::Family;
pub use low_rank::{Adapters, LowRank, Site};

use crate::error::{LoadError, StepError};
use crate::files::ModelFiles;
use crate::kernels::{CacheShape, Head, KvType, Ops, RowList, RowScore, SelfConditioning, WeightType};
use adapter::Adapter;
use diffusion_gemma::DiffusionGemma;
use families::NetworkKind;
use loader::{Declared, Loader};

/// Facts about a network that the engine needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Its family, by `architectures[0]`.
    pub family: &'static Family,
    /// K/V heads of each layer.
    pub kv_layers: Vec<KvHeads>,
    /// Rows of the output head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Maximum number of positions (`max_position_embeddings`).
    pub max_positions: usize,
    /// Number of weights.
    pub n_parameters: u64,
    /// Format of the weights in memory.
    pub dtype: WeightType,
    /// An adapter is merged into the weights.
    pub is_adapted: bool,
    /// Block size in training, if config.json has it.
    pub block_size: Option<usize>,
    /// The mask token, if config.json names it.
    pub mask_token_id: Option<u32>,
}

/// K/V of a layer per position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    /// K (or V) heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl ModelSpec {
    /// Extent of each layer's KV cache.
    pub fn cache_shapes(&self, n_pages: usize, page_size: usize, kv_type: KvType) -> Vec<CacheShape> {
        let shape = |heads: &KvHeads| CacheShape {
            n_slots: n_pages * page_size,
            page_size,
            n_kv_heads: heads.n_heads,
            head_dim: heads.head_dim,
            kv_type,
        };
        self.kv_layers.iter().map(shape).collect()
    }
}

/// Results of a forward.
#[derive(Debug, Default, PartialEq)]
pub struct Outputs {
    /// One result per score spec.
    pub scored: Vec<Option<RowScore>>,
    /// Final states of the batch's `state_rows`, as the output head reads them: `[n_rows, hidden_size]`, row-major.
    pub states: Vec<f32>,
}

/// A network on the device of `O`.
pub trait Network<O: Ops>: Send + Sync {
    /// Facts about this network.
    fn spec(&self) -> &ModelSpec;

    /// Projections that adapters may change.
    fn sites(&self) -> &[Site] {
        &[]
    }

    /// Number of layers.
    fn n_layers(&self) -> usize;

    /// The residual stream of every row before the first layer.
    fn embed(&self, ops: &O, step: &O::Step<'_>) -> Result<O::Tensor, StepError>;

    /// Runs layer `index` on the residual stream `x` of every row. Writes the K/V of every row in this layer.
    fn run_layer(
        &self,
        index: usize,
        x: &mut O::Tensor,
        ops: &O,
        step: &O::Step<'_>,
        adapters: &Adapters<'_, O>,
        cache: &mut O::Cache,
    ) -> Result<(), StepError>;

    /// The residual stream of every row after the last layer. Writes the K/V of every row.
    fn hidden(
        &self,
        ops: &O,
        step: &O::Step<'_>,
        adapters: &Adapters<'_, O>,
        cache: &mut O::Cache,
    ) -> Result<O::Tensor, StepError> {
        let mut x = self.embed(ops, step)?;
        for index in 0..self.n_layers() {
            self.run_layer(index, &mut x, ops, step, adapters, cache)?;
        }
        Ok(x)
    }

    /// The output head.
    fn head(&self) -> Head<'_, O>;

    /// This network as a [`CanvasNetwork`]; `None` if it does not denoise canvases.
    fn canvas(&self) -> Option<&dyn CanvasNetwork<O>> {
        None
    }

    /// Runs a forward and returns the results of the batch's recipes and its `state_rows`. Writes the K/V of every row.
    fn score(
        &self,
        ops: &O,
        batch: &ModelBatch,
        adapters: &Adapters<'_, O>,
        cache: &mut O::Cache,
    ) -> Result<Outputs, StepError> {
        let step = ops.begin(batch)?;
        let x = self.hidden(ops, &step, adapters, cache)?;
        let mut states = Vec::new();
        if !batch.state_rows.is_empty() {
            let rows = ops.select(&x, &step, RowList::States)?;
            ops.host_into(&self.head().states(ops, &rows)?, &mut states)?;
        }
        Ok(Outputs { scored: ops.score(&x, &self.head(), &batch.specs, None)?, states })
    }
}

/// A network that denoises canvases, which have no masks, after a context encoded by [`Network::hidden`].
pub trait CanvasNetwork<O: Ops>: Network<O> {
    /// The residual stream of the rows of `canvases` before the first layer; `step` has the same rows. `conditioning` is the buffer that
    /// earlier steps wrote to.
    fn embed_canvases(
        &self,
        ops: &O,
        canvases: &ModelBatch,
        step: &O::Step<'_>,
        conditioning: &O::Tensor,
    ) -> Result<O::Tensor, StepError>;

    /// Runs layer `index` on the residual stream `x` of the rows of whole canvases, each of which attends to the context and all of its
    /// canvas. Writes the rows' K/V in this layer, which are valid for this step only.
    fn denoise_layer(
        &self,
        index: usize,
        x: &mut O::Tensor,
        ops: &O,
        step: &O::Step<'_>,
        cache: &mut O::Cache,
    ) -> Result<(), StepError>;

    /// The residual stream of the rows of `canvases` after the last layer.
    fn denoise(
        &self,
        ops: &O,
        canvases: &ModelBatch,
        step: &O::Step<'_>,
        conditioning: &O::Tensor,
        cache: &mut O::Cache,
    ) -> Result<O::Tensor, StepError> {
        let mut x = self.embed_canvases(ops, canvases, step, conditioning)?;
        for index in 0..self.n_layers() {
            self.denoise_layer(index, &mut x, ops, step, cache)?;
        }
        Ok(x)
    }

    /// Returns the self-conditioning that a step writes to the buffer `rows`, `[n, conditioning_width]`, for the next step.
    fn self_conditioning<'a>(&'a self, rows: &'a mut O::Tensor) -> SelfConditioning<'a, O>;

    /// Width of the conditioning buffer.
    fn conditioning_width(&self) -> usize;
}

/// Returns the family of a model, and its config.json.
pub fn read_config(files: &ModelFiles) -> Result<(&'static Family, serde_json::Value), LoadError> {
    let config = files.read_json("config.json")?.ok_or_else(|| LoadError::of(files.place(), "has no config.json"))?;
    let architecture = config.get("architectures").and_then(|names| names.get(0)?.as_str()).ok_or_else(|| {
        let what = "config.json has no architectures[0], which names the kind of model";
        LoadError::of(files.place(), what)
    })?;
    let family = Family::of(architecture).ok_or_else(|| {
        let what = if families::is_autoregressive(architecture) {
            format!("{architecture} is an autoregressive model")
        } else {
            format!("architecture {architecture} is not supported")
        };
        let served = families::names();
        LoadError::of(files.place(), format!("{what}; Diffulex serves diffusion language models: {served}"))
    })?;
    Ok((family, config))
}

/// Returns the unknown fields of config.json. Fails for fields that would change the computation.
pub fn unknown_fields(files: &ModelFiles) -> Result<Vec<String>, LoadError> {
    let (family, config) = read_config(files)?;
    config_rules::unknown_fields(family, &config).map_err(|error| error.at(&files.place()))
}

/// Loads the network of `files` onto the device of `ops`, merged with the adapter of `merged` or else the one among `files`, if any.
/// `progress` is called with the number of weights loaded so far and the total.
pub fn load<O: Ops + 'static>(
    files: &ModelFiles,
    merged: Option<&ModelFiles>,
    ops: &O,
    dtype: Option<WeightType>,
    max_positions: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Network<O>>, LoadError> {
    let (family, config) = read_config(files)?;
    let here = |error: LoadError| error.at(&files.place());
    config_rules::refuse_unsupported(family, &config).map_err(here)?;
    let unknown = config_rules::unknown_fields(family, &config).map_err(here)?;
    if !unknown.is_empty() {
        let (place, names) = (files.place(), unknown.join(", "));
        tracing::warn!("{place}: unknown fields of config.json are ignored: {names}");
    }
    let declared = Declared::read(&config).map_err(here)?;
    let mut checkpoint = Checkpoint::open(files)?;
    let dtype = dtype.unwrap_or(checkpoint.weight_type());
    let mut loader = Loader {
        ops,
        checkpoint: &mut checkpoint,
        dtype,
        progress,
        n_parameters: 0,
        declared,
        sites: Vec::new(),
        adapter: merged.map_or_else(|| Adapter::find(files), |files| Adapter::open(files).map(Some))?,
    };
    let loader = &mut loader;
    let network: Result<Box<dyn Network<O>>, LoadError> = match family.network {
        NetworkKind::Dense => boxed(dense::load(loader, family, &config, max_positions)),
        NetworkKind::DenseLlada => boxed(dense::load_llada(loader, family, &config, max_positions)),
        NetworkKind::MoeSdar => boxed(softmax_moe::load_sdar(loader, family, &config, max_positions)),
        NetworkKind::MoeLlada => boxed(softmax_moe::load_llada(loader, family, &config, max_positions)),
        NetworkKind::Llada2 => boxed(llada2::load(loader, family, &config, max_positions)),
        NetworkKind::DiffusionGemma => boxed(DiffusionGemma::load(loader, family, &config, max_positions)),
    };
    let network = network.map_err(here)?;
    loader.checkpoint.refuse_surplus()?;
    if let Some(adapter) = &loader.adapter {
        adapter.refuse_surplus()?;
    }
    Ok(network)
}

/// Loads the adapter of `files` for `network`. Fails if its file or its factors have more than `max_bytes`.
pub fn load_adapter<O: Ops>(
    files: &ModelFiles,
    ops: &O,
    network: &dyn Network<O>,
    max_bytes: u64,
) -> Result<LowRank<O>, LoadError> {
    let adapter = Adapter::open_beside(files, max_bytes)?;
    LowRank::load(ops, adapter, network.sites(), max_bytes).map_err(|error| error.at(&files.place()))
}

fn boxed<O: Ops + 'static>(
    network: Result<impl Network<O> + 'static, LoadError>,
) -> Result<Box<dyn Network<O>>, LoadError> {
    Ok(Box::new(network?))
}
