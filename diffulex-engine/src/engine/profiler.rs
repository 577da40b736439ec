//! The engine's side of a profile: the stages of its steps, and what happened to each request in them.
//!
//! Off, each call is one branch. Never here: decisions; files, which are [`Recording`]'s.

use std::ops::Range;
use std::path::PathBuf;

use diffulex_protocol::{ErrorCode, FinishReason, NfeCounts, ProfileStart, ServingEvent};
use serde_json::{Map, Value, json};

use crate::report::profile::{Part, Recorded, Recording, STEP_ID, Stage};
use crate::sequence::StepChange;

/// Records the engine's profile while there is one.
#[derive(Debug, Default)]
pub(super) struct Profiler {
    /// Folder below which profiles may be written.
    root: Option<PathBuf>,
    recording: Option<Recording>,
    step: StepTimes,
}

/// The stages of the running step.
#[derive(Debug, Default)]
struct StepTimes {
    idx: u64,
    started_ns: u64,
    stage_started_ns: u64,
    /// Name and nanoseconds of each stage so far.
    stages: Map<String, Value>,
}

impl Profiler {
    pub(super) fn new(root: Option<PathBuf>) -> Self {
        Self { root, ..Self::default() }
    }

    /// Begins a profile; the answer says whether it did.
    pub(super) fn start(&mut self, order: &ProfileStart) -> ServingEvent {
        let started = match &self.recording {
            Some(_) => Err("a profile is being recorded already".to_owned()),
            None => Recording::start(order, self.root.as_deref(), Part::Engine).map_err(|error| error.to_string()),
        };
        match started {
            Ok(recording) => {
                self.recording = Some(recording);
                ServingEvent::ProfileReply { ok: true, message: None, paths: Vec::new() }
            }
            Err(message) => ServingEvent::ProfileReply { ok: false, message: Some(message), paths: Vec::new() },
        }
    }

    /// Ends the profile, and names its files.
    pub(super) fn stop(&mut self) -> ServingEvent {
        let Some(recording) = self.recording.take() else {
            let message = Some("no profile is being recorded".to_owned());
            return ServingEvent::ProfileReply { ok: false, message, paths: Vec::new() };
        };
        let Recorded { paths, problem } = recording.finish();
        ServingEvent::ProfileReply { ok: true, message: problem, paths }
    }

    /// A step begins.
    pub(super) fn begin_step(&mut self) {
        let Some(recording) = &self.recording else { return };
        let now = recording.clock().now();
        let idx = self.step.idx + 1;
        self.step = StepTimes { idx, started_ns: now, stage_started_ns: now, stages: Map::new() };
    }

    /// The stage `name` of the step ends, and the next begins.
    pub(super) fn end_stage(&mut self, name: &'static str) {
        let Some(recording) = &mut self.recording else { return };
        let now = recording.clock().now();
        let StepTimes { idx, stage_started_ns, stages, .. } = &mut self.step;
        recording.span(name, *stage_started_ns, now, &json!({"step": idx}));
        stages.insert(format!("{name}_ns"), now.saturating_sub(*stage_started_ns).into());
        *stage_started_ns = now;
    }

    /// The step of `n_requests` requests with `n_rows` rows ends.
    pub(super) fn end_step(&mut self, n_requests: usize, n_rows: usize) {
        let Some(recording) = &mut self.recording else { return };
        let now = recording.clock().now();
        let StepTimes { idx, started_ns, stages, .. } = &mut self.step;
        let mut details = std::mem::take(stages);
        details.insert("step".to_owned(), (*idx).into());
        details.insert("started_ns".to_owned(), (*started_ns).into());
        details.insert("requests".to_owned(), n_requests.into());
        details.insert("rows".to_owned(), n_rows.into());
        let details = Value::Object(details);
        recording.span("step", *started_ns, now, &details);
        recording.event(Stage::Engine, "engine_step", STEP_ID, now, details);
        // What has happened so far can be read while the profile goes on.
        recording.flush();
    }

    /// Records `name` of a request.
    fn event(&mut self, stage: Stage, name: &'static str, rid: &str, details: impl FnOnce() -> Value) {
        let Some(recording) = &mut self.recording else { return };
        let now = recording.clock().now();
        recording.event(stage, name, rid, now, details());
    }

    /// A request came from the front end.
    pub(super) fn request_received(&mut self, rid: &str) {
        self.event(Stage::Engine, "stage_input_received", rid, || json!({"from_stage": "frontend"}));
    }

    /// A request was admitted and waits.
    pub(super) fn request_queued(&mut self, rid: &str) {
        self.event(Stage::Engine, "scheduler_queue_enter", rid, || json!({}));
    }

    /// A request is forwarded for the first time.
    pub(super) fn request_started(&mut self, rid: &str) {
        self.event(Stage::Engine, "scheduler_prefill_start", rid, || json!({}));
    }

    /// A request took part in the step, with a forward over `blocks`; `nfe` includes it.
    pub(super) fn request_stepped(&mut self, rid: &str, change: &StepChange, blocks: &Range<usize>, nfe: NfeCounts) {
        let step = self.step.idx;
        self.event(Stage::Engine, "denoise_step", rid, || {
            json!({"kind": change.kind, "nfe": nfe.charged(), "blocks": [blocks.start, blocks.end],
                   "accepted": change.filled.len(), "blocks_done": change.block_steps, "step": step})
        });
    }

    /// A request ends with a reply, after `nfe` forwards.
    pub(super) fn request_completed(&mut self, rid: &str, reason: FinishReason, nfe: NfeCounts) {
        let details = || json!({"next": "detokenizer", "finish_reason": reason, "nfe": nfe});
        self.event(Stage::Engine, "stage_complete", rid, details);
    }

    /// A request ends with an error.
    pub(super) fn request_failed(&mut self, rid: &str, code: ErrorCode) {
        self.event(Stage::Engine, "stage_failed", rid, || json!({"error": code}));
    }

    /// The front end aborts a request.
    pub(super) fn abort_received(&mut self, rid: &str) {
        self.event(Stage::Engine, "abort_received", rid, || json!({}));
    }

    /// The events about a request go to the front end.
    pub(super) fn sent(&mut self, events: &[ServingEvent]) {
        if self.recording.is_none() {
            return;
        }
        for event in events {
            let Some(rid) = event.request_id() else { continue };
            if let Some(chunk_id) = event.chunk_id() {
                let details = || json!({"to_stage": "frontend", "chunk_id": chunk_id, "modality": "text"});
                self.event(Stage::Detokenizer, "stage_stream_chunk_sent", rid, details);
            } else if let ServingEvent::Reply(_) = event {
                self.event(Stage::Detokenizer, "stage_complete", rid, || json!({"terminal": true}));
                self.event(Stage::Detokenizer, "stage_hop_sent", rid, || json!({"to_stage": "frontend"}));
            }
        }
    }
}
