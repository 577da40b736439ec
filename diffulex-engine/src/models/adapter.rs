//! A low-rank adapter (LoRA) as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! A merged adapter changes every matrix with a pair `A [r, in]`, `B [out, r]` to `W + (alpha / r) B A` at load, at no cost per
//! forward. Otherwise its pairs are kept beside the weights (`low_rank`). Rank-stabilised adapters (rsLoRA, Kalajdzievski 2023) use
//! `alpha / sqrt(r)` instead of `alpha / r`.
//!
//! Never here: the adapters of requests.

use serde::Deserialize;

use super::checkpoint::ADAPTER_WEIGHTS;
use super::checkpoint::Checkpoint;
use super::config_fields::unknown_switch;
use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::kernels::WeightData;

/// The fields of `adapter_config.json` that affect the computation.
#[derive(Deserialize)]
struct AdapterConfig {
    r: usize,
    lora_alpha: f32,
    #[serde(default)]
    use_rslora: bool,
}

impl AdapterConfig {
    /// Factor of the product of a pair.
    fn scale(&self) -> f32 {
        self.lora_alpha / if self.use_rslora { (self.r as f32).sqrt() } else { self.r as f32 }
    }
}

/// An open adapter.
pub(super) struct Adapter {
    checkpoint: Checkpoint,
    rank: usize,
    scale: f32,
}

/// Pair of low-rank factors; `b a` is added to a matrix.
pub(super) struct Factors {
    pub(super) rank: usize,
    /// `[rank, n_in]`.
    pub(super) a: Vec<f32>,
    /// `[n_out, rank]`, times the adapter's scale.
    pub(super) b: Vec<f32>,
}

/// Maximum rank: vLLM's maximum of `--max-lora-rank`.
const MAX_RANK: usize = 512;

/// Maximum header of `adapter_model.safetensors` in bytes, which is read while requests wait. Chosen by us: ten times the size for a
/// pair on each projection of a hundred layers.
const MAX_HEADER_BYTES: u64 = 2 << 20;

/// PEFT's prefix of every name.
const PREFIX: &str = "base_model.model.";

/// Whether the adapter among `files` is a D2F adapter: PEFT recorded model code in `model_cache`
/// (zhijie-group/Discrete-Diffusion-Forcing).
pub fn is_d2f(files: &ModelFiles) -> Result<bool, LoadError> {
    let config = files.read_json("adapter_config.json")?.unwrap_or_default();
    let library = config.pointer("/auto_mapping/parent_library").and_then(serde_json::Value::as_str);
    Ok(library.is_some_and(|library| library.starts_with("model_cache.")))
}

impl Adapter {
    /// Opens the adapter `files`. Fails if its weights have more than `max_bytes` or too long a header, because requests wait
    /// while it loads.
    pub(super) fn open_beside(files: &ModelFiles, max_bytes: u64) -> Result<Self, LoadError> {
        let weights = files.map(ADAPTER_WEIGHTS)?;
        let n_bytes = weights.bytes().len() as u64;
        let here = |what: String| Err(LoadError::of(files.path_of(ADAPTER_WEIGHTS), what));
        if n_bytes > max_bytes {
            return here(format!("has {n_bytes} bytes; --max-lora-bytes leaves {max_bytes} for this adapter"));
        }
        let header = weights.bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if header > MAX_HEADER_BYTES {
            return here(format!("has a header of {header} bytes; an adapter's may have {MAX_HEADER_BYTES}"));
        }
        Self::open(files)
    }

    /// Opens the adapter `files`.
    pub(super) fn open(files: &ModelFiles) -> Result<Self, LoadError> {
        Self::find(files)?.ok_or_else(|| LoadError::of(files.place(), "has no adapter_config.json"))
    }

    /// Opens the adapter among `files`; `None` if there is no adapter.
    pub(super) fn find(files: &ModelFiles) -> Result<Option<Self>, LoadError> {
        let Some(config) = files.read_json("adapter_config.json")? else { return Ok(None) };
        let here =
            |error: &dyn std::fmt::Display| LoadError::of(files.place(), format!("adapter_config.json: {error}"));
        let known = [
            ("peft_type", "LORA".into()),
            ("bias", "none".into()),
            ("lora_bias", false.into()),
            ("use_dora", false.into()),
            ("fan_in_fan_out", false.into()),
            ("rank_pattern", serde_json::json!({})),
            ("alpha_pattern", serde_json::json!({})),
            ("modules_to_save", serde_json::Value::Null),
            ("layer_replication", serde_json::Value::Null),
            ("use_qalora", false.into()),
            ("alora_invocation_tokens", serde_json::Value::Null),
            ("arrow_config", serde_json::Value::Null),
        ];
        if let Some(what) = unknown_switch(&config, &known) {
            return Err(here(&what));
        }
        let config = AdapterConfig::deserialize(config).map_err(|error| here(&error))?;
        if !(1..=MAX_RANK).contains(&config.r) {
            return Err(here(&format!("r is {}; it must be in 1..={MAX_RANK}", config.r)));
        }
        let checkpoint = Checkpoint::open_file(files, ADAPTER_WEIGHTS)?;
        Ok(Some(Self { checkpoint, rank: config.r, scale: config.scale() }))
    }

    /// Returns the pair of the tensor `module` `[n_out, n_in]`, if the adapter has one.
    pub(super) fn factors(&mut self, module: &str, n_out: usize, n_in: usize) -> Result<Option<Factors>, LoadError> {
        // Some versions include the adapter's name, "default".
        let Some(suffix) = ["weight", "default.weight"]
            .into_iter()
            .find(|suffix| self.checkpoint.contains(&format!("{PREFIX}{module}.lora_A.{suffix}")))
        else {
            return Ok(None);
        };
        let mut part = |letter: &str, shape: [usize; 2]| {
            let name = format!("{PREFIX}{module}.lora_{letter}.{suffix}");
            self.checkpoint.take(&name, &shape).map(WeightData::to_f32)
        };
        let (a, mut b) = (part("A", [self.rank, n_in])?, part("B", [n_out, self.rank])?);
        b.iter_mut().for_each(|factor| *factor *= self.scale);
        Ok(Some(Factors { rank: self.rank, a, b }))
    }

    /// The tensor `name` `[n_out, n_in]` with values `weight`, with the adapter added; `None` if the adapter has no pair for it.
    pub(super) fn merge(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
        weight: WeightData<'_>,
    ) -> Result<Option<Vec<u8>>, LoadError> {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let Some(Factors { rank, a, b }) = self.factors(module, n_out, n_in)? else { return Ok(None) };
        let mut values = weight.to_f32();
        for (row, factors) in values.chunks_exact_mut(n_in).zip(b.chunks_exact(rank)) {
            for (factor, direction) in factors.iter().zip(a.chunks_exact(n_in)) {
                for (value, direction) in row.iter_mut().zip(direction) {
                    *value += factor * direction;
                }
            }
        }
        Ok(Some(values.iter().flat_map(|value| value.to_le_bytes()).collect()))
    }

    /// Fails if tensors belong to no matrix of the network; the error names them.
    pub(super) fn refuse_surplus(&self) -> Result<(), LoadError> {
        self.checkpoint.refuse_surplus()
    }
}
