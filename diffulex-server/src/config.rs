//! What a server does, decided once: flags over YAML over defaults.
//!
//! In: [`ServeArgs`]. Out: a [`ServerConfig`] that nothing changes any more, and notices for flags that do nothing here.
//! [`ServerConfig::default`] and the engine's `EngineOptions::default` are the only places with defaults. Never here:
//! effects.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use diffulex_engine::EngineOptions;
use diffulex_protocol::{AdapterSource, DecodingOverrides};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cli::{DiffulexFlags, EngineFlags, ServeArgs, ServerFlags};
use crate::link::address::Address;

/// A wrong flag or file; says which.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// The server's whole configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Address to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Checkpoint folder or GGUF file; `None` is the demo model.
    pub model: Option<PathBuf>,
    /// Public name; `None` is the folder's.
    pub served_model_name: Option<String>,
    /// One more name.
    pub model_name: Option<String>,
    /// Key of requests.
    #[serde(skip_serializing)]
    pub api_key: Option<String>,
    /// Origin whose pages may call.
    pub cors_origin: Option<String>,
    /// Names that clients call the server by.
    pub allowed_host: Vec<String>,
    /// The engine runs in this process.
    pub in_process: bool,
    /// Requests that may wait.
    pub max_queued_requests: u32,
    /// Largest body.
    pub max_body_bytes: usize,
    /// For one request; 0 is no limit.
    pub request_timeout_seconds: f64,
    /// For a client that does not read.
    pub stream_idle_timeout_seconds: f64,
    /// To the end of a request's head, then of its body.
    pub header_timeout_seconds: f64,
    /// For loading.
    pub startup_timeout_seconds: f64,
    /// For what runs at shutdown.
    pub shutdown_grace_seconds: f64,
    /// Between an idle engine's reports.
    pub heartbeat_interval_seconds: f64,
    /// Until a silent engine counts as stalled.
    pub engine_heartbeat_timeout_seconds: f64,
    /// Until a silent engine is ended; 0 is never.
    pub watchdog_timeout: f64,
    /// Where lost engines are reported; `None` is the user's state folder.
    pub crash_report_dir: Option<PathBuf>,
    /// ZMQ address of commands; `None` is a private one.
    pub zmq_command_addr: Option<String>,
    /// ZMQ address of events; `None` is a private one.
    pub zmq_event_addr: Option<String>,
    /// Addresses that other users reach are meant.
    pub allow_shared_zmq: bool,
    /// Level or filter of log lines.
    pub log_level: String,
    /// The engine's.
    #[serde(flatten)]
    pub engine: EngineOptions,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            // Diffulex listens on 0.0.0.0; nobody should be reachable by accident.
            host: "127.0.0.1".to_owned(),
            // Diffulex's.
            port: 8000,
            model: None,
            served_model_name: None,
            model_name: None,
            api_key: None,
            cors_origin: None,
            allowed_host: Vec::new(),
            in_process: false,
            // The following are chosen by us. Eight batches of waiting requests: minutes of queue at worst.
            max_queued_requests: 1024,
            // A prompt of a million characters, in JSON.
            max_body_bytes: 4 * 1024 * 1024,
            // A long answer of a large model on a CPU takes minutes; a client that wants less closes its connection.
            request_timeout_seconds: 600.0,
            stream_idle_timeout_seconds: 60.0,
            header_timeout_seconds: 60.0,
            // Diffulex's distributed time-out; a large checkpoint on a network disk.
            startup_timeout_seconds: 600.0,
            // What container runtimes allow between SIGTERM and SIGKILL.
            shutdown_grace_seconds: 30.0,
            heartbeat_interval_seconds: 1.0,
            // One forward of a large model on a CPU may take this long.
            engine_heartbeat_timeout_seconds: 60.0,
            // Twice SGLang's: one forward over a long prompt may take minutes where a large model runs on a CPU.
            watchdog_timeout: 600.0,
            crash_report_dir: None,
            zmq_command_addr: None,
            zmq_event_addr: None,
            allow_shared_zmq: false,
            // Diffulex's.
            log_level: "info".to_owned(),
            engine: EngineOptions::default(),
        }
    }
}

/// What became of the command line.
#[derive(Debug)]
pub struct Resolved {
    /// The configuration.
    pub config: ServerConfig,
    /// One line for each flag that does nothing here, or that should be thought about.
    pub notices: Vec<String>,
}

impl ServerConfig {
    /// Flags over the YAML file over the defaults.
    pub fn resolve(args: &ServeArgs) -> Result<Resolved, ConfigError> {
        let mut file = args.config.as_ref().map(read_yaml).transpose()?.unwrap_or_default();
        // Before they meet the file in JSON, which has no way to write NaN.
        check_decoding(&args.engine.decoding)?;
        let server = overlay(&args.server, &mut file)?;
        let engine = overlay(&args.engine, &mut file)?;
        let diffulex = overlay(&args.diffulex, &mut file)?;
        if let Some(key) = file.keys().next() {
            return Err(ConfigError(format!("the configuration file has an unknown key {key:?}")));
        }
        let mut notices = judge_diffulex_flags(&diffulex)?;
        let config = Self::of_flags(server, &engine)?;
        config.check()?;
        notices.extend(config.check_addresses()?);
        Ok(Resolved { config, notices })
    }

    fn of_flags(flags: ServerFlags, engine: &EngineFlags) -> Result<Self, ConfigError> {
        let defaults = Self::default();
        // Named one by one, so that a new flag does not compile until somebody says what it sets.
        let ServerFlags {
            host,
            port,
            served_model_name,
            model_name,
            api_key,
            cors_origin,
            allowed_host,
            in_process,
            max_queued_requests,
            max_body_bytes,
            request_timeout_seconds,
            stream_idle_timeout_seconds,
            header_timeout_seconds,
            startup_timeout_seconds,
            shutdown_grace_seconds,
            heartbeat_interval_seconds,
            engine_heartbeat_timeout_seconds,
            watchdog_timeout,
            crash_report_dir,
            zmq_command_addr,
            zmq_event_addr,
            allow_shared_zmq,
            log_level,
        } = flags;
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(Self {
            host: host.unwrap_or(defaults.host),
            port: port.unwrap_or(defaults.port),
            model: engine.model.clone(),
            served_model_name: given(served_model_name),
            model_name: given(model_name),
            api_key,
            cors_origin: given(cors_origin),
            allowed_host: allowed_host.unwrap_or(defaults.allowed_host),
            in_process: in_process.unwrap_or(defaults.in_process),
            max_queued_requests: max_queued_requests.unwrap_or(defaults.max_queued_requests),
            max_body_bytes: max_body_bytes.unwrap_or(defaults.max_body_bytes),
            request_timeout_seconds: request_timeout_seconds.unwrap_or(defaults.request_timeout_seconds),
            stream_idle_timeout_seconds: stream_idle_timeout_seconds.unwrap_or(defaults.stream_idle_timeout_seconds),
            header_timeout_seconds: header_timeout_seconds.unwrap_or(defaults.header_timeout_seconds),
            startup_timeout_seconds: startup_timeout_seconds.unwrap_or(defaults.startup_timeout_seconds),
            shutdown_grace_seconds: shutdown_grace_seconds.unwrap_or(defaults.shutdown_grace_seconds),
            heartbeat_interval_seconds: heartbeat_interval_seconds.unwrap_or(defaults.heartbeat_interval_seconds),
            engine_heartbeat_timeout_seconds: engine_heartbeat_timeout_seconds
                .unwrap_or(defaults.engine_heartbeat_timeout_seconds),
            watchdog_timeout: watchdog_timeout.unwrap_or(defaults.watchdog_timeout),
            crash_report_dir,
            zmq_command_addr: given(zmq_command_addr),
            zmq_event_addr: given(zmq_event_addr),
            allow_shared_zmq: allow_shared_zmq.unwrap_or(defaults.allow_shared_zmq),
            log_level: log_level.unwrap_or(defaults.log_level),
            engine: engine_options(engine)?,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let seconds = [
            ("--request-timeout-seconds", self.request_timeout_seconds, true),
            ("--shutdown-grace-seconds", self.shutdown_grace_seconds, true),
            ("--stream-idle-timeout-seconds", self.stream_idle_timeout_seconds, false),
            ("--header-timeout-seconds", self.header_timeout_seconds, false),
            ("--startup-timeout-seconds", self.startup_timeout_seconds, false),
            ("--heartbeat-interval-seconds", self.heartbeat_interval_seconds, false),
            ("--engine-heartbeat-timeout-seconds", self.engine_heartbeat_timeout_seconds, false),
            ("--watchdog-timeout", self.watchdog_timeout, true),
        ];
        for (flag, value, zero_is_allowed) in seconds {
            let is_fine = value > 0.0 || zero_is_allowed && value == 0.0;
            // A year: beyond, sums with the clock overflow.
            if !is_fine || value > 365.0 * 86400.0 {
                let least = if zero_is_allowed { "0" } else { "above 0" };
                return Err(ConfigError(format!("{flag}: expected seconds, {least} to a year, got {value:e}")));
            }
        }
        if self.watchdog_timeout > 0.0 && self.watchdog_timeout <= self.heartbeat_interval_seconds {
            return Err(ConfigError(format!(
                "--watchdog-timeout: expected more than --heartbeat-interval-seconds ({}), after which an idle engine \
                 reports, got {}",
                self.heartbeat_interval_seconds, self.watchdog_timeout
            )));
        }
        if let Some(key) = &self.api_key
            && (key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            // An empty one would lock nobody out, and one that no header carries everybody.
            return Err(ConfigError("--api-key: expected visible ASCII characters, at least one".to_owned()));
        }
        Ok(())
    }

    /// Where lost engines are reported: the given folder, or `diffulex/crashes` in the user's state folder (XDG Base
    /// Directory Specification). `None` where there is neither.
    pub fn crash_report_folder(&self) -> Option<PathBuf> {
        let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = || of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")));
        self.crash_report_dir.clone().or_else(|| Some(state()?.join("diffulex/crashes")))
    }

    /// Refuses ZMQ addresses that cannot work or that others reach; a line for each that others are meant to reach.
    fn check_addresses(&self) -> Result<Vec<String>, ConfigError> {
        let given = [("--zmq-command-addr", &self.zmq_command_addr), ("--zmq-event-addr", &self.zmq_event_addr)];
        let mut notices = Vec::new();
        let mut seen = None;
        for (flag, text) in given.into_iter().filter_map(|(flag, text)| text.as_deref().map(|text| (flag, text))) {
            let wrong = |why: String| ConfigError(format!("{flag} {text}: {why}"));
            let address = Address::parse(text).map_err(wrong)?;
            address.check_place().map_err(wrong)?;
            if seen.replace(address.clone()).is_some_and(|other| other == address) {
                return Err(wrong("commands and events need an address each".to_owned()));
            }
            let Some(why) = address.shared() else { continue };
            // docs/operations.md says more.
            let risk = format!("{why}, who could then take requests and read prompts");
            if !self.allow_shared_zmq {
                return Err(wrong(format!(
                    "{risk}; take ipc:// in a folder that only you can write to, or say --allow-shared-zmq"
                )));
            }
            notices.push(format!("{flag} {text}: {risk}"));
        }
        Ok(notices)
    }

    /// Every default by its flag's name, for the help.
    pub fn flag_defaults() -> Map<String, Value> {
        let mut defaults = match serde_json::to_value(Self::default()) {
            Ok(Value::Object(map)) => map,
            // A struct of plain fields is always a map.
            Ok(_) | Err(_) => Map::new(),
        };
        // What is absent by default says so in its own words; flags that are switches need no default shown.
        defaults.retain(|_, value| !value.is_null() && !value.is_boolean() && !value.is_array());
        defaults
    }

    /// Seconds as a duration; `check` has refused what cannot be one.
    pub fn duration(seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

/// The engine's options from its flags.
pub fn engine_options(flags: &EngineFlags) -> Result<EngineOptions, ConfigError> {
    let defaults = EngineOptions::default();
    let EngineFlags {
        model: _,
        lora_path: _,
        pre_merge_lora: _,
        use_lora: _,
        device: _,
        device_ids: _,
        dtype: _,
        quantization: _,
        max_loaded_loras,
        max_lora_bytes,
        threads,
        decoding_strategy,
        block_size,
        buffer_size,
        mask_token_id,
        decoding,
        max_model_len,
        max_num_reqs,
        max_num_batched_tokens,
        page_size,
        kv_cache_bytes,
        kv_cache_dtype: _,
        disable_prefix_caching,
    } = flags;
    check_decoding(decoding)?;
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
            return Err(ConfigError(format!("{flag}: must be at least 1")));
        }
    }
    let (adapters, merged_adapter) = adapters(flags)?;
    Ok(EngineOptions {
        adapters,
        max_loaded_loras: max_loaded_loras.unwrap_or(defaults.max_loaded_loras),
        max_lora_bytes: max_lora_bytes.unwrap_or(defaults.max_lora_bytes),
        merged_adapter,
        decoding_strategy: decoding_strategy.clone(),
        block_size: *block_size,
        buffer_size: *buffer_size,
        mask_token_id: *mask_token_id,
        decoding: decoding.clone(),
        max_model_len: max_model_len.unwrap_or(defaults.max_model_len),
        max_num_reqs: max_num_reqs.unwrap_or(defaults.max_num_reqs),
        max_num_batched_tokens: max_num_batched_tokens.unwrap_or(defaults.max_num_batched_tokens),
        page_size: page_size.unwrap_or(defaults.page_size),
        kv_cache_bytes: *kv_cache_bytes,
        kv_cache_dtype: flags.kv_cache_dtype_choice().map_err(ConfigError)?.unwrap_or(defaults.kv_cache_dtype),
        prefix_caching: disable_prefix_caching.map_or(defaults.prefix_caching, |disable| !disable),
        device: flags.device_choice().map_err(ConfigError)?.unwrap_or(defaults.device),
        dtype: flags.dtype_choice().map_err(ConfigError)?.unwrap_or(defaults.dtype),
        quantization: flags.quantization_choice().map_err(ConfigError)?.unwrap_or(defaults.quantization),
        threads: *threads,
    })
}

/// What is wrong in terms of flags.
fn check_decoding(decoding: &DecodingOverrides) -> Result<(), ConfigError> {
    decoding.validate().map_err(|(field, message)| {
        let flag = format!("--{}", field.trim_start_matches("decoding.").replace('_', "-"));
        ConfigError(message.replace(field, &flag))
    })
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
            return Err(ConfigError(format!("--lora-path: expected NAME=FOLDER or FOLDER, got {text:?}")));
        }
        if adapters.iter().any(|known| known.name == name) {
            return Err(ConfigError(format!("--lora-path: two adapters are called {name:?}; give NAME=FOLDER")));
        }
        adapters.push(AdapterSource { name, path: path.to_owned() });
    }
    let wants_any = flags.use_lora == Some(true) || flags.pre_merge_lora == Some(true);
    if wants_any && adapters.is_empty() {
        return Err(ConfigError("--use-lora and --pre-merge-lora need a --lora-path".to_owned()));
    }
    if flags.use_lora == Some(false) && !adapters.is_empty() {
        return Err(ConfigError("--use-lora=false contradicts --lora-path".to_owned()));
    }
    if flags.pre_merge_lora != Some(true) {
        return Ok((adapters, None));
    }
    match adapters.as_slice() {
        [one] => Ok((Vec::new(), Some(one.path.clone()))),
        more => Err(ConfigError(format!("--pre-merge-lora merges one adapter; --lora-path names {}", more.len()))),
    }
}

/// The flags, each one not given on the command line taken out of the file.
fn overlay<T: Args + Clone + Serialize + DeserializeOwned>(
    flags: &T,
    file: &mut Map<String, Value>,
) -> Result<T, ConfigError> {
    let internal = |error: serde_json::Error| ConfigError(format!("flags cannot be read back: {error}"));
    let Value::Object(mut merged) = serde_json::to_value(flags).map_err(internal)? else { return Ok(flags.clone()) };
    for flag in T::augment_args(clap::Command::default()).get_arguments() {
        let key = flag.get_id().as_str();
        if let Some(from_file) = file.remove(key)
            && merged.get(key).is_none_or(Value::is_null)
        {
            merged.insert(key.to_owned(), from_file);
        }
    }
    serde_path_to_error::deserialize(Value::Object(merged))
        .map_err(|error| ConfigError(format!("the configuration file: {}: {}", error.path(), error.inner())))
}

fn read_yaml(path: &PathBuf) -> Result<Map<String, Value>, ConfigError> {
    let wrong = |error: &dyn std::fmt::Display| ConfigError(format!("--config {}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    // First as what YAML knows: a key that stands twice is an error there, and numbers are told that JSON has no way to write.
    let file: serde_norway::Value = serde_norway::from_str(&text).map_err(|error| wrong(&error))?;
    if let Some(entries) = file.as_mapping() {
        let is_strange = |value: &serde_norway::Value| value.as_f64().is_some_and(|number| !number.is_finite());
        if let Some((key, _)) = entries.iter().find(|(_, value)| is_strange(value)) {
            return Err(wrong(&format!("{}: not a finite number", key.as_str().unwrap_or_default())));
        }
    }
    let file: Option<Map<String, Value>> = serde_norway::from_value(file).map_err(|error| wrong(&error))?;
    // An empty file is an empty map.
    Ok(file.unwrap_or_default())
}

/// What a flag of Diffulex means here.
enum Meaning {
    /// Nothing: there is nothing it could change.
    NoOp(&'static str),
    /// Something that would change answers and is not built; these values ask for nothing.
    RefusedUnless(&'static [&'static str], &'static str),
}

fn meaning_of(flag: &str) -> Option<Meaning> {
    use Meaning::{NoOp, RefusedUnless};
    const ONE_PROCESS: &str = "there is one engine process and no process group";
    const NO_TORCH: &str = "there is no PyTorch here, and kernels need no such choice";
    const NO_PROFILER: &str = "there is no profiler; /start_profile will say so";
    Some(match flag {
        "sampling_mode" => RefusedUnless(&["naive"], "--decoding-strategy block_edit edits"),
        "tensor_parallel_size" | "data_parallel_size" => RefusedUnless(&["1"], ONE_PROCESS),
        "master_addr" | "master_port" | "distributed_timeout_seconds" => NoOp(ONE_PROCESS),
        "disable_prefill_cudagraph"
        | "prefill_cudagraph_max_len"
        | "disable_full_static_runner"
        | "disable_torch_compile"
        | "enable_cudagraph_torch_compile"
        | "torch_compile_mode"
        | "enforce_eager"
        | "moe_dispatcher_backend"
        | "moe_gemm_impl"
        | "moe_topk_impl"
        | "deepep_mode"
        | "deepep_num_max_dispatch_tokens_per_rank" => NoOp(NO_TORCH),
        "attn_impl" => NoOp("--device chooses the kernels"),
        "gpu_memory_utilization" => NoOp("--kv-cache-bytes sizes the KV pool"),
        "auto_max_nfe_warmup_steps" => RefusedUnless(&["8"], "max_nfe is not chosen automatically; send it"),
        "auto_max_nfe_tpf_floor" => RefusedUnless(&["1", "1.0"], "max_nfe is not chosen automatically; send it"),
        "kv_cache_layout" => RefusedUnless(&["unified"], "there is one layout"),
        "token_stability_threshold" => RefusedUnless(&["0", "0.0"], "no strategy here edits by a threshold"),
        "profiler"
        | "torch_profiler_dir"
        | "profiler_record_shapes"
        | "profiler_profile_memory"
        | "profiler_with_stack"
        | "profiler_delay_iterations"
        | "profiler_max_iterations" => NoOp(NO_PROFILER),
        _ => return None,
    })
}

fn judge_diffulex_flags(flags: &DiffulexFlags) -> Result<Vec<String>, ConfigError> {
    let mut notices = Vec::new();
    let Ok(Value::Object(given)) = serde_json::to_value(flags) else { return Ok(notices) };
    for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let flag = format!("--{}", name.replace('_', "-"));
        match meaning_of(name) {
            Some(Meaning::NoOp(reason)) => notices.push(format!("{flag} {value} has no effect: {reason}")),
            Some(Meaning::RefusedUnless(neutral, _)) if neutral.contains(&value.as_str()) => {}
            Some(Meaning::RefusedUnless(_, reason)) => {
                return Err(ConfigError(format!("{flag} {value} is not supported: {reason}")));
            }
            None => return Err(ConfigError(format!("{flag} has no meaning here yet"))),
        }
    }
    Ok(notices)
}

/// True unless only this machine reaches `host`.
pub fn is_exposed(host: &str) -> bool {
    host != "localhost" && !host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What an operator should think about before strangers come.
pub fn exposure_warning(config: &ServerConfig) -> Option<String> {
    (is_exposed(&config.host) && config.api_key.is_none())
        .then(|| format!("listening on {} without --api-key: whoever reaches this port may use the model", config.host))
}

/// The configuration for reports, which may be passed on.
pub fn without_key(config: &ServerConfig) -> Value {
    let shown = ServerConfig { api_key: None, ..config.clone() };
    serde_json::to_value(shown).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn resolve(arguments: &[&str]) -> Result<Resolved, ConfigError> {
        let line = ["diffulex-server"].iter().chain(arguments);
        ServerConfig::resolve(&Cli::try_parse_from(line).expect("parses").serve)
    }

    fn file(content: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), content).expect("written");
        file
    }

    #[test]
    fn no_flags_are_the_defaults() {
        let resolved = resolve(&[]).expect("resolves");
        assert_eq!(
            resolved.config,
            ServerConfig { api_key: resolved.config.api_key.clone(), ..ServerConfig::default() }
        );
        assert!(resolved.notices.is_empty());
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let file = file("port: 1234\nblock_size: 8\nhost: 0.0.0.0\nin_process: true\n");
        let path = file.path().to_str().expect("a path");
        let config = resolve(&["--config", path, "--port", "99"]).expect("resolves").config;
        assert_eq!((config.port, config.host.as_str(), config.in_process), (99, "0.0.0.0", true));
        assert_eq!(config.engine.block_size, Some(8));
    }

    #[test]
    fn an_unknown_key_of_the_file_is_named() {
        let file = file("prot: 1234\n");
        let error = resolve(&["--config", file.path().to_str().expect("a path")]).expect_err("refused");
        assert!(error.0.contains("prot"), "{error}");
    }

    #[test]
    fn an_empty_file_is_fine() {
        let file = file("");
        assert!(resolve(&["--config", file.path().to_str().expect("a path")]).is_ok());
    }

    #[test]
    fn every_diffulex_flag_has_a_meaning() {
        let Ok(Value::Object(flags)) = serde_json::to_value(DiffulexFlags::default()) else { panic!("a map") };
        for flag in flags.keys() {
            assert!(meaning_of(flag).is_some(), "{flag}");
        }
    }

    #[test]
    fn flags_without_effect_are_noticed_and_flags_that_would_change_answers_refused() {
        // Diffulex's own argument test.
        let resolved = resolve(&[
            "--model",
            "/tmp/model",
            "--disable-prefill-cudagraph",
            "--prefill-cudagraph-max-len",
            "4096",
            "--disable-torch-compile",
            "--enable-cudagraph-torch-compile",
            "--torch-compile-mode",
            "max-autotune",
            "--attn-impl",
            "naive",
            "--moe-gemm-impl",
            "vllm",
            "--profiler",
            "torch",
            "--torch-profiler-dir",
            "/tmp/p",
            "--profiler-record-shapes",
            "--profiler-max-iterations",
            "3",
        ]);
        assert_eq!(resolved.expect("accepted").notices.len(), 11);
        for line in [
            ["--sampling-mode", "edit"],
            ["--tensor-parallel-size", "2"],
            ["--kv-cache-layout", "distinct"],
            ["--auto-max-nfe-warmup-steps", "6"],
            ["--use-lora", "--pre-merge-lora"],
            ["--remask-threshold", "1.3"],
        ] {
            assert!(resolve(&line).is_err(), "{line:?}");
        }
        assert!(
            resolve(&["--sampling-mode", "naive", "--data-parallel-size", "1"]).expect("neutral").notices.is_empty()
        );
    }

    #[test]
    fn explicit_mask_id_reaches_the_engine() {
        assert_eq!(resolve(&["--mask-token-id", "7"]).expect("resolves").config.engine.mask_token_id, Some(7));
        assert_eq!(resolve(&[]).expect("resolves").config.engine.mask_token_id, None);
    }

    #[test]
    fn adapters_have_names_of_their_own() {
        let engine = |line: &[&str]| resolve(line).map(|resolved| resolved.config.engine);
        let options = engine(&["--lora-path", "a=/x/y", "--lora-path", "/x/z", "--use-lora"]).expect("resolves");
        let named: Vec<_> =
            options.adapters.iter().map(|source| (source.name.as_str(), source.path.as_str())).collect();
        assert_eq!(named, [("a", "/x/y"), ("z", "/x/z")]);
        let merged = engine(&["--lora-path", "a=/x/y", "--pre-merge-lora"]).expect("resolves");
        assert_eq!((merged.adapters, merged.merged_adapter), (Vec::new(), Some("/x/y".to_owned())));
        for line in [
            &["--lora-path", "/x/a", "--lora-path", "/y/a"][..],
            &["--lora-path", "a=/x", "--lora-path", "b=/y", "--pre-merge-lora"],
            &["--lora-path", "=/x"],
            &["--lora-path", "a="],
            &["--lora-path", "/x", "--use-lora=false"],
        ] {
            assert!(resolve(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn zmq_stays_with_this_user_unless_it_is_said_otherwise() {
        let shared = ["--zmq-command-addr", "tcp://127.0.0.1:5555"];
        assert!(resolve(&shared).expect_err("refused").0.contains("--allow-shared-zmq"));
        let meant = resolve(&[&shared[..], &["--allow-shared-zmq"]].concat()).expect("meant");
        assert!(meant.notices.iter().any(|notice| notice.contains("--zmq-command-addr")), "{:?}", meant.notices);
        for [flag, address] in [
            ["--zmq-command-addr", "tcp://0.0.0.0:5555"],
            ["--zmq-event-addr", "tcp://127.0.0.1:99999"],
            ["--zmq-event-addr", "ipc:///etc/passwd/x"],
        ] {
            let error = resolve(&[flag, address, "--allow-shared-zmq"]).expect_err("refused");
            assert!(error.0.contains(flag) && error.0.contains(address), "{error}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("ipc://{}/a", folder.path().display());
        assert!(resolve(&["--zmq-command-addr", &address]).expect("ours").notices.is_empty());
        assert!(resolve(&["--zmq-command-addr", &address, "--zmq-event-addr", &address]).is_err());
    }

    #[test]
    fn times_that_make_no_sense_are_refused() {
        assert!(resolve(&["--startup-timeout-seconds", "0"]).is_err());
        assert!(resolve(&["--request-timeout-seconds", "0"]).is_ok());
        assert!(resolve(&["--request-timeout-seconds=-1"]).is_err());
        assert!(Cli::try_parse_from(["diffulex-server", "--request-timeout-seconds", "NaN"]).is_err());
    }

    #[test]
    fn decoding_is_set_by_flags_and_file_alike() {
        let file = file("accept_threshold: 0.7\nfactor: 2.0\n");
        let path = file.path().to_str().expect("a path");
        let config = resolve(&["--config", path, "--factor", "0.5", "--block-cache"]).expect("resolves").config;
        let decoding = config.engine.decoding;
        assert_eq!(
            (decoding.accept_threshold, decoding.factor, decoding.block_cache),
            (Some(0.7), Some(0.5), Some(true))
        );
        for (flag, value) in [("--factor", "NaN"), ("--accept-threshold", "1.3"), ("--sub-block-size", "0")] {
            let error = resolve(&[flag, value]).expect_err("refused");
            assert!(error.0.contains(flag), "{error}");
        }
    }
}
