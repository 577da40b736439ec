//! Networks: one file each, written once against [`crate::kernels::Ops`], chosen by `architectures[0]`.
//!
//! A network is a function of a [`ModelBatch`]: it owns weights and nothing else. The KV cache belongs to the engine,
//! which passes it in.
//!
//! Never here: requests, schedulers, strategies, messages.

mod checkpoint;
mod dense;

pub use checkpoint::Checkpoint;
pub use dense::{DenseConfig, DenseDecoder};

use crate::error::{LoadError, StepError};
use crate::files::ModelFiles;
use crate::kernels::{Ops, SequenceRows, WeightType};

/// The rows of one forward, in host vectors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelBatch {
    /// Token of each row.
    pub ids: Vec<u32>,
    /// Absolute position of each row.
    pub positions: Vec<u32>,
    /// Cache slot each row's K/V goes to.
    pub slots: Vec<u32>,
    /// Which rows belong together and what they see; in order of rows, without gaps.
    pub sequences: Vec<SequenceRows>,
    /// Rows whose logits are wanted.
    pub logit_rows: Vec<u32>,
}

/// What a network is like, as far as the engine needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// `architectures[0]`.
    pub architecture: String,
    /// Layers.
    pub n_layers: usize,
    /// K (or V) heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rows of the output head.
    pub vocab_size: usize,
    /// Positions it was made for.
    pub max_positions: usize,
    /// Number of weights.
    pub n_parameters: u64,
    /// How the weights are held.
    pub dtype: WeightType,
    /// Positions of a block it was trained with, where its config tells.
    pub block_size: Option<usize>,
    /// The mask token, where its config tells.
    pub mask_token_id: Option<u32>,
}

/// A network on the device of `O`.
pub trait Network<O: Ops>: Send {
    /// What it is like.
    fn spec(&self) -> &ModelSpec;

    /// Logits `[batch.logit_rows.len(), vocab_size]` on the host. Writes the K/V of every row.
    fn forward(&self, ops: &O, batch: &ModelBatch, cache: &mut O::Cache) -> Result<Vec<f32>, StepError>;
}

/// The architectures that can be loaded.
pub const ARCHITECTURES: [&str; 1] = ["SDARForCausalLM"];

/// `architectures[0]` of a model's config, and the config.
pub fn read_config(files: &ModelFiles) -> Result<(String, serde_json::Value), LoadError> {
    let config = files.read_json("config.json")?.ok_or_else(|| LoadError::of(files.place(), "has no config.json"))?;
    let architecture = config
        .get("architectures")
        .and_then(|names| names.get(0)?.as_str())
        .ok_or_else(|| LoadError::of(files.place(), "config.json names no architecture in architectures[0]"))?
        .to_owned();
    if !ARCHITECTURES.contains(&architecture.as_str()) {
        let known = ARCHITECTURES.join(", ");
        return Err(LoadError::of(
            files.place(),
            format!("architecture {architecture} is not supported; supported are {known}"),
        ));
    }
    Ok((architecture, config))
}

/// Loads the network of `files` onto the device of `ops`. `progress` hears of bytes done and in all.
pub fn load<O: Ops>(
    files: &ModelFiles,
    ops: &O,
    dtype: Option<WeightType>,
    max_positions: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<DenseDecoder<O>, LoadError> {
    let (architecture, config) = read_config(files)?;
    let mut checkpoint = Checkpoint::open(files)?;
    let dtype = dtype.unwrap_or(checkpoint.weight_type());
    let network = DenseDecoder::load(ops, &architecture, &config, &mut checkpoint, dtype, max_positions, progress)?;
    checkpoint.refuse_surplus()?;
    Ok(network)
}
