//! The dense decoder: Llama, Qwen2 and Qwen3 as one network with switches.
//!
//! Per layer: RMSNorm, grouped-query attention (q, k, v with or without bias, with or without a norm per head, rotary),
//! RMSNorm, gated MLP; residuals around both. References: SDAR's modeling_sdar.py, transformers' Qwen3.
//!
//! | tensor | shape |
//! |---|---|
//! | `model.embed_tokens.weight` | vocab, hidden |
//! | `model.layers.N.{input,post_attention}_layernorm.weight` | hidden |
//! | `model.layers.N.self_attn.{q,k,v}_proj.{weight,bias}` | heads x head_dim, hidden |
//! | `model.layers.N.self_attn.{q,k}_norm.weight` | head_dim |
//! | `model.layers.N.self_attn.o_proj.weight` | hidden, heads x head_dim |
//! | `model.layers.N.mlp.{gate,up}_proj.weight`, `down_proj.weight` | intermediate, hidden; the reverse |
//! | `model.norm.weight`, `lm_head.weight` (absent where tied) | hidden; vocab, hidden |
//!
//! Whether there are biases and head norms is read off the tensors and checked against the config.

use serde::Deserialize;

use super::{Checkpoint, ModelBatch, ModelSpec, Network};
use crate::error::{LoadError, StepError};
use crate::kernels::{AttentionBatch, Ops, RopeTable, WeightType};

/// The fields of config.json that decide the maths.
#[derive(Clone, Debug, Deserialize)]
pub struct DenseConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// K/V heads; absent means as many as query heads.
    pub num_key_value_heads: Option<usize>,
    /// Width of a head; absent means `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// Rows of embedding and head.
    pub vocab_size: usize,
    /// Epsilon of every norm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Positions it was trained for.
    pub max_position_embeddings: usize,
    /// Activation of the MLP; only `silu` is known.
    pub hidden_act: String,
    /// The head is the embedding.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// q, k, v have a bias; absent means: see the tensors.
    pub attention_bias: Option<bool>,
    /// Must be absent or the default one.
    pub rope_scaling: Option<serde_json::Value>,
    /// Must be off.
    #[serde(default)]
    pub use_sliding_window: bool,
    /// Positions of a block, where the config tells.
    pub block_size: Option<usize>,
    /// The mask token, where the config tells.
    pub mask_token_id: Option<u32>,
}

impl DenseConfig {
    fn from_json(config: &serde_json::Value, place: &str) -> Result<Self, LoadError> {
        let parsed: Self = serde_json::from_value(config.clone())
            .map_err(|error| LoadError::of(place, format!("config.json: {error}")))?;
        let refuse = |what: String| Err(LoadError::of(place, format!("config.json: {what}")));
        if parsed.hidden_act != "silu" {
            return refuse(format!("hidden_act is {:?}; this network knows silu", parsed.hidden_act));
        }
        if parsed.use_sliding_window {
            return refuse("use_sliding_window is true; this network has no sliding window".to_owned());
        }
        if let Some(scaling) = &parsed.rope_scaling {
            let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(|kind| kind.as_str());
            if !scaling.is_null() && kind != Some("default") {
                return refuse(format!("rope_scaling {scaling} is not supported"));
            }
        }
        let (n_heads, n_kv_heads) = (parsed.num_attention_heads, parsed.n_kv_heads());
        if n_kv_heads == 0 || n_heads == 0 || n_heads % n_kv_heads != 0 {
            return refuse(format!("{n_heads} attention heads cannot share {n_kv_heads} key/value heads"));
        }
        if parsed.head_dim() == 0 || !parsed.head_dim().is_multiple_of(2) {
            return refuse(format!("head_dim is {}; rotary positions need an even one", parsed.head_dim()));
        }
        Ok(parsed)
    }

    fn n_kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }
}

struct Layer<O: Ops> {
    input_norm: O::Vector,
    q: Projection<O>,
    k: Projection<O>,
    v: Projection<O>,
    q_norm: Option<O::Vector>,
    k_norm: Option<O::Vector>,
    o: O::Matrix,
    post_attention_norm: O::Vector,
    gate: O::Matrix,
    up: O::Matrix,
    down: O::Matrix,
}

struct Projection<O: Ops> {
    weight: O::Matrix,
    bias: Option<O::Vector>,
}

/// The network.
pub struct DenseDecoder<O: Ops> {
    spec: ModelSpec,
    n_heads: usize,
    eps: f32,
    rope: RopeTable,
    embedding: O::Matrix,
    layers: Vec<Layer<O>>,
    norm: O::Vector,
    /// `None` where the embedding is the head.
    head: Option<O::Matrix>,
}

/// Reads tensors onto a device and keeps count.
struct Loader<'a, O: Ops> {
    ops: &'a O,
    checkpoint: &'a mut Checkpoint,
    dtype: WeightType,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
    n_parameters: u64,
}

impl<O: Ops> Loader<'_, O> {
    fn count(&mut self, n: usize) {
        self.n_parameters += n as u64;
        // Of the packed form: what a person watches is the share, and both forms grow alike.
        self.done = self.done.saturating_add(n as u64);
        (self.progress)(self.done, self.total.max(self.done));
    }

    fn matrix(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<O::Matrix, LoadError> {
        let data = self.checkpoint.take(name, &[n_out, n_in])?;
        let matrix = self.ops.matrix(data, n_out, n_in, self.dtype).map_err(|error| LoadError::of(name, error))?;
        self.count(n_out * n_in);
        Ok(matrix)
    }

    fn vector(&mut self, name: &str, width: usize) -> Result<O::Vector, LoadError> {
        let data = self.checkpoint.take(name, &[width])?;
        let vector = self.ops.vector(data).map_err(|error| LoadError::of(name, error))?;
        self.count(width);
        Ok(vector)
    }

    fn optional_vector(&mut self, name: &str, width: usize) -> Result<Option<O::Vector>, LoadError> {
        if self.checkpoint.contains(name) { self.vector(name, width).map(Some) } else { Ok(None) }
    }

    fn projection(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<Projection<O>, LoadError> {
        Ok(Projection {
            weight: self.matrix(&format!("{name}.weight"), n_out, n_in)?,
            bias: self.optional_vector(&format!("{name}.bias"), n_out)?,
        })
    }
}

impl<O: Ops> DenseDecoder<O> {
    /// Loads every tensor of the network; `max_positions` bounds the rotary table.
    pub fn load(
        ops: &O,
        architecture: &str,
        config: &serde_json::Value,
        checkpoint: &mut Checkpoint,
        dtype: WeightType,
        max_positions: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let config = DenseConfig::from_json(config, architecture)?;
        let (hidden, head_dim) = (config.hidden_size, config.head_dim());
        let (q_width, kv_width) = (config.num_attention_heads * head_dim, config.n_kv_heads() * head_dim);
        let total = checkpoint.n_bytes() / 2;
        let mut loader = Loader { ops, checkpoint, dtype, progress, done: 0, total, n_parameters: 0 };

        let embedding = loader.matrix("model.embed_tokens.weight", config.vocab_size, hidden)?;
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for index in 0..config.num_hidden_layers {
            let name = |part: &str| format!("model.layers.{index}.{part}");
            let layer = Layer {
                input_norm: loader.vector(&name("input_layernorm.weight"), hidden)?,
                q: loader.projection(&name("self_attn.q_proj"), q_width, hidden)?,
                k: loader.projection(&name("self_attn.k_proj"), kv_width, hidden)?,
                v: loader.projection(&name("self_attn.v_proj"), kv_width, hidden)?,
                q_norm: loader.optional_vector(&name("self_attn.q_norm.weight"), head_dim)?,
                k_norm: loader.optional_vector(&name("self_attn.k_norm.weight"), head_dim)?,
                o: loader.matrix(&name("self_attn.o_proj.weight"), hidden, q_width)?,
                post_attention_norm: loader.vector(&name("post_attention_layernorm.weight"), hidden)?,
                gate: loader.matrix(&name("mlp.gate_proj.weight"), config.intermediate_size, hidden)?,
                up: loader.matrix(&name("mlp.up_proj.weight"), config.intermediate_size, hidden)?,
                down: loader.matrix(&name("mlp.down_proj.weight"), hidden, config.intermediate_size)?,
            };
            if let Some(expected) = config.attention_bias
                && expected != layer.q.bias.is_some()
            {
                let found = if expected { "no bias" } else { "a bias" };
                let what =
                    format!("config.json says attention_bias {expected}, but q_proj of layer {index} has {found}");
                return Err(LoadError::of(architecture, what));
            }
            layers.push(layer);
        }
        let norm = loader.vector("model.norm.weight", hidden)?;
        // Some tied checkpoints carry the head all the same; some untied ones leave it out. The embedding then serves.
        let has_head = loader.checkpoint.contains("lm_head.weight");
        let head = if has_head && !config.tie_word_embeddings {
            Some(loader.matrix("lm_head.weight", config.vocab_size, hidden)?)
        } else {
            loader.checkpoint.ignore("lm_head.weight");
            None
        };
        let n_parameters = loader.n_parameters;
        Ok(Self {
            spec: ModelSpec {
                architecture: architecture.to_owned(),
                n_layers: config.num_hidden_layers,
                n_kv_heads: config.n_kv_heads(),
                head_dim,
                vocab_size: config.vocab_size,
                max_positions: config.max_position_embeddings,
                n_parameters,
                dtype,
                block_size: config.block_size,
                mask_token_id: config.mask_token_id,
            },
            n_heads: config.num_attention_heads,
            eps: config.rms_norm_eps,
            rope: RopeTable::new(config.rope_theta, head_dim, max_positions),
            embedding,
            layers,
            norm,
            head,
        })
    }

    fn hidden(
        &self,
        ops: &O,
        batch: &ModelBatch,
        cache: &mut O::Cache,
        mut after_layer: impl FnMut(usize, &O::Tensor) -> Result<(), StepError>,
    ) -> Result<O::Tensor, StepError> {
        let attention = AttentionBatch { sequences: &batch.sequences, n_heads: self.n_heads };
        let mut x = ops.embed(&self.embedding, &batch.ids)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = ops.rms_norm(&x, &layer.input_norm, self.eps)?;
            let mut q = ops.linear(&normed, &layer.q.weight, layer.q.bias.as_ref())?;
            let mut k = ops.linear(&normed, &layer.k.weight, layer.k.bias.as_ref())?;
            let v = ops.linear(&normed, &layer.v.weight, layer.v.bias.as_ref())?;
            let q_norm = layer.q_norm.as_ref().map(|weight| (weight, self.eps));
            let k_norm = layer.k_norm.as_ref().map(|weight| (weight, self.eps));
            ops.norm_rope(&mut q, q_norm, &self.rope, &batch.positions)?;
            ops.norm_rope(&mut k, k_norm, &self.rope, &batch.positions)?;
            // Stored before anything attends, so that rows of this forward see each other through the cache.
            ops.store(cache, index, &k, &v, &batch.slots)?;
            let attended = ops.attend(&q, cache, index, attention)?;
            ops.add(&mut x, &ops.linear(&attended, &layer.o, None)?)?;

            let normed = ops.rms_norm(&x, &layer.post_attention_norm, self.eps)?;
            let gate = ops.linear(&normed, &layer.gate, None)?;
            let up = ops.linear(&normed, &layer.up, None)?;
            ops.add(&mut x, &ops.linear(&ops.gate(gate, &up)?, &layer.down, None)?)?;
            after_layer(index, &x)?;
        }
        Ok(x)
    }

    /// The residual stream after the embedding's last layer, for tests: `(layer, values)` in order.
    pub fn hidden_states(&self, ops: &O, batch: &ModelBatch, cache: &mut O::Cache) -> Result<Vec<Vec<f32>>, StepError> {
        let mut states = Vec::new();
        self.hidden(ops, batch, cache, |_, x| {
            states.push(ops.host(x)?);
            Ok(())
        })?;
        Ok(states)
    }
}

impl<O: Ops> Network<O> for DenseDecoder<O> {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(&self, ops: &O, batch: &ModelBatch, cache: &mut O::Cache) -> Result<Vec<f32>, StepError> {
        let x = self.hidden(ops, batch, cache, |_, _| Ok(()))?;
        if batch.logit_rows.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = ops.select(&x, &batch.logit_rows)?;
        let normed = ops.rms_norm(&wanted, &self.norm, self.eps)?;
        let logits = ops.linear(&normed, self.head.as_ref().unwrap_or(&self.embedding), None)?;
        ops.host(&logits)
    }
}
