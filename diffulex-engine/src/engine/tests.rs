//! Requests whose forward fails.

use std::path::Path;

use diffulex_protocol::{SamplingParams, ServingCommand, ServingEvent, ServingGenerate, StreamMode};

use super::Engine;
use crate::AdapterId;
use crate::config::EngineOptions;
use crate::error::{BatchError, DeviceError, LoadError, StepError};
use crate::files::ModelFiles;
use crate::kernels::ModelBatch;
use crate::models::{ModelSpec, Outputs};
use crate::runner::Runner;
use crate::serving::ServingEngine;

/// A runner whose next forward fails, where there is an error for it.
struct Failing {
    runner: Box<dyn Runner>,
    next: Option<StepError>,
}

impl Runner for Failing {
    fn spec(&self) -> &ModelSpec {
        self.runner.spec()
    }

    fn forward(&mut self, text: &ModelBatch, canvases: &ModelBatch) -> Result<Outputs, StepError> {
        match self.next.take() {
            Some(error) => Err(error),
            None => self.runner.forward(text, canvases),
        }
    }

    fn load_adapter(&mut self, id: AdapterId, files: &ModelFiles, max_bytes: u64) -> Result<u64, LoadError> {
        self.runner.load_adapter(id, files, max_bytes)
    }

    fn unload_adapter(&mut self, id: AdapterId) {
        self.runner.unload_adapter(id);
    }
}

/// An engine of one request at a time whose first forward fails.
fn engine(error: impl Into<StepError>) -> Engine {
    let sdar = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/sdar");
    let files = ModelFiles::folder(sdar).unwrap();
    let options = EngineOptions { max_model_len: 64, max_num_reqs: 1, threads: Some(1), ..EngineOptions::default() };
    let engine = Engine::load(&files, &options, &mut |_| {}).unwrap();
    Engine { runner: Box::new(Failing { runner: engine.runner, next: Some(error.into()) }), ..engine }
}

fn request(rid: &str) -> ServingCommand {
    ServingCommand::Generate(ServingGenerate {
        sampling_params: SamplingParams { max_tokens: 4, ..SamplingParams::default() },
        stream_mode: StreamMode::BlockAppend,
        ..ServingGenerate::new(rid, vec![3, 4, 5])
    })
}

/// The id and the message of each error, and the message of the engine's end; nothing else may be told.
fn errors(events: &[ServingEvent]) -> Vec<(&str, &str)> {
    fn one(event: &ServingEvent) -> (&str, &str) {
        match event {
            ServingEvent::Error(error) => (&error.rid, &error.message),
            ServingEvent::Fatal { message, .. } => ("", message),
            other => panic!("{other:?}"),
        }
    }
    events.iter().map(one).collect()
}

#[test]
fn a_batch_that_cannot_be_computed_fails_its_requests_alone() {
    let mut engine = engine(BatchError::AdapterNotLoaded(9));
    let events = engine.tick(vec![request("in the batch"), request("waiting")]);
    assert_eq!(errors(&events), [("in the batch", "the forward failed: adapter 9 is not loaded")]);
    let mut events = Vec::new();
    while engine.has_work() {
        events.extend(engine.tick(Vec::new()));
    }
    assert!(matches!(&events[..], [ServingEvent::Reply(reply)] if reply.rid == "waiting"), "{events:?}");
    assert!(engine.pages_are_consistent());
}

#[test]
fn a_device_that_fails_ends_every_request_and_the_engine() {
    let device = DeviceError { device: "cuda:0".to_owned(), operation: "attend", message: "launch failed".to_owned() };
    let mut engine = engine(device);
    let events = engine.tick(vec![request("in the batch"), request("waiting")]);
    let message = "device cuda:0 failed in attend: launch failed";
    assert_eq!(errors(&events), [("in the batch", message), ("waiting", message), ("", message)]);
    assert!(!engine.has_work());
}
