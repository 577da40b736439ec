//! What an operator may set, and what it comes to for one model.
//!
//! [`EngineOptions`] is the only place with defaults. [`EngineConfig::resolve`] runs once, with the model at hand, and
//! nothing changes afterwards.

use diffulex_strategies::MultiBlockConfig;
use serde::{Deserialize, Serialize};

/// Where a forward runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceChoice {
    /// The fastest device that has a body for every operation.
    #[default]
    Auto,
    /// The CPU's kernels.
    Cpu,
    /// The slow, plainly right path: candle on the CPU. For tests and for doubts.
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
                .ok_or_else(|| format!("expected auto, cpu, reference, cuda or cuda:INDEX, got {text:?}")),
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

/// How weights are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DtypeChoice {
    /// As the checkpoint has them.
    #[default]
    Auto,
    /// 32-bit floats.
    Float32,
    /// bfloat16, with sums in 32-bit floats.
    Bfloat16,
}

/// What an operator may set. `None` means: from the model.
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
    /// Accept rule by name.
    pub accept_rule: Option<String>,
    /// Confidence above which a token is accepted.
    pub accept_threshold: Option<f32>,
    /// Share of a block that must be filled before the next one opens.
    pub add_block_threshold: Option<f32>,
    /// Share of a block that must be filled before the next one may be forced.
    pub semi_complete_threshold: Option<f32>,
    /// Denoise steps of a block under the scheduled rules.
    pub denoising_steps: Option<u32>,
    /// Longest prompt and answer together; cut to what the model was made for.
    pub max_model_len: u32,
    /// Requests in the batch.
    pub max_num_reqs: u32,
    /// Token rows of one forward.
    pub max_num_batched_tokens: u32,
    /// Tokens of one KV page.
    pub page_size: u32,
    /// Size of the KV pool in bytes; `None`: enough for every request of the batch at full length, 1 GiB at most.
    pub kv_cache_bytes: Option<u64>,
    /// Reuse the K/V of prompts that begin alike.
    pub prefix_caching: bool,
    /// Where to run.
    pub device: DeviceChoice,
    /// How to hold weights.
    pub dtype: DtypeChoice,
    /// Threads of the kernels; `None`: one per core, less one for the front end where there are more than two.
    pub threads: Option<u32>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            decoding_strategy: None,
            block_size: None,
            buffer_size: None,
            mask_token_id: None,
            accept_rule: None,
            accept_threshold: None,
            add_block_threshold: None,
            semi_complete_threshold: None,
            denoising_steps: None,
            // The next four are Diffulex's defaults (diffulex/config.py).
            max_model_len: 2048,
            max_num_reqs: 128,
            max_num_batched_tokens: 4096,
            page_size: 32,
            kv_cache_bytes: None,
            prefix_caching: true,
            device: DeviceChoice::Auto,
            dtype: DtypeChoice::Auto,
            threads: None,
        }
    }
}

/// The options as they act for one model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineConfig {
    /// The strategy with its settings.
    pub strategy: MultiBlockConfig,
    /// The mask token.
    pub mask_token_id: u32,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// Longest prompt and answer together.
    pub max_model_len: usize,
    /// Requests in the batch.
    pub max_num_reqs: usize,
    /// Token rows of one forward.
    pub max_num_batched_tokens: usize,
    /// Tokens of one KV page.
    pub page_size: usize,
    /// Pages of the pool.
    pub n_pages: usize,
    /// Reuse the K/V of prompts that begin alike.
    pub prefix_caching: bool,
    /// Ids below this may be sampled: rows of the head that are no token are never drawn.
    pub n_sampleable: usize,
}
