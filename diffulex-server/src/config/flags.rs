//! The flags of `serve`, and of the engine wherever it runs, as they are typed.
//!
//! Every flag is optional, so that a value left out can come from the YAML file and then from the one place with defaults.
//! Keys of the YAML file are the flags' names with underscores. Never here: defaults, effects.

use std::path::PathBuf;

use clap::Args;
use diffulex_engine::{DeviceChoice, DtypeChoice, Quantization};
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::decoding_flags::DecodingFlags;
use crate::config::diffulex_flags::DiffulexFlags;
use crate::config::error::ConfigError;
use crate::config::outbound_flags::OutboundFlags;
use crate::config::sampling_defaults::GenerationConfig;
use crate::observe::log::LogFormat;

/// Where the key may stand instead of on the command line, which everybody on the machine can read.
pub(crate) const API_KEY_VARIABLE: &str = "DIFFULEX_API_KEY";

/// Everything `serve` takes.
#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// YAML file with any of these flags, names with underscores; a flag on the command line wins.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Of the server.
    #[command(flatten, next_help_heading = "Server")]
    pub server: ServerFlags,
    /// Of other servers.
    #[command(flatten, next_help_heading = "Other servers")]
    pub outbound: OutboundFlags,
    /// Of the engine.
    #[command(flatten, next_help_heading = "Model and engine")]
    pub engine: EngineFlags,
    /// Diffulex's, which do nothing here.
    #[command(flatten, next_help_heading = "Accepted for scripts written for Diffulex")]
    pub diffulex: DiffulexFlags,
}

/// Flags of the server itself.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerFlags {
    /// Address to listen on.
    #[arg(long)]
    pub host: Option<String>,
    /// Port to listen on; 0 takes a free one.
    #[arg(long)]
    pub port: Option<u16>,
    /// Name of the model in /v1/models and in requests; default: the model's folder.
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Another name of the model; in Diffulex, the name of its family.
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// API key that requests must send; not required for probes and the playground's page. Repeatable, or several separated by
    /// commas: any of them opens the server, and each is a caller with its own contexts and requests.
    #[arg(long, env = API_KEY_VARIABLE, hide_env_values = true, value_delimiter = ',', value_name = "KEY")]
    #[serde(deserialize_with = "one_or_several_keys")]
    pub api_key: Option<Vec<String>>,
    /// Let requests of one --api-key find cached prefixes of prompts of another; default: each key has its own.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub share_prefix_cache: Option<bool>,
    /// Origin whose web pages may call this server beside those of this machine, of apps and of browser extensions; * allows every
    /// origin. Repeatable.
    #[arg(long, value_name = "ORIGIN")]
    #[serde(deserialize_with = "one_or_several")]
    pub cors_origin: Option<Vec<String>>,
    /// Host name that clients may use for this server, such as a proxy's; .NAME allows every name that ends so, * any. IP
    /// addresses and localhost are always allowed. Repeatable.
    #[arg(long, value_name = "HOST")]
    #[serde(deserialize_with = "one_or_several")]
    pub allowed_host: Option<Vec<String>>,
    /// Run the engine on a thread of this process instead of in a worker process.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub in_process: Option<bool>,
    /// Most requests waiting for a place in the batch; further ones get 429.
    #[arg(long, value_name = "N")]
    pub max_queued_requests: Option<u32>,
    /// Largest request body in bytes.
    #[arg(long, value_name = "BYTES")]
    pub max_body_bytes: Option<usize>,
    /// Longest time for one request; 0 is no limit.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub request_timeout_seconds: Option<f64>,
    /// Longest time for a client to read nothing of its stream.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub stream_idle_timeout_seconds: Option<f64>,
    /// Longest time to receive a request's head, then its body; also for an idle connection.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub header_timeout_seconds: Option<f64>,
    /// Longest time for the model to load.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub startup_timeout_seconds: Option<f64>,
    /// Time for running requests to finish after SIGTERM or SIGINT; a second signal ends them at once.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub shutdown_grace_seconds: Option<f64>,
    /// Interval of an idle engine's heartbeats.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub heartbeat_interval_seconds: Option<f64>,
    /// Time without a heartbeat after which /health reports the engine as stalled.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub engine_heartbeat_timeout_seconds: Option<f64>,
    /// Time without a heartbeat after which the engine is restarted; must exceed the longest step; 0 turns it off.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub watchdog_timeout: Option<f64>,
    /// Folder for crash reports of the engine; the newest five are kept [default: ~/.local/state/diffulex/crashes]
    #[arg(long, value_name = "PATH")]
    pub crash_report_dir: Option<PathBuf>,
    /// Folder below which /start_profile writes profiles; default: profiles are refused.
    #[arg(long, value_name = "PATH")]
    pub profile_dir: Option<PathBuf>,
    /// ZMQ address for commands, ipc:///FOLDER/NAME or tcp://127.0.0.1:PORT; default: a private socket.
    #[arg(long, value_name = "ADDR")]
    pub zmq_command_addr: Option<String>,
    /// ZMQ address for events, ipc:///FOLDER/NAME or tcp://127.0.0.1:PORT; default: a private socket.
    #[arg(long, value_name = "ADDR")]
    pub zmq_event_addr: Option<String>,
    /// Attach to the worker that listens at URL (worker --listen) instead of starting one; --model must be the worker's.
    #[arg(long, value_name = "URL")]
    pub connect: Option<String>,
    /// Allow ZMQ addresses that other users of this machine can reach; docs/operations.md describes the risk.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub allow_shared_zmq: Option<bool>,
    /// Most contexts (/v1/contexts) held at the same time; 0 refuses them.
    #[arg(long, value_name = "N")]
    pub max_contexts: Option<u32>,
    /// Most contexts of one caller, as API keys tell them apart [default: all with one --api-key, otherwise half of --max-contexts].
    #[arg(long, value_name = "N")]
    pub max_contexts_per_caller: Option<u32>,
    /// Time after its last use for which a context is kept that asks for no other.
    #[arg(long, alias = "context-ttl", value_parser = finite::<f64>, value_name = "S")]
    pub context_ttl_seconds: Option<f64>,
    /// Log level: error, warn, info, debug, trace, or a filter such as diffulex_server=debug.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Form of log lines.
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// Flags of the model and the engine.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineFlags {
    /// Checkpoint folder with config.json, tokenizer.json and safetensors, or a GGUF file; default: the demo model.
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Sampling of requests that name none: auto takes it from the checkpoint's generation_config.json, none from this server.
    #[arg(long, value_name = "SOURCE")]
    pub generation_config: Option<GenerationConfig>,
    /// LoRA adapter in PEFT's format; requests select it by NAME as their model; default name: the folder's. Repeatable. One
    /// alone also answers requests that name no model.
    #[arg(long, value_name = "[NAME=]FOLDER")]
    pub lora_path: Option<Vec<String>>,
    /// Merge the one --lora-path into the weights at load: it applies to every request, at no cost per forward.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub pre_merge_lora: Option<bool>,
    /// No effect beside --lora-path.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub use_lora: Option<bool>,
    /// Device: auto (the first NVIDIA GPU, or the CPU where there is none), cpu, cuda, cuda:INDEX, or reference (slow, for
    /// checking the others).
    #[arg(long)]
    pub device: Option<String>,
    /// Index of one CUDA device, as --device cuda:INDEX.
    #[arg(long, value_name = "INDEX")]
    pub device_ids: Option<String>,
    /// Share of a GPU's memory for weights and KV pool; the rest is left to activations.
    #[arg(long, value_name = "SHARE", value_parser = finite::<f32>)]
    pub gpu_memory_utilization: Option<f32>,
    /// Data type of the weights in memory.
    #[arg(long)]
    pub dtype: Option<DtypeChoice>,
    /// Quantization of the weights at load.
    #[arg(long, value_name = "KIND")]
    pub quantization: Option<Quantization>,
    /// Most adapters loaded at the same time.
    #[arg(long, alias = "max-cpu-loras", value_name = "N")]
    pub max_loaded_loras: Option<u32>,
    /// Most bytes of all adapters together, in memory and as files.
    #[arg(long, value_name = "BYTES")]
    pub max_lora_bytes: Option<u64>,
    /// Threads of the CPU kernels; default: one per core, less one if there are more than two.
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Decoding strategy; default: the model's own.
    #[arg(long, value_name = "NAME")]
    pub decoding_strategy: Option<String>,
    /// Diffulex's choice between unmasking only (naive) and replacing tokens, too (edit): edit is --decoding-strategy
    /// block_edit.
    #[arg(long, hide = true, value_name = "MODE")]
    pub sampling_mode: Option<SamplingMode>,
    /// Positions of a block; default: the model's own.
    #[arg(long, value_name = "N")]
    pub block_size: Option<u32>,
    /// Most blocks in flight.
    #[arg(long, value_name = "N")]
    pub buffer_size: Option<u32>,
    /// Id of the mask token; default: the model's own.
    #[arg(long, value_name = "ID")]
    pub mask_token_id: Option<u32>,
    /// Longest prompt and answer together, in tokens; capped at the model's context length.
    #[arg(long, value_name = "N")]
    pub max_model_len: Option<u32>,
    /// Most requests in the batch.
    #[arg(long, value_name = "N")]
    pub max_num_reqs: Option<u32>,
    /// Most token rows of one forward.
    #[arg(long, value_name = "N")]
    pub max_num_batched_tokens: Option<u32>,
    /// Tokens of one KV page.
    #[arg(long, value_name = "N")]
    pub page_size: Option<u32>,
    /// Size of the KV pool in bytes; default: on a GPU what is left of its share, elsewhere enough for a full batch, at most
    /// 1 GiB and half of the free memory.
    #[arg(long, value_name = "BYTES")]
    pub kv_cache_bytes: Option<u64>,
    /// Data type of K and V; auto is float32 if the weights are float32, otherwise bfloat16.
    #[arg(long, value_name = "DTYPE")]
    pub kv_cache_dtype: Option<DtypeChoice>,
    /// Most of the KV pool that contexts hold between requests, as a share from 0 to 1.
    #[arg(long, value_parser = finite::<f32>, value_name = "SHARE")]
    pub context_memory_share: Option<f32>,
    /// Do not share K/V between prompts with a common prefix.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub disable_prefix_caching: Option<bool>,
    /// How the strategy decides. Last, because the flags have a heading of their own.
    #[command(flatten)]
    #[serde(flatten)]
    pub decoding: DecodingFlags,
}

/// Diffulex's two kinds of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum SamplingMode {
    /// A token that is unmasked stays.
    Naive,
    /// It may be replaced.
    Edit,
}

impl EngineFlags {
    /// The device, from either flag.
    pub(crate) fn device_choice(&self) -> Result<Option<DeviceChoice>, ConfigError> {
        let by_index = match self.device_ids.as_deref().map(parse_device_ids).transpose()?.as_deref() {
            None | Some([]) => None,
            Some([index]) => Some(DeviceChoice::Cuda(*index)),
            Some(indices) => {
                let problem = format!(
                    "a server runs on one device, got {}; start a server for each: --device-ids {} --port PORT, and so on",
                    indices.len(),
                    indices[0]
                );
                return Err(ConfigError::flag("--device-ids", problem));
            }
        };
        match (&self.device, by_index) {
            (Some(device), None) => {
                device.parse().map(Some).map_err(|error: String| ConfigError::flag("--device", error))
            }
            (Some(_), Some(_)) => Err(ConfigError::flag("--device-ids", "--device is given too; give one of the two")),
            (None, by_index) => Ok(by_index),
        }
    }
}

/// A number that is one: JSON, in which flags meet the YAML file, has no way to write NaN.
fn finite<T: std::str::FromStr + Into<f64> + Copy>(text: &str) -> Result<T, String> {
    let number: T = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.into().is_finite() { Ok(number) } else { Err("not a finite number".to_owned()) }
}

/// A flag that may be repeated, as the YAML file has it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum OneOrSeveral {
    One(String),
    Several(Vec<String>),
}

fn one_or_several<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Vec<String>>, D::Error> {
    Ok(Option::deserialize(input)?.map(|values| match values {
        OneOrSeveral::One(value) => vec![value],
        OneOrSeveral::Several(values) => values,
    }))
}

/// The same, where commas separate values, as on the command line.
fn one_or_several_keys<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Vec<String>>, D::Error> {
    let values = one_or_several(input)?;
    Ok(values.map(|values| values.iter().flat_map(|keys| keys.split(',')).map(str::to_owned).collect()))
}

/// Diffulex's list of device indices: comma-separated, spaces and empty items allowed.
fn parse_device_ids(text: &str) -> Result<Vec<u32>, ConfigError> {
    let mut ids = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let wrong = |_| ConfigError::flag("--device-ids", format!("{item:?} is not a device index"));
        let id = item.parse().map_err(wrong)?;
        if ids.contains(&id) {
            return Err(ConfigError::flag("--device-ids", format!("{id} is named twice")));
        }
        ids.push(id);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_ids_are_read_as_diffulex_reads_them() {
        assert_eq!(parse_device_ids(""), Ok(vec![]));
        assert_eq!(parse_device_ids("0, 1 ,,2,"), Ok(vec![0, 1, 2]));
        assert!(parse_device_ids("-1").is_err());
        assert!(parse_device_ids("1,1").is_err());
        assert!(parse_device_ids("0,x").is_err());
    }
}
