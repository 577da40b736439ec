//! The command line: what can be typed, as types. What it comes to is [`crate::config`]'s business.
//!
//! Every flag is optional here, so that a value left out can come from the YAML file and then from the one place with
//! defaults. Keys of the YAML file are the flags' names with underscores. Never here: defaults, effects.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use diffulex_engine::{DeviceChoice, DtypeChoice, Quantization};
use diffulex_protocol::{DecodingOverrides, SamplingParams};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::ServerConfig;
use crate::demo;

/// Where the key may stand instead of on the command line, which everybody on the machine can read.
pub(crate) const API_KEY_VARIABLE: &str = "DIFFULEX_API_KEY";

/// Serves a diffusion language model over HTTP.
///
/// Without --model, the small demo model inside this program is served.
#[derive(Debug, Parser)]
#[command(name = "diffulex-server", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; `serve` when nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `serve`.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve over HTTP (the default).
    Serve(Box<ServeArgs>),
    /// Write one answer in the terminal, with the denoising in plain sight.
    Generate(Box<GenerateArgs>),
    /// The engine's own process; `serve` starts it.
    #[command(hide = true)]
    Worker,
}

/// Everything `serve` takes.
#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// YAML file with any of these flags, names with underscores; a flag on the command line wins.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Of the server.
    #[command(flatten, next_help_heading = "Server")]
    pub server: ServerFlags,
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
    /// Name of the model in /v1/models and in requests; from the model's folder otherwise.
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Diffulex's name of the model's family: one more name the model answers to.
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Key that requests must bring; probes and the playground's page are open.
    #[arg(long, env = API_KEY_VARIABLE, hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Origin whose pages may call this server, * for all.
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Option<String>,
    /// A name that clients call this server by, such as a proxy's, * for any; addresses and localhost need none. Repeatable.
    #[arg(long, value_name = "HOST")]
    pub allowed_host: Option<Vec<String>>,
    /// Run the engine in this process instead of one of its own.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub in_process: Option<bool>,
    /// Requests that may wait beside those in the batch; more get 429.
    #[arg(long, value_name = "N")]
    pub max_queued_requests: Option<u32>,
    /// Largest request body in bytes.
    #[arg(long, value_name = "BYTES")]
    pub max_body_bytes: Option<usize>,
    /// Longest time for one request; 0 is no limit.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub request_timeout_seconds: Option<f64>,
    /// Longest time a client may leave its stream unread.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub stream_idle_timeout_seconds: Option<f64>,
    /// Longest time to the end of a request's head, then of its body, and of an idle connection.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub header_timeout_seconds: Option<f64>,
    /// Longest time the model may take to load.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub startup_timeout_seconds: Option<f64>,
    /// How long running requests may go on after SIGTERM or SIGINT; a second signal ends them at once.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub shutdown_grace_seconds: Option<f64>,
    /// How often an idle engine reports.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub heartbeat_interval_seconds: Option<f64>,
    /// Silence after which /health calls the engine stalled.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub engine_heartbeat_timeout_seconds: Option<f64>,
    /// Silence after which the engine is ended and started again: longer than any step may take; 0 is never.
    #[arg(long, value_parser = finite::<f64>, value_name = "S")]
    pub watchdog_timeout: Option<f64>,
    /// Folder for reports of lost engines, the newest five of which are kept [default: ~/.local/state/diffulex/crashes]
    #[arg(long, value_name = "PATH")]
    pub crash_report_dir: Option<PathBuf>,
    /// ZMQ address of commands, ipc:///FOLDER/NAME or tcp://127.0.0.1:PORT; a private one otherwise.
    #[arg(long, value_name = "ADDR")]
    pub zmq_command_addr: Option<String>,
    /// ZMQ address of events, ipc:///FOLDER/NAME or tcp://127.0.0.1:PORT; a private one otherwise.
    #[arg(long, value_name = "ADDR")]
    pub zmq_event_addr: Option<String>,
    /// Take ZMQ addresses that other users of this machine reach; see docs/operations.md for what they could do.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub allow_shared_zmq: Option<bool>,
    /// error, warn, info, debug, trace, or a filter such as diffulex_server=debug.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// Flags of the model and the engine.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineFlags {
    /// Checkpoint folder with config.json, tokenizer.json and safetensors, or a GGUF file; the demo model otherwise.
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// An adapter (LoRA, as PEFT saves it) that requests name as their model; its folder's name otherwise. Repeatable.
    #[arg(long, value_name = "[NAME=]FOLDER")]
    pub lora_path: Option<Vec<String>>,
    /// Add the one --lora-path to the weights as they are loaded: every request has it, and no forward costs more.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub pre_merge_lora: Option<bool>,
    /// Diffulex's switch; --lora-path alone does it.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub use_lora: Option<bool>,
    /// auto, cpu, or reference, which is slow and there to check the others; cuda is refused, as GPUs are not served yet.
    #[arg(long)]
    pub device: Option<String>,
    /// CUDA device index, Diffulex's way to write --device cuda:INDEX; one only.
    #[arg(long, value_name = "INDEX")]
    pub device_ids: Option<String>,
    /// How weights are held: auto, float32 or bfloat16.
    #[arg(long)]
    pub dtype: Option<String>,
    /// Hold weights as small integers: none, int8 or int4.
    #[arg(long, value_name = "KIND")]
    pub quantization: Option<String>,
    /// Adapters that may be loaded at a time.
    #[arg(long, alias = "max-cpu-loras", value_name = "N")]
    pub max_loaded_loras: Option<u32>,
    /// Bytes of all of them together, in memory and as files.
    #[arg(long, value_name = "BYTES")]
    pub max_lora_bytes: Option<u64>,
    /// Threads of the CPU kernels; one per core otherwise, less one where there are more than two.
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Decoding strategy by name; the model's own otherwise.
    #[arg(long, value_name = "NAME")]
    pub decoding_strategy: Option<String>,
    /// Positions of a block; the model's own otherwise.
    #[arg(long, value_name = "N")]
    pub block_size: Option<u32>,
    /// Blocks in flight at most.
    #[arg(long, value_name = "N")]
    pub buffer_size: Option<u32>,
    /// The mask token's id; the model's own otherwise.
    #[arg(long, value_name = "ID")]
    pub mask_token_id: Option<u32>,
    /// How the strategy decides.
    #[command(flatten)]
    #[serde(flatten)]
    pub decoding: DecodingOverrides,
    /// Longest prompt and answer together, in tokens; cut to what the model was made for.
    #[arg(long, value_name = "N")]
    pub max_model_len: Option<u32>,
    /// Requests in the batch.
    #[arg(long, value_name = "N")]
    pub max_num_reqs: Option<u32>,
    /// Token rows of one forward.
    #[arg(long, value_name = "N")]
    pub max_num_batched_tokens: Option<u32>,
    /// Tokens of one KV page.
    #[arg(long, value_name = "N")]
    pub page_size: Option<u32>,
    /// Size of the KV pool in bytes; enough for a full batch otherwise, 1 GiB and half of the memory that is left at
    /// most.
    #[arg(long, value_name = "BYTES")]
    pub kv_cache_bytes: Option<u64>,
    /// How K and V are held: auto (float32 beside weights in float32, otherwise bfloat16), float32 or bfloat16.
    #[arg(long, value_name = "DTYPE")]
    pub kv_cache_dtype: Option<String>,
    /// Do not reuse the K/V of prompts that begin alike.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub disable_prefix_caching: Option<bool>,
}

/// Flags of Diffulex that have nothing to act on here. [`crate::config`] says of each whether it is a no-op or refused.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct DiffulexFlags {
    /// Only `naive`.
    #[arg(long, hide = true)]
    pub sampling_mode: Option<String>,
    /// Only 1.
    #[arg(long, hide = true)]
    pub tensor_parallel_size: Option<u32>,
    /// Only 1.
    #[arg(long, hide = true)]
    pub data_parallel_size: Option<u32>,
    /// No effect.
    #[arg(long, hide = true)]
    pub master_addr: Option<String>,
    /// No effect.
    #[arg(long, hide = true)]
    pub master_port: Option<u16>,
    /// No effect.
    #[arg(long, hide = true)]
    pub distributed_timeout_seconds: Option<u32>,
    /// No effect.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub disable_prefill_cudagraph: Option<bool>,
    /// No effect.
    #[arg(long, hide = true)]
    pub prefill_cudagraph_max_len: Option<u32>,
    /// No effect.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub disable_full_static_runner: Option<bool>,
    /// No effect.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub disable_torch_compile: Option<bool>,
    /// No effect.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_cudagraph_torch_compile: Option<bool>,
    /// No effect.
    #[arg(long, hide = true)]
    pub torch_compile_mode: Option<String>,
    /// No effect.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enforce_eager: Option<bool>,
    /// Only Diffulex's default of 8.
    #[arg(long, hide = true)]
    pub auto_max_nfe_warmup_steps: Option<u32>,
    /// Only Diffulex's default of 1.
    #[arg(long, hide = true)]
    pub auto_max_nfe_tpf_floor: Option<f64>,
    /// No effect; --kv-cache-bytes sizes the pool.
    #[arg(long, hide = true)]
    pub gpu_memory_utilization: Option<f64>,
    /// No effect; --device chooses the kernels.
    #[arg(long, hide = true)]
    pub attn_impl: Option<String>,
    /// Only `unified`.
    #[arg(long, hide = true)]
    pub kv_cache_layout: Option<String>,
    /// No effect.
    #[arg(long, hide = true)]
    pub moe_dispatcher_backend: Option<String>,
    /// No effect.
    #[arg(long, hide = true)]
    pub moe_gemm_impl: Option<String>,
    /// No effect.
    #[arg(long, hide = true)]
    pub moe_topk_impl: Option<String>,
    /// No effect.
    #[arg(long, hide = true)]
    pub deepep_mode: Option<String>,
    /// No effect.
    #[arg(long, hide = true)]
    pub deepep_num_max_dispatch_tokens_per_rank: Option<u32>,
    /// Only Diffulex's default of 0.
    #[arg(long, hide = true)]
    pub token_stability_threshold: Option<f64>,
    /// No effect; /start_profile says that there is no profiler.
    #[arg(long, hide = true)]
    pub profiler: Option<String>,
    /// No effect.
    #[arg(long, hide = true)]
    pub torch_profiler_dir: Option<String>,
    /// No effect.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub profiler_record_shapes: Option<bool>,
    /// No effect.
    #[arg(long, hide = true, alias = "profiler-memory", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub profiler_profile_memory: Option<bool>,
    /// No effect.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub profiler_with_stack: Option<bool>,
    /// No effect.
    #[arg(long, hide = true)]
    pub profiler_delay_iterations: Option<u32>,
    /// No effect.
    #[arg(long, hide = true)]
    pub profiler_max_iterations: Option<u32>,
}

/// Everything `generate` takes.
#[derive(Clone, Debug, Args)]
pub struct GenerateArgs {
    /// What to say to the model; - reads it from standard input, as a pipe without a prompt does.
    pub prompt: Option<String>,
    /// Give the model the prompt as it is, without its chat template.
    #[arg(long)]
    pub raw: bool,
    /// Longest answer in tokens.
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
    /// 0 is greedy, at most 2.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Draws the same answer again.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Denoise steps shown a second, so that eyes can follow; 0 shows each when it comes.
    #[arg(long, default_value_t = 30.0, value_name = "N")]
    pub fps: f64,
    /// error, warn, info, debug, trace, or a filter.
    #[arg(long, default_value = "warn", value_name = "LEVEL")]
    pub log_level: String,
    /// Of the model and the engine.
    #[command(flatten, next_help_heading = "Model and engine")]
    pub engine: EngineFlags,
}

impl EngineFlags {
    /// The device, from either flag.
    pub fn device_choice(&self) -> Result<Option<DeviceChoice>, String> {
        let by_index = match self.device_ids.as_deref().map(parse_device_ids).transpose()?.as_deref() {
            None | Some([]) => None,
            Some([index]) => Some(DeviceChoice::Cuda(*index)),
            Some(indices) => {
                return Err(format!("--device-ids: one device is supported, got {}", indices.len()));
            }
        };
        match (&self.device, by_index) {
            (Some(device), None) => device.parse().map(Some).map_err(|error: String| format!("--device: {error}")),
            (Some(_), Some(_)) => Err("--device and --device-ids say the same thing; give one".to_owned()),
            (None, by_index) => Ok(by_index),
        }
    }

    /// Whether weights are held as small integers.
    pub fn quantization_choice(&self) -> Result<Option<Quantization>, String> {
        let known = [("none", Quantization::None), ("int8", Quantization::Int8), ("int4", Quantization::Int4)];
        choice("--quantization", self.quantization.as_deref(), &known)
    }

    /// How weights are held.
    pub fn dtype_choice(&self) -> Result<Option<DtypeChoice>, String> {
        choice("--dtype", self.dtype.as_deref(), &DTYPES)
    }

    /// How K and V are held.
    pub fn kv_cache_dtype_choice(&self) -> Result<Option<DtypeChoice>, String> {
        choice("--kv-cache-dtype", self.kv_cache_dtype.as_deref(), &DTYPES)
    }
}

const DTYPES: [(&str, DtypeChoice); 3] =
    [("auto", DtypeChoice::Auto), ("float32", DtypeChoice::Float32), ("bfloat16", DtypeChoice::Bfloat16)];

/// What a flag's name means, of those known.
fn choice<T: Copy>(flag: &str, given: Option<&str>, known: &[(&str, T)]) -> Result<Option<T>, String> {
    let Some(given) = given else { return Ok(None) };
    match known.iter().find(|(name, _)| *name == given) {
        Some((_, choice)) => Ok(Some(*choice)),
        None => {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            Err(format!("{flag}: expected one of {}, got {given:?}", names.join(", ")))
        }
    }
}

/// A number that is one: JSON, in which flags meet the YAML file, has no way to write NaN.
fn finite<T: std::str::FromStr + Into<f64> + Copy>(text: &str) -> Result<T, String> {
    let number: T = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.into().is_finite() { Ok(number) } else { Err("not a finite number".to_owned()) }
}

/// Diffulex's list of device indices: comma-separated, spaces and empty items allowed.
pub fn parse_device_ids(text: &str) -> Result<Vec<u32>, String> {
    let mut ids = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let id = item.parse().map_err(|_| format!("--device-ids: {item:?} is not a device index"))?;
        if ids.contains(&id) {
            return Err(format!("--device-ids: {id} is named twice"));
        }
        ids.push(id);
    }
    Ok(ids)
}

/// The command line's grammar, with every default that there is written into the help.
pub fn command() -> clap::Command {
    let of_serve = ServerConfig::flag_defaults();
    let mut of_generate = of_serve.clone();
    let SamplingParams { max_tokens, temperature, .. } = SamplingParams::default();
    let temperature = format!("{temperature:?}, for the demo model {:?}", demo::default_temperature(None));
    of_generate.extend([("max_tokens".to_owned(), max_tokens.into()), ("temperature".to_owned(), temperature.into())]);
    with_defaults(Cli::command(), &of_serve)
        // The flags of `serve`, whose own help has them all.
        .mut_args(|argument| {
            let is_rare = !is_common(&argument);
            argument.hide_short_help(is_rare).hide_long_help(is_rare)
        })
        .after_help(format!(
            "Examples:\n{SERVE_EXAMPLES}{GENERATE_EXAMPLES}\n`serve --help` and `generate --help` have all flags."
        ))
        .mut_subcommand("serve", |command| of_subcommand(command, &of_serve, SERVE_EXAMPLES))
        .mut_subcommand("generate", |command| of_subcommand(command, &of_generate, GENERATE_EXAMPLES))
}

/// Flags in the short help: what somebody needs in the first hour, and all of the flags without a heading.
const COMMON_FLAGS: [&str; 9] =
    ["host", "port", "api_key", "log_level", "model", "lora_path", "quantization", "threads", "max_model_len"];

const SERVE_EXAMPLES: &str =
    "  diffulex-server                                      the built-in model, on http://127.0.0.1:8000
  diffulex-server --model SDAR-1.7B-Chat --port 8080   a checkpoint folder
  diffulex-server --model llada-q8_0.gguf              a GGUF file
";

const GENERATE_EXAMPLES: &str = "  diffulex-server generate \"Tell me a story about a dragon\"
  diffulex-server generate --model SDAR-1.7B-Chat --quantization int8 \"What is a prime?\"
  echo \"What is 2 + 2?\" | diffulex-server generate
";

fn of_subcommand(command: clap::Command, defaults: &Map<String, Value>, examples: &str) -> clap::Command {
    with_defaults(command, defaults)
        .mut_args(|argument| {
            let is_rare = !is_common(&argument);
            argument.hide_short_help(is_rare)
        })
        .after_help(format!("Examples:\n{examples}\n`--help` has all flags."))
        .after_long_help(format!("Examples:\n{examples}"))
}

fn is_common(argument: &clap::Arg) -> bool {
    argument.get_help_heading().is_none() || COMMON_FLAGS.contains(&argument.get_id().as_str())
}

fn with_defaults(command: clap::Command, defaults: &Map<String, Value>) -> clap::Command {
    // So that a number out of range is told as such, and not taken for a flag.
    command.allow_negative_numbers(true).mut_args(|argument| {
        // A default of the grammar's own is in the help already.
        let is_told = !argument.get_default_values().is_empty();
        let Some(value) = defaults.get(argument.get_id().as_str()).filter(|_| !is_told) else { return argument };
        let default = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        argument.help(format!("{help} [default: {default}]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn device_ids_are_read_as_diffulex_reads_them() {
        assert_eq!(parse_device_ids(""), Ok(vec![]));
        assert_eq!(parse_device_ids("0, 1 ,,2,"), Ok(vec![0, 1, 2]));
        assert!(parse_device_ids("-1").is_err());
        assert!(parse_device_ids("1,1").is_err());
        assert!(parse_device_ids("0,x").is_err());
    }

    #[test]
    fn serve_is_the_default_subcommand() {
        let bare = Cli::try_parse_from(["diffulex-server", "--port", "9"]).expect("parses");
        assert_eq!((bare.command.is_none(), bare.serve.server.port), (true, Some(9)));
        let named = Cli::try_parse_from(["diffulex-server", "serve", "--port", "9"]).expect("parses");
        assert!(matches!(named.command, Some(Command::Serve(args)) if args.server.port == Some(9)));
    }

    #[test]
    fn help_shows_defaults() {
        let help = command().render_long_help().to_string();
        assert!(help.contains("Port to listen on; 0 takes a free one [default: 8000]"), "{help}");
        let mut command = command();
        let help = command.find_subcommand_mut("generate").expect("generate").render_long_help().to_string();
        for default in ["[default: 512]", "[default: 1.0, for the demo model 0.0]", "[default: warn]"] {
            assert!(help.contains(default), "{default}: {help}");
        }
    }

    #[test]
    fn help_lists_what_the_program_can_do() {
        let help = command().render_long_help().to_string();
        assert!(help.contains("  serve ") && help.contains("  generate "), "{help}");
        assert!(!help.contains("  worker ") && !help.contains("enforce-eager"), "{help}");
    }
}
