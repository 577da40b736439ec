//! The engine's options from its flags: what is wrong is told in terms of flags.
//!
//! Never here: defaults, which are the engine's.

use std::path::{Path, PathBuf};

use diffulex_engine::EngineOptions;
use diffulex_protocol::{AdapterSource, DecodingSettings};

use crate::config::decoding_flags;
use crate::config::diffulex_flags;
use crate::config::error::ConfigError;
use crate::config::flags::{EngineFlags, SamplingMode};

/// The engine's options from its flags.
pub(crate) fn engine_options(flags: &EngineFlags) -> Result<EngineOptions, ConfigError> {
    let defaults = EngineOptions::default();
    let EngineFlags {
        model: _,
        generation_config: _,
        lora_path: _,
        pre_merge_lora: _,
        use_lora: _,
        device: _,
        device_ids: _,
        gpu_memory_utilization,
        dtype,
        quantization,
        max_loaded_loras,
        max_lora_bytes,
        threads,
        decoding_strategy: _,
        sampling_mode: _,
        block_size,
        buffer_size,
        mask_token_id,
        decoding,
        max_model_len,
        max_num_reqs,
        max_num_batched_tokens,
        page_size,
        kv_cache_bytes,
        kv_cache_dtype,
        context_memory_share,
        disable_prefix_caching,
    } = flags;
    check_decoding(&decoding.0)?;
    for (flag, value) in [
        ("--block-size", block_size),
        ("--buffer-size", buffer_size),
        ("--max-model-len", max_model_len),
        ("--max-num-reqs", max_num_reqs),
        ("--max-num-batched-tokens", max_num_batched_tokens),
        ("--page-size", page_size),
        ("--threads", threads),
    ] {
        if *value == Some(0) {
            return Err(ConfigError::flag(flag, "must be at least 1"));
        }
    }
    if let Some(share) = gpu_memory_utilization.filter(|share| !(0.0..=1.0).contains(share) || *share == 0.0) {
        let problem = format!("must be above 0 and at most 1, got {share}");
        return Err(ConfigError::flag("--gpu-memory-utilization", problem));
    }
    if let Some(share) = context_memory_share.filter(|share| !(0.0..=1.0).contains(share)) {
        return Err(ConfigError::flag("--context-memory-share", format!("must be 0 to 1, got {share}")));
    }
    let (adapters, merged_adapter) = adapters(flags)?;
    Ok(EngineOptions {
        adapters,
        max_loaded_loras: max_loaded_loras.unwrap_or(defaults.max_loaded_loras),
        max_lora_bytes: max_lora_bytes.unwrap_or(defaults.max_lora_bytes),
        merged_adapter,
        decoding_strategy: strategy(flags)?,
        block_size: *block_size,
        buffer_size: *buffer_size,
        mask_token_id: *mask_token_id,
        decoding: decoding.0.clone(),
        optional_settings: given_thresholds(&decoding.0),
        max_model_len: max_model_len.unwrap_or(defaults.max_model_len),
        max_num_reqs: max_num_reqs.unwrap_or(defaults.max_num_reqs),
        max_num_batched_tokens: max_num_batched_tokens.unwrap_or(defaults.max_num_batched_tokens),
        page_size: page_size.unwrap_or(defaults.page_size),
        kv_cache_bytes: *kv_cache_bytes,
        kv_cache_dtype: kv_cache_dtype.unwrap_or(defaults.kv_cache_dtype),
        prefix_caching: disable_prefix_caching.map_or(defaults.prefix_caching, |disable| !disable),
        device: flags.device_choice()?.unwrap_or(defaults.device),
        context_memory_share: context_memory_share.unwrap_or(defaults.context_memory_share),
        gpu_memory_utilization: gpu_memory_utilization.unwrap_or(defaults.gpu_memory_utilization),
        dtype: dtype.unwrap_or(defaults.dtype),
        quantization: quantization.unwrap_or(defaults.quantization),
        threads: *threads,
        profile_dir: None,
    })
}

/// The folder of profiles: absolute, because the worker and those who ask for profiles name paths below it.
pub(crate) fn profile_folder(given: Option<PathBuf>) -> Result<Option<PathBuf>, ConfigError> {
    let absolute = given.map(std::path::absolute).transpose();
    absolute.map_err(|error| ConfigError::flag("--profile-dir", error.to_string()))
}

/// The strategy, of which Diffulex's mode may be all that is said.
fn strategy(flags: &EngineFlags) -> Result<Option<String>, ConfigError> {
    /// Those that replace tokens.
    const EDITING: [&str; 2] = ["block_edit", "dmax"];

    match (flags.sampling_mode, flags.decoding_strategy.as_deref()) {
        (Some(SamplingMode::Edit), None) => Ok(Some(EDITING[0].to_owned())),
        (Some(SamplingMode::Edit), Some(name)) if !EDITING.contains(&name) => {
            let problem = format!("contradicts --decoding-strategy {name}; {} edit", EDITING.join(" and "));
            Err(ConfigError::flag("--sampling-mode edit", problem))
        }
        (_, name) => Ok(name.map(str::to_owned)),
    }
}

/// Those of Diffulex's thresholds that `decoding` has.
fn given_thresholds(decoding: &DecodingSettings) -> Vec<String> {
    let given = diffulex_flags::THRESHOLDS.iter().filter(|name| decoding.get(name).is_some());
    given.map(|name| (*name).to_owned()).collect()
}

/// Checks the ranges of the decoding settings; the error names the flag.
pub(crate) fn check_decoding(decoding: &DecodingSettings) -> Result<(), ConfigError> {
    diffulex_engine::check_settings(decoding)
        .map_err(|error| ConfigError::flag(decoding_flags::flag(&error.name), error.what.to_string()))
}

/// Adapters for requests to name, and the one to merge.
fn adapters(flags: &EngineFlags) -> Result<(Vec<AdapterSource>, Option<String>), ConfigError> {
    let given = flags.lora_path.iter().flatten().filter(|text| !text.is_empty());
    let mut adapters: Vec<AdapterSource> = Vec::new();
    for text in given {
        let (name, path) = match text.split_once('=') {
            Some((name, path)) => (name.to_owned(), path),
            None => {
                let name = Path::new(text).file_name().map(|name| name.to_string_lossy().into_owned());
                (name.unwrap_or_default(), text.as_str())
            }
        };
        if name.is_empty() || path.is_empty() {
            return Err(ConfigError::flag("--lora-path", format!("expected NAME=FOLDER or FOLDER, got {text:?}")));
        }
        if adapters.iter().any(|known| known.name == name) {
            let problem = format!("two adapters are called {name:?}; give NAME=FOLDER");
            return Err(ConfigError::flag("--lora-path", problem));
        }
        adapters.push(AdapterSource { name, path: path.to_owned() });
    }
    let wants_any = flags.use_lora == Some(true) || flags.pre_merge_lora == Some(true);
    if wants_any && adapters.is_empty() {
        return Err(ConfigError::flag("--lora-path", "needed by --use-lora and --pre-merge-lora"));
    }
    if flags.use_lora == Some(false) && !adapters.is_empty() {
        return Err(ConfigError::flag("--use-lora=false", "contradicts --lora-path"));
    }
    if flags.pre_merge_lora != Some(true) {
        return Ok((adapters, None));
    }
    match adapters.as_slice() {
        [one] => Ok((Vec::new(), Some(one.path.clone()))),
        more => {
            let problem = format!("one adapter is merged, --lora-path names {}", more.len());
            Err(ConfigError::flag("--pre-merge-lora", problem))
        }
    }
}
