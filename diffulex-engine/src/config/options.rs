//! Options of an operator, with every default.
//!
//! Never here: the model, which [`EngineConfig`](super::EngineConfig) looks at.

use std::path::PathBuf;

use diffulex_protocol::{AdapterSource, DecodingSettings};
use serde::{Deserialize, Serialize};

/// Where a forward runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceChoice {
    /// The first CUDA device, or the CPU where there is none.
    #[default]
    Auto,
    /// The CPU's kernels.
    Cpu,
    /// Slow and simple, for checking the others: candle on the CPU.
    Reference,
    /// A CUDA device by index.
    Cuda(u32),
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "reference" => Ok(Self::Reference),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|index| index.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| format!("expected auto, cpu, cuda, cuda:INDEX or reference, got {text:?}")),
        }
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Cpu => out.write_str("cpu"),
            Self::Reference => out.write_str("reference"),
            Self::Cuda(index) => write!(out, "cuda:{index}"),
        }
    }
}

/// How weights, or K and V, are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum DtypeChoice {
    /// Weights as in the checkpoint; K and V float32 if the weights are, otherwise bfloat16.
    #[default]
    Auto,
    /// 32-bit floats.
    Float32,
    /// bfloat16, with sums in 32-bit floats.
    Bfloat16,
}

/// Whether weights are held as small integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Quantization {
    /// No: `dtype` applies.
    None,
    /// 8 bits, a scale per output; products with activations of 8 bits.
    Int8,
    /// 4 bits, a scale per output and 64 inputs, embedding and head in 8 bits; products with activations of 8 bits.
    Int4,
}

/// Options of an operator. `None` means: from the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineOptions {
    /// Decoding strategy by name.
    pub decoding_strategy: Option<String>,
    /// Positions of a block.
    pub block_size: Option<u32>,
    /// Blocks in flight.
    pub buffer_size: Option<u32>,
    /// The mask token.
    pub mask_token_id: Option<u32>,
    /// Settings of the strategy, which a request may change for itself.
    pub decoding: DecodingSettings,
    /// Names of those settings that are left out, with a warning in the log, where the strategy lacks them.
    pub optional_settings: Vec<String>,
    /// Longest prompt and answer together; cut to what the model was made for.
    pub max_model_len: u32,
    /// Requests in the batch.
    pub max_num_reqs: u32,
    /// Token rows of one forward.
    pub max_num_batched_tokens: u32,
    /// Tokens of one KV page.
    pub page_size: u32,
    /// Size of the KV pool in bytes; `None`: on a GPU, the memory that is left of its share; elsewhere enough for every request
    /// of the batch at full length, at most 1 GiB and half of the memory that is left.
    pub kv_cache_bytes: Option<u64>,
    /// How to hold K and V; `Auto` is what [`crate::kernels::WeightType::kv_type`] says.
    pub kv_cache_dtype: DtypeChoice,
    /// Reuse the K/V of prompts that begin alike.
    pub prefix_caching: bool,
    /// Share of the pool's pages that contexts may hold between requests, 0 to 1.
    pub context_memory_share: f32,
    /// Where to run.
    pub device: DeviceChoice,
    /// Share of a GPU's memory for weights and the KV pool; the rest is left to activations and to others.
    pub gpu_memory_utilization: f32,
    /// How to hold weights; `Auto` where they are quantized.
    pub dtype: DtypeChoice,
    /// Whether to hold weights as small integers.
    pub quantization: Quantization,
    /// Adapters that requests may name, loaded at the start; more may come and go while the engine runs.
    pub adapters: Vec<AdapterSource>,
    /// Adapters that may be loaded at a time.
    pub max_loaded_loras: u32,
    /// Bytes of all of them together, in memory and as files.
    pub max_lora_bytes: u64,
    /// Folder of an adapter to add to the weights as they are loaded; `None`: the one in the model's own folder, if there
    /// is one.
    pub merged_adapter: Option<String>,
    /// Threads of the kernels; `None`: one per core, less one for the front end where there are more than two.
    pub threads: Option<u32>,
    /// Folder below which profiles may be written; `None`: none are recorded.
    pub profile_dir: Option<PathBuf>,
}

impl EngineOptions {
    /// The adapter of requests that name no model: the one given at the start, if it is the only one. (Diffulex adapts every
    /// request.)
    pub fn default_adapter(&self) -> Option<&str> {
        match self.adapters.as_slice() {
            [only] => Some(&only.name),
            _ => None,
        }
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            decoding_strategy: None,
            block_size: None,
            buffer_size: None,
            mask_token_id: None,
            decoding: DecodingSettings::default(),
            optional_settings: Vec::new(),
            // The next four are Diffulex's defaults (diffulex/config.py).
            max_model_len: 2048,
            max_num_reqs: 128,
            max_num_batched_tokens: 4096,
            page_size: 32,
            kv_cache_bytes: None,
            kv_cache_dtype: DtypeChoice::Auto,
            prefix_caching: true,
            // Chosen by us: requests take the pages of idle contexts anyway; those in use leave half of the pool to others.
            context_memory_share: 0.5,
            device: DeviceChoice::Auto,
            // vLLM's default.
            gpu_memory_utilization: 0.9,
            dtype: DtypeChoice::Auto,
            quantization: Quantization::None,
            adapters: Vec::new(),
            // Chosen by us. Requests wait while an adapter is loaded: this is a second or two of reading at worst, and holds a
            // dozen adapters of rank 16 for a network of 8 billion weights.
            max_loaded_loras: 64,
            max_lora_bytes: 2 << 30,
            merged_adapter: None,
            threads: None,
            profile_dir: None,
        }
    }
}
