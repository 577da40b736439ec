//! An engine on the golden checkpoint, and requests to it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use diffulex_engine::{DeviceChoice, Engine, EngineOptions, ModelFiles, ServingEngine};
use diffulex_protocol::{
    SamplingParams, ServingCommand, ServingError, ServingEvent, ServingGenerate, ServingInput, ServingReply,
    SnapshotSpan, StreamMode,
};

pub(crate) fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name)
}

pub(crate) fn json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(golden(path)).unwrap()).unwrap()
}

/// A list of token ids.
pub(crate) fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The options most tests start from.
pub(crate) fn options() -> EngineOptions {
    EngineOptions { device: DeviceChoice::Cpu, threads: Some(2), page_size: 8, ..EngineOptions::default() }
}

pub(crate) fn engine(options: &EngineOptions) -> Engine {
    Engine::load(&ModelFiles::folder(golden("sdar")).unwrap(), options, &mut |_| {}).unwrap()
}

pub(crate) fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens, ignore_eos: true, ..SamplingParams::default() }
}

pub(crate) fn request(rid: &str, prompt: &[u32], params: SamplingParams) -> ServingGenerate {
    ServingGenerate {
        rid: rid.to_owned(),
        input: ServingInput::ids(prompt.to_vec()),
        sampling_params: params,
        stream: false,
        stream_mode: StreamMode::BlockAppend,
        snapshot: SnapshotSpan::Window,
        user: None,
        created_time: 0.0,
    }
}

/// A prompt of `len` tokens that no other seed begins with.
pub(crate) fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|index| (seed * 131 + index * 37 + index * index * 11) % 499).collect()
}

/// Everything the engine told, by request, in order.
#[derive(Default)]
pub(crate) struct Told(pub(crate) BTreeMap<String, Vec<ServingEvent>>);

impl Told {
    pub(crate) fn take(&mut self, events: Vec<ServingEvent>) {
        for event in events {
            let rid = event.request_id().expect("an event about a request").to_owned();
            let before = self.0.entry(rid).or_default();
            assert!(!before.iter().any(ServingEvent::is_terminal), "an event after the terminal one: {event:?}");
            before.push(event);
        }
    }

    pub(crate) fn reply(&self, rid: &str) -> &ServingReply {
        match self.0[rid].last() {
            Some(ServingEvent::Reply(reply)) => reply,
            other => panic!("{rid} ended with {other:?}"),
        }
    }

    pub(crate) fn error(&self, rid: &str) -> &ServingError {
        match self.0[rid].last() {
            Some(ServingEvent::Error(error)) => error,
            other => panic!("{rid} ended with {other:?}"),
        }
    }
}

/// Ticks until nothing is left to do, checking what must hold after every tick.
pub(crate) fn run(engine: &mut Engine, requests: Vec<ServingGenerate>) -> Told {
    run_with(engine, requests, |_, _| {})
}

/// As [`run`], with something done to the engine before each tick.
pub(crate) fn run_with(
    engine: &mut Engine,
    requests: Vec<ServingGenerate>,
    mut before_tick: impl FnMut(&mut Engine, usize),
) -> Told {
    let rids: Vec<String> = requests.iter().map(|request| request.rid.clone()).collect();
    let mut told = Told::default();
    told.take(engine.tick(requests.into_iter().map(ServingCommand::Generate).collect()));
    for tick in 0.. {
        assert!(tick < 20_000, "the engine does not come to an end");
        assert!(engine.pages_are_consistent());
        if !engine.has_work() {
            break;
        }
        before_tick(engine, tick);
        told.take(engine.tick(Vec::new()));
    }
    for rid in rids {
        assert!(told.0[&rid].last().is_some_and(ServingEvent::is_terminal), "{rid} got no terminal event");
    }
    let stats = engine.stats();
    assert_eq!(stats.kv_pages_free, stats.kv_pages_total, "a page is still held");
    told
}
