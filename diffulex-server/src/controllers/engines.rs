//! An engine as Parrot's controllers know it: its description, its state, and the engines that registered here.
//!
//! Names and units of the fields are Parrot's (Lin et al., 2024, <https://github.com/microsoft/ParrotServe>), -1 is unknown. Never
//! here: routes, connections.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::observe::telemetry::Gauges;

/// Registered engines at most. Chosen by us; the entry heard of longest ago makes room.
const MAX_ENGINES: usize = 64;

/// Silence after which an engine does not count as alive. Parrot's.
const ENGINE_EXPIRY: Duration = Duration::from_secs(600);

/// Where a controller calls this server.
#[derive(Clone)]
pub struct Reachable {
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The key that calls need. Parrot's engines have none; the field's name is that of OpenAI's in Parrot's configuration.
    pub api_key: Option<String>,
}

/// The description of this server that controllers get.
pub fn engine_config(
    name: &str,
    Reachable { host, port, api_key }: &Reachable,
    heartbeat_interval: Duration,
    max_in_flight: usize,
    gauges: &Gauges,
) -> Value {
    let card = gauges.card.as_deref().cloned().unwrap_or_default();
    let mut config = json!({
        "model": name,
        "host": host,
        "port": port,
        "heartbeat_interval": heartbeat_interval.as_secs().max(1),
        "engine_name": name,
        "engine_type": "diffulex",
        "random_seed": 0,
        "tokenizer": name,
        "fill_chunk_size": -1,
        "dtype": card.dtype,
        "device": card.device,
        "tasks_capacity": max_in_flight,
        "tokens_capacity": u64::from(card.kv_pages) * u64::from(card.page_size),
        "strategy": card.strategy,
        "block_size": card.block_size,
        "max_model_len": card.max_model_len,
        "mask_token_id": card.mask_token_id,
        "vocab_size": card.vocab_size,
    });
    if let Some(key) = api_key {
        config["api_key"] = key.as_str().into();
    }
    config
}

/// The description of an engine that registered here. Defaults are Parrot's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ParrotEngineConfig")]
pub struct EngineConfig {
    /// Its model.
    pub model: String,
    /// Where it is reached.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Seconds between its heartbeats.
    pub heartbeat_interval: f64,
    /// Its name.
    pub engine_name: String,
    /// `builtin`, `openai`, or another server's own.
    pub engine_type: String,
    /// Its seed.
    pub random_seed: i64,
    /// Its tokenizer.
    pub tokenizer: String,
    /// Tokens that it fills at once; -1 is all.
    pub fill_chunk_size: i64,
    /// The type of its weights.
    pub dtype: String,
    /// Where it computes.
    pub device: String,
    /// Tasks that it takes at the same time.
    pub tasks_capacity: u64,
    /// Tokens that it holds at the same time.
    pub tokens_capacity: u64,
    /// Further fields that it sends, such as `strategy` and `block_size` of a server like this one.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let unknown = || "unknown".to_owned();
        Self {
            model: unknown(),
            host: "localhost".to_owned(),
            port: 9001,
            heartbeat_interval: 3.0,
            engine_name: unknown(),
            engine_type: "builtin".to_owned(),
            random_seed: 0,
            tokenizer: unknown(),
            fill_chunk_size: -1,
            dtype: "float16".to_owned(),
            device: "cuda".to_owned(),
            tasks_capacity: 256,
            tokens_capacity: 99_999_999_999_999_999,
            others: Map::new(),
        }
    }
}

/// Stands for a number that is not known.
const UNKNOWN: f64 = -1.0;

/// The state of an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EngineRuntimeInfo {
    /// Tokens of the KV pages in use.
    pub num_cached_tokens: i64,
    /// KV pages of the pool.
    pub num_max_blocks: i64,
    /// Requests in the batch.
    pub num_running_jobs: i64,
    /// Those, and the waiting ones.
    pub num_total_jobs: i64,
    /// MiB of KV.
    pub cache_mem: f64,
    /// MiB of weights.
    pub model_mem: f64,
    /// MiB of the process.
    pub profiled_cpu_mem: f64,
    /// MiB of tensors on a GPU.
    pub profiled_gpu_tensor_mem: f64,
    /// MiB allocated on a GPU.
    pub profiled_gpu_allocate_mem: f64,
    /// Nanoseconds of a step, on average over all.
    pub recent_average_latency: f64,
}

impl Default for EngineRuntimeInfo {
    fn default() -> Self {
        Self {
            num_cached_tokens: -1,
            num_max_blocks: -1,
            num_running_jobs: -1,
            num_total_jobs: -1,
            cache_mem: UNKNOWN,
            model_mem: UNKNOWN,
            profiled_cpu_mem: UNKNOWN,
            profiled_gpu_tensor_mem: UNKNOWN,
            profiled_gpu_allocate_mem: UNKNOWN,
            recent_average_latency: UNKNOWN,
        }
    }
}

impl EngineRuntimeInfo {
    /// The state of this server's engine.
    pub fn of(gauges: &Gauges) -> Self {
        let engine = &gauges.engine;
        let page_size = gauges.card.as_deref().map_or(0, |card| card.page_size);
        let n_used = engine.kv_pages_total.saturating_sub(engine.kv_pages_free);
        Self {
            num_cached_tokens: i64::from(n_used) * i64::from(page_size),
            num_max_blocks: engine.kv_pages_total.into(),
            num_running_jobs: engine.running.into(),
            num_total_jobs: gauges.in_flight as i64,
            profiled_gpu_allocate_mem: allocated_mib(gauges).unwrap_or(UNKNOWN),
            recent_average_latency: if engine.steps == 0 {
                0.0
            } else {
                engine.forward_seconds / engine.steps as f64 * 1e9
            },
            ..Self::default()
        }
    }
}

/// MiB of the device's memory that are taken.
fn allocated_mib(gauges: &Gauges) -> Option<f64> {
    let free = gauges.engine.device?.memory_free_bytes;
    let total = gauges.card.as_deref()?.device_memory_bytes?;
    Some(total.saturating_sub(free) as f64 / f64::from(1 << 20))
}

/// An engine that registered here.
#[derive(Debug)]
struct Registered {
    config: EngineConfig,
    /// `None` before the first heartbeat.
    runtime_info: Option<EngineRuntimeInfo>,
    last_heard: Instant,
}

impl Registered {
    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_heard)
    }

    fn is_alive(&self, now: Instant) -> bool {
        self.silence(now) < ENGINE_EXPIRY
    }
}

/// An engine that registered here, in a list.
#[derive(Debug, PartialEq, Serialize)]
pub struct RegisteredEngine<'a> {
    /// Its id.
    pub engine_id: u64,
    /// It was heard of lately.
    pub pong: bool,
    /// Seconds since it was heard of.
    pub last_heard_s: f64,
    /// Its own description.
    pub engine_config: &'a EngineConfig,
    /// Its last word; `None` before the first heartbeat.
    pub runtime_info: Option<&'a EngineRuntimeInfo>,
}

/// The engines that registered here.
#[derive(Debug, Default)]
pub struct EngineRegistry {
    engines: BTreeMap<u64, Registered>,
    n_registered: u64,
}

impl EngineRegistry {
    /// Registers an engine. Returns its id, from 1 on; 0 is this server's own.
    pub fn register(&mut self, config: EngineConfig, now: Instant) -> u64 {
        if self.engines.len() >= MAX_ENGINES
            && let Some(quietest) = self.engines.iter().min_by_key(|(_, engine)| engine.last_heard).map(|(id, _)| *id)
        {
            self.engines.remove(&quietest);
        }
        self.n_registered += 1;
        self.engines.insert(self.n_registered, Registered { config, runtime_info: None, last_heard: now });
        self.n_registered
    }

    /// Notes a heartbeat. False for an engine that is unknown, or known by another name.
    pub fn heartbeat(&mut self, id: u64, name: &str, runtime_info: EngineRuntimeInfo, now: Instant) -> bool {
        let Some(engine) = self.engines.get_mut(&id).filter(|engine| engine.config.engine_name == name) else {
            return false;
        };
        (engine.runtime_info, engine.last_heard) = (Some(runtime_info), now);
        true
    }

    /// Whether an engine was heard of lately, and its last word; `None` for unknown ones.
    pub fn ping(&self, id: u64, now: Instant) -> Option<(bool, Option<&EngineRuntimeInfo>)> {
        let engine = self.engines.get(&id)?;
        Some((engine.is_alive(now), engine.runtime_info.as_ref()))
    }

    /// All of them, by id.
    pub fn list(&self, now: Instant) -> Vec<RegisteredEngine<'_>> {
        self.engines
            .iter()
            .map(|(id, engine)| RegisteredEngine {
                engine_id: *id,
                pong: engine.is_alive(now),
                last_heard_s: engine.silence(now).as_secs_f64(),
                engine_config: &engine.config,
                runtime_info: engine.runtime_info.as_ref(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_alive_until_it_has_been_silent_for_ten_minutes() {
        let mut registry = EngineRegistry::default();
        let now = Instant::now();
        let named = |name: &str| EngineConfig { engine_name: name.to_owned(), ..EngineConfig::default() };
        assert_eq!((registry.register(named("a"), now), registry.register(named("b"), now)), (1, 2));
        let later = now + ENGINE_EXPIRY;
        let info = EngineRuntimeInfo { num_running_jobs: 3, ..EngineRuntimeInfo::default() };
        assert!(registry.heartbeat(1, "a", info.clone(), later));
        assert!(!registry.heartbeat(1, "b", info.clone(), later) && !registry.heartbeat(3, "a", info.clone(), later));
        assert_eq!(registry.ping(1, later), Some((true, Some(&info))));
        assert_eq!(registry.ping(2, later), Some((false, None)));
        assert_eq!(registry.ping(3, later), None);
        let listed = registry.list(later);
        let names: Vec<(u64, &str, bool)> = listed
            .iter()
            .map(|engine| (engine.engine_id, engine.engine_config.engine_name.as_str(), engine.pong))
            .collect();
        assert_eq!(names, [(1, "a", true), (2, "b", false)]);
        assert_eq!(listed[1].last_heard_s, ENGINE_EXPIRY.as_secs_f64());
    }

    #[test]
    fn the_quietest_engine_makes_room() {
        let mut registry = EngineRegistry::default();
        let now = Instant::now();
        for _ in 0..=MAX_ENGINES {
            registry.register(EngineConfig::default(), now);
        }
        assert_eq!(registry.engines.len(), MAX_ENGINES);
        assert_eq!(registry.ping(1, now), None);
    }
}
