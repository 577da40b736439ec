//! The server's configuration, resolved once: flags over YAML over defaults.
//!
//! In: [`ServeArgs`]. Out: a [`ServerConfig`] that nothing changes any more, and notices for flags that do nothing here.
//! [`ServerConfig::default`] and the engine's `EngineOptions::default` are the only places with defaults. Never here:
//! effects.

pub mod decoding_flags;
pub mod diffulex_flags;
mod engine;
pub mod error;
pub mod flags;
mod outbound;
pub mod outbound_flags;
pub mod sampling_defaults;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use diffulex_engine::EngineOptions;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::config::error::ConfigError;
use crate::config::flags::{EngineFlags, ServeArgs, ServerFlags};
use crate::config::outbound_flags::OutboundFlags;
use crate::config::sampling_defaults::GenerationConfig;
use crate::frontend::{ContextLimits, CrashReports, FrontendOptions};
use crate::link::address::Address;
use crate::link::place::Place;
use crate::observe::log::LogFormat;
use crate::outbound::secrets::is_loopback;
use engine::check_decoding;
pub(crate) use engine::{engine_options, profile_folder};
pub use outbound::OutboundConfig;

/// The server's whole configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerConfig {
    /// Address to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Checkpoint folder or GGUF file; `None` is the demo model.
    pub model: Option<PathBuf>,
    /// Where sampling that requests do not name comes from.
    pub generation_config: GenerationConfig,
    /// Public name; `None` is the folder's.
    pub served_model_name: Option<String>,
    /// One more name.
    pub model_name: Option<String>,
    /// Keys of requests, of which one is asked for if there are any.
    #[serde(skip_serializing)]
    pub api_key: Vec<String>,
    /// Prefixes of one key's prompts are found by the requests of others.
    pub share_prefix_cache: bool,
    /// Origins whose pages may call.
    pub cors_origin: Vec<String>,
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
    /// Where the worker listens that this server attaches to; `None` starts one.
    pub connect: Option<String>,
    /// Addresses that other users reach are meant.
    pub allow_shared_zmq: bool,
    /// Contexts held at the same time; 0 is none.
    pub max_contexts: u32,
    /// Those of one caller; `None` is all where one API key is asked for, and otherwise half.
    pub max_contexts_per_caller: Option<u32>,
    /// Seconds that a context lives after its last use.
    pub context_ttl_seconds: f64,
    /// Other servers.
    #[serde(flatten)]
    pub outbound: OutboundConfig,
    /// Level or filter of log lines.
    pub log_level: String,
    /// Form of log lines.
    pub log_format: LogFormat,
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
            generation_config: GenerationConfig::default(),
            served_model_name: None,
            model_name: None,
            api_key: Vec::new(),
            share_prefix_cache: false,
            cors_origin: Vec::new(),
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
            connect: None,
            allow_shared_zmq: false,
            // Chosen by us: at a model length of 2048, 2 MB of tokens.
            max_contexts: 256,
            max_contexts_per_caller: None,
            // Parrot's time of a session.
            context_ttl_seconds: 600.0,
            outbound: OutboundConfig::default(),
            // Diffulex's.
            log_level: "info".to_owned(),
            log_format: LogFormat::default(),
            engine: EngineOptions::default(),
        }
    }
}

/// A resolved command line.
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
        check_decoding(&args.engine.decoding.0)?;
        let server = overlay(&args.server, &mut file)?;
        let outbound = overlay(&args.outbound, &mut file)?;
        let engine = overlay(&args.engine, &mut file)?;
        let mut notices = args.diffulex.judge(&mut file)?;
        if let Some(key) = file.keys().next() {
            return Err(ConfigError::UnknownKey { key: key.clone() });
        }
        let config = Self::of_flags(server, outbound, &engine)?;
        config.check()?;
        config.check_attachment()?;
        notices.extend(config.check_addresses()?);
        Ok(Resolved { config, notices })
    }

    fn of_flags(flags: ServerFlags, outbound: OutboundFlags, engine: &EngineFlags) -> Result<Self, ConfigError> {
        let defaults = Self::default();
        // Named one by one, so that a new flag does not compile until somebody says what it sets.
        let ServerFlags {
            host,
            port,
            served_model_name,
            model_name,
            api_key,
            share_prefix_cache,
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
            profile_dir,
            zmq_command_addr,
            zmq_event_addr,
            connect,
            allow_shared_zmq,
            max_contexts,
            max_contexts_per_caller,
            context_ttl_seconds,
            log_level,
            log_format,
        } = flags;
        let profile_dir = profile_folder(profile_dir)?;
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let host = host.unwrap_or(defaults.host);
        Ok(Self {
            port: port.unwrap_or(defaults.port),
            model: engine.model.clone(),
            generation_config: engine.generation_config.unwrap_or(defaults.generation_config),
            served_model_name: given(served_model_name),
            model_name: given(model_name),
            api_key: api_key.unwrap_or(defaults.api_key),
            share_prefix_cache: share_prefix_cache.unwrap_or(defaults.share_prefix_cache),
            cors_origin: cors_origin.into_iter().flatten().filter(|origin| !origin.is_empty()).collect(),
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
            connect: given(connect),
            allow_shared_zmq: allow_shared_zmq.unwrap_or(defaults.allow_shared_zmq),
            max_contexts: max_contexts.unwrap_or(defaults.max_contexts),
            max_contexts_per_caller: max_contexts_per_caller.or(defaults.max_contexts_per_caller),
            context_ttl_seconds: context_ttl_seconds.unwrap_or(defaults.context_ttl_seconds),
            outbound: OutboundConfig::of_flags(outbound, &host)?,
            host,
            log_level: log_level.unwrap_or(defaults.log_level),
            log_format: log_format.unwrap_or(defaults.log_format),
            engine: EngineOptions { profile_dir, ..engine_options(engine)? },
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
            ("--context-ttl-seconds", self.context_ttl_seconds, false),
        ];
        for (flag, value, zero_is_allowed) in seconds {
            let is_fine = value > 0.0 || zero_is_allowed && value == 0.0;
            // A year: beyond, sums with the clock overflow.
            if !is_fine || value > 365.0 * 86400.0 {
                let least = if zero_is_allowed { "0" } else { "above 0" };
                return Err(ConfigError::flag(flag, format!("expected seconds, {least} to a year, got {value:e}")));
            }
        }
        if self.watchdog_timeout > 0.0 && self.watchdog_timeout <= self.heartbeat_interval_seconds {
            let problem = format!(
                "expected more than --heartbeat-interval-seconds ({}), after which an idle engine reports, got {}",
                self.heartbeat_interval_seconds, self.watchdog_timeout
            );
            return Err(ConfigError::flag("--watchdog-timeout", problem));
        }
        // An empty one would lock nobody out, and one that no header carries everybody.
        if self.api_key.iter().any(|key| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            let expected = "expected visible ASCII characters, at least one, and a comma between two keys";
            return Err(ConfigError::flag("--api-key", expected));
        }
        self.cors_origin.iter().try_for_each(|origin| check_origin(origin))?;
        self.allowed_host.iter().try_for_each(|host| check_allowed_host(host))
    }

    /// Refuses what cannot act where the worker is somebody else's.
    fn check_attachment(&self) -> Result<(), ConfigError> {
        let Some(url) = &self.connect else { return Ok(()) };
        let wrong = |problem: String| Err(ConfigError::flag(format!("--connect {url}"), problem));
        if let Err(error) = Place::parse(url) {
            return wrong(error.to_string());
        }
        for (flag, is_given) in [
            ("--in-process", self.in_process),
            ("--zmq-command-addr", self.zmq_command_addr.is_some()),
            ("--zmq-event-addr", self.zmq_event_addr.is_some()),
        ] {
            if is_given {
                return wrong(format!("contradicts {flag}"));
            }
        }
        // Of the front end, too.
        let EngineOptions { max_num_reqs, max_loaded_loras, profile_dir, .. } = self.engine.clone();
        if self.engine != (EngineOptions { max_num_reqs, max_loaded_loras, profile_dir, ..EngineOptions::default() }) {
            let acting = "--model, --max-num-reqs, --max-loaded-loras and --profile-dir";
            return wrong(format!("the engine's flags are for the worker; only {acting} act here"));
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

    /// Limits of the front end.
    pub fn frontend_options(&self) -> FrontendOptions {
        let request_timeout = Self::duration(self.request_timeout_seconds);
        FrontendOptions {
            max_in_flight: (self.engine.max_num_reqs as usize).saturating_add(self.max_queued_requests as usize),
            request_timeout: (!request_timeout.is_zero()).then_some(request_timeout),
            startup_timeout: Self::duration(self.startup_timeout_seconds),
            heartbeat_timeout: Self::duration(self.engine_heartbeat_timeout_seconds),
            watchdog_timeout: (self.watchdog_timeout > 0.0).then(|| Self::duration(self.watchdog_timeout)),
            tells_callers_apart: self.api_key.len() > 1,
            crash_reports: self.crash_report_folder().map(|folder| CrashReports::new(folder, without_key(self))),
            adapters: self.engine.adapters.clone(),
            max_loaded_loras: self.engine.max_loaded_loras as usize,
            profile_dir: self.engine.profile_dir.clone(),
            salts_by_caller: self.api_key.len() > 1 && !self.share_prefix_cache,
            contexts: ContextLimits {
                max_contexts: self.max_contexts as usize,
                max_per_caller: self.max_contexts_of_caller() as usize,
                ttl: Self::duration(self.context_ttl_seconds),
            },
        }
    }

    /// Contexts of one caller. Where one API key is asked for there is one caller, who may hold all; otherwise two must fill the
    /// table before a third finds no room.
    fn max_contexts_of_caller(&self) -> u32 {
        let share = if self.api_key.len() == 1 { self.max_contexts } else { self.max_contexts.div_ceil(2) };
        self.max_contexts_per_caller.unwrap_or(share)
    }

    /// Refuses ZMQ addresses that cannot work or that others reach; a line for each that others are meant to reach.
    fn check_addresses(&self) -> Result<Vec<String>, ConfigError> {
        let given = [("--zmq-command-addr", &self.zmq_command_addr), ("--zmq-event-addr", &self.zmq_event_addr)];
        let mut notices = Vec::new();
        let mut seen = None;
        for (flag, text) in given.into_iter().filter_map(|(flag, text)| text.as_deref().map(|text| (flag, text))) {
            let wrong = |why: String| ConfigError::flag(format!("{flag} {text}"), why);
            let address = Address::parse(text).map_err(|error| wrong(error.to_string()))?;
            address.check_place().map_err(|error| wrong(error.to_string()))?;
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

    /// `--shutdown-grace-seconds`, of a program that has no other part of the configuration.
    pub fn grace(seconds: Option<f64>) -> Result<Duration, ConfigError> {
        let mut config = Self::default();
        config.shutdown_grace_seconds = seconds.unwrap_or(config.shutdown_grace_seconds);
        config.check()?;
        Ok(Self::duration(config.shutdown_grace_seconds))
    }

    /// Seconds as a duration; `check` has refused what cannot be one.
    pub fn duration(seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

/// Refuses an origin that no browser sends.
fn check_origin(origin: &str) -> Result<(), ConfigError> {
    let is_origin = origin.split_once("://").is_some_and(|(scheme, rest)| {
        let default_port = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => "/",
        };
        !scheme.is_empty() && !rest.is_empty() && !rest.contains(['/', '*']) && !rest.ends_with(default_port)
    });
    if is_origin || origin == "*" {
        return Ok(());
    }
    let problem = format!(
        "expected SCHEME://HOST[:PORT] as a browser sends it, without a path or the scheme's own port, or *, got {origin:?}"
    );
    Err(ConfigError::flag("--cors-origin", problem))
}

/// Refuses a name that no `Host` has: one with a port, a scheme or letters beyond ASCII.
fn check_allowed_host(host: &str) -> Result<(), ConfigError> {
    let name = host.strip_prefix("*.").or_else(|| host.strip_prefix('.')).unwrap_or(host);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if host == "*" || name.split('.').all(is_label) || host.parse::<std::net::IpAddr>().is_ok() {
        return Ok(());
    }
    let problem = format!("expected a host name without a port, .NAME for every name that ends so, or *, got {host:?}");
    Err(ConfigError::flag("--allowed-host", problem))
}

/// The flags, each one not given on the command line taken out of the file.
fn overlay<T: Args + Clone + Serialize + DeserializeOwned>(
    flags: &T,
    file: &mut Map<String, Value>,
) -> Result<T, ConfigError> {
    // Flags are a map of plain values, always.
    let Ok(Value::Object(mut merged)) = serde_json::to_value(flags) else { return Ok(flags.clone()) };
    for flag in T::augment_args(clap::Command::default()).get_arguments() {
        let key = flag.get_id().as_str();
        if let Some(from_file) = file.remove(key)
            && merged.get(key).is_none_or(Value::is_null)
        {
            merged.insert(key.to_owned(), from_file);
        }
    }
    serde_path_to_error::deserialize(Value::Object(merged))
        .map_err(|error| ConfigError::Key { key: error.path().to_string(), problem: error.inner().to_string() })
}

fn read_yaml(path: &PathBuf) -> Result<Map<String, Value>, ConfigError> {
    let wrong =
        |error: &dyn std::fmt::Display| ConfigError::flag(format!("--config {}", path.display()), error.to_string());
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

/// True unless only this machine reaches `host`.
pub fn is_exposed(host: &str) -> bool {
    !is_loopback(host)
}

/// A warning if the server is reachable from other machines without a key.
pub fn exposure_warning(config: &ServerConfig) -> Option<String> {
    (is_exposed(&config.host) && config.api_key.is_empty())
        .then(|| format!("listening on {} without --api-key: whoever reaches this port may use the model", config.host))
}

/// The configuration for reports, which may be passed on.
pub fn without_key(config: &ServerConfig) -> Value {
    let shown = ServerConfig { api_key: Vec::new(), ..config.clone() };
    serde_json::to_value(shown).unwrap_or_default()
}

#[cfg(test)]
mod tests;
