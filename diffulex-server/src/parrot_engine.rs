//! An engine as Parrot's controllers know it: its description, its state, and the engines that registered here.
//!
//! Names and units of the fields are Parrot's (Lin et al., 2024, <https://github.com/microsoft/ParrotServe>), -1 is unknown. Never
//! here: routes, connections.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::telemetry::Gauges;

/// Registered engines at most. Chosen by us; the entry heard of longest ago makes room.
const MAX_ENGINES: usize = 64;

/// Silence after which an engine does not count as alive. Parrot's.
const ENGINE_EXPIRY: Duration = Duration::from_secs(600);

/// The description of this server that controllers get.
pub fn engine_config(
    name: &str,
    host: &str,
    port: u16,
    heartbeat_interval: Duration,
    max_in_flight: usize,
    gauges: &Gauges,
) -> Value {
    let card = gauges.card.as_deref().cloned().unwrap_or_default();
    json!({
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
    })
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
            recent_average_latency: if engine.steps == 0 {
                0.0
            } else {
                engine.forward_seconds / engine.steps as f64 * 1e9
            },
            ..Self::default()
        }
    }
}

/// An engine that registered here.
#[derive(Debug)]
struct Registered {
    name: String,
    /// `None` before the first heartbeat.
    runtime_info: Option<EngineRuntimeInfo>,
    last_heard: Instant,
}

/// The engines that registered here.
#[derive(Debug, Default)]
pub struct EngineRegistry {
    engines: BTreeMap<u64, Registered>,
    n_registered: u64,
}

impl EngineRegistry {
    /// Registers an engine. Returns its id, from 1 on; 0 is this server's own.
    pub fn register(&mut self, name: String, now: Instant) -> u64 {
        if self.engines.len() >= MAX_ENGINES
            && let Some(quietest) = self.engines.iter().min_by_key(|(_, engine)| engine.last_heard).map(|(id, _)| *id)
        {
            self.engines.remove(&quietest);
        }
        self.n_registered += 1;
        self.engines.insert(self.n_registered, Registered { name, runtime_info: None, last_heard: now });
        self.n_registered
    }

    /// Notes a heartbeat. False for an engine that is unknown, or known by another name.
    pub fn heartbeat(&mut self, id: u64, name: &str, runtime_info: EngineRuntimeInfo, now: Instant) -> bool {
        let Some(engine) = self.engines.get_mut(&id).filter(|engine| engine.name == name) else { return false };
        (engine.runtime_info, engine.last_heard) = (Some(runtime_info), now);
        true
    }

    /// Whether an engine was heard of lately, and its last word; `None` for unknown ones.
    pub fn ping(&self, id: u64, now: Instant) -> Option<(bool, Option<&EngineRuntimeInfo>)> {
        let engine = self.engines.get(&id)?;
        Some((now.saturating_duration_since(engine.last_heard) < ENGINE_EXPIRY, engine.runtime_info.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_alive_until_it_has_been_silent_for_ten_minutes() {
        let mut registry = EngineRegistry::default();
        let now = Instant::now();
        assert_eq!((registry.register("a".to_owned(), now), registry.register("b".to_owned(), now)), (1, 2));
        let later = now + ENGINE_EXPIRY;
        let info = EngineRuntimeInfo { num_running_jobs: 3, ..EngineRuntimeInfo::default() };
        assert!(registry.heartbeat(1, "a", info.clone(), later));
        assert!(!registry.heartbeat(1, "b", info.clone(), later) && !registry.heartbeat(3, "a", info.clone(), later));
        assert_eq!(registry.ping(1, later), Some((true, Some(&info))));
        assert_eq!(registry.ping(2, later), Some((false, None)));
        assert_eq!(registry.ping(3, later), None);
    }

    #[test]
    fn the_quietest_engine_makes_room() {
        let mut registry = EngineRegistry::default();
        let now = Instant::now();
        for _ in 0..=MAX_ENGINES {
            registry.register(String::new(), now);
        }
        assert_eq!(registry.engines.len(), MAX_ENGINES);
        assert_eq!(registry.ping(1, now), None);
    }
}
