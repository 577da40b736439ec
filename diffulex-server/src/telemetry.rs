//! Metrics of the front end, as Prometheus text.
//!
//! In: observations from the front end and the routes, the engine's own counters from its heartbeats. Out: the body of
//! `/metrics`. Every metric is written once, in [`Telemetry::render`]. Never here: decisions.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use diffulex_protocol::{EngineStats, ErrorCode, FinishReason, Histogram, ModelCard, StreamMode};

/// Bucket bounds in seconds for what a person waits for. Chosen by us: from one step of a tiny model to a long answer.
const LATENCY_BOUNDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// Every [`ErrorCode`] with its label.
const ERROR_LABELS: [(ErrorCode, &str); 8] = [
    (ErrorCode::InvalidRequest, "invalid_request"),
    (ErrorCode::TooLarge, "too_large"),
    (ErrorCode::ContextLengthExceeded, "context_length_exceeded"),
    (ErrorCode::EngineFailed, "engine_failed"),
    (ErrorCode::EngineLost, "engine_lost"),
    (ErrorCode::ShuttingDown, "shutting_down"),
    (ErrorCode::Timeout, "timeout"),
    (ErrorCode::Poisoned, "poisoned"),
];

/// The name of an error code on the wire and in error bodies.
pub fn error_label(code: ErrorCode) -> &'static str {
    ERROR_LABELS.iter().find(|(known, _)| *known == code).map_or("engine_failed", |(_, label)| label)
}

/// The name of a stream mode on the wire.
pub fn mode_label(mode: StreamMode) -> &'static str {
    match mode {
        StreamMode::BlockAppend => "block_append",
        StreamMode::Denoise => "denoise",
    }
}

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Durations in buckets from 1 ms to 60 s.
#[derive(Debug, Default)]
pub struct Latency {
    counts: [AtomicU64; LATENCY_BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

impl Latency {
    /// Counts one observation.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = LATENCY_BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn snapshot(&self) -> Histogram {
        Histogram {
            bounds: LATENCY_BOUNDS.to_vec(),
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

/// One counter per stream mode.
#[derive(Debug, Default)]
pub struct ByMode {
    block_append: Counter,
    denoise: Counter,
}

impl ByMode {
    /// The counter of `mode`.
    pub fn of(&self, mode: StreamMode) -> &Counter {
        match mode {
            StreamMode::BlockAppend => &self.block_append,
            StreamMode::Denoise => &self.denoise,
        }
    }
}

/// Everything the front end counts.
#[derive(Debug, Default)]
pub struct Telemetry {
    successes: [Counter; FinishReason::ALL.len()],
    failures: [Counter; ERROR_LABELS.len()],
    /// Requests refused because the queue was full.
    pub rejected: Counter,
    /// Streams whose client left before the end.
    pub disconnected: Counter,
    /// From acceptance to the first event of the answer.
    pub time_to_first_frame: Latency,
    /// From acceptance to the first committed text.
    pub time_to_first_commit: Latency,
    /// Between commits of one answer.
    pub inter_commit: Latency,
    /// From acceptance to the reply.
    pub end_to_end: Latency,
    /// From the worker's receipt to the first forward.
    pub queue_time: Latency,
    /// SSE frames written.
    pub frames_sent: ByMode,
    /// Bytes of SSE frames written.
    pub bytes_sent: ByMode,
    /// Events merged into an unread one.
    pub frames_coalesced: Counter,
    /// Times a worker was started again.
    pub worker_restarts: Counter,
    /// Messages from a worker that are none of ours.
    pub malformed_frames: Counter,
    /// Events of an earlier start of the worker.
    pub stale_events: Counter,
    /// Events of requests without a reader (aborted, timed out).
    pub orphan_events: Counter,
}

/// Gauges, read when the page is written.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Requests accepted and not finished.
    pub in_flight: usize,
    /// The worker takes requests.
    pub worker_up: bool,
    /// The engine's last heartbeat.
    pub engine: EngineStats,
    /// The model and its device; `None` while the model loads for the first time.
    pub card: Option<Arc<ModelCard>>,
}

impl Telemetry {
    /// Counts a finished request.
    pub fn count_success(&self, reason: FinishReason) {
        if let Some(index) = FinishReason::ALL.iter().position(|known| *known == reason) {
            self.successes[index].add(1);
        }
    }

    /// Counts a failed request.
    pub fn count_failure(&self, code: ErrorCode) {
        if let Some(index) = ERROR_LABELS.iter().position(|(known, _)| *known == code) {
            self.failures[index].add(1);
        }
    }

    /// The body of `/metrics`, in Prometheus' text format 0.0.4.
    pub fn render(&self, gauges: &Gauges) -> String {
        let engine = &gauges.engine;
        let mut page = Page::default();
        page.gauge("num_requests_running", "Requests in the batch.", engine.running.into());
        page.gauge("num_requests_waiting", "Requests the engine holds until there is room.", engine.waiting.into());
        page.gauge("num_requests_in_flight", "Requests accepted and not finished.", gauges.in_flight as f64);
        page.gauge("worker_up", "1 while the worker takes requests.", f64::from(u8::from(gauges.worker_up)));
        let used = engine.kv_pages_total.saturating_sub(engine.kv_pages_free);
        let usage = f64::from(used) / f64::from(engine.kv_pages_total.max(1));
        page.gauge("kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.", usage);
        page.gauge("kv_pages_free", "KV pages no request holds.", engine.kv_pages_free.into());
        page.gauge("kv_pages_total", "KV pages of the pool.", engine.kv_pages_total.into());
        if let Some(card) = &gauges.card {
            let device = format!("{{device=\"{}\"}}", card.device.replace(['"', '\\', '\n'], " "));
            page.head("device_info", "The device that runs the model.", "gauge");
            page.sample("device_info", &device, 1.0);
            if let Some(n_bytes) = card.device_memory_bytes {
                page.gauge("device_memory_bytes", "Memory of the device.", n_bytes as f64);
            }
        }
        page.gauge("last_step_age_seconds", "Age of the last finished step.", engine.last_step_age_ms as f64 / 1e3);

        page.counter("prompt_tokens_total", "Prompt tokens admitted.", engine.prompt_tokens);
        page.counter("generation_tokens_total", "Tokens committed.", engine.generation_tokens);
        page.counter(
            "prefix_cache_queries_total",
            "Prompt tokens looked up in the prefix cache.",
            engine.prefix_queries,
        );
        page.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", engine.prefix_hits);
        page.counter("steps_total", "Ticks that ran a forward.", engine.steps);
        page.counter("rows_total", "Token rows forwarded.", engine.rows);
        page.counter("preemptions_total", "Requests that lost their pages to an older one.", engine.preemptions);
        page.counter("forced_fills_total", "Times the watchdog forced a token.", engine.forced_fills);
        page.head("forward_seconds_total", "Seconds spent in forwards.", "counter");
        page.sample("forward_seconds_total", "", engine.forward_seconds);
        let by_purpose = [
            ("denoise", engine.nfe.denoise),
            ("prefill", engine.nfe.prefill),
            ("commit", engine.nfe.commit),
            ("rebuild", engine.nfe.rebuild),
        ];
        page.labelled("nfe_total", "Forward passes summed over requests.", "purpose", by_purpose);
        page.counter("denoise_wasted_nfe_total", "Denoise forwards of aborted requests.", engine.wasted_nfe);

        let successes =
            FinishReason::ALL.iter().zip(&self.successes).map(|(reason, count)| (reason.as_str(), count.get()));
        page.labelled("request_success_total", "Requests answered.", "finished_reason", successes);
        let failures = ERROR_LABELS.iter().zip(&self.failures).map(|((_, label), count)| (*label, count.get()));
        page.labelled("request_failure_total", "Requests that ended in an error.", "error", failures);
        page.counter("request_rejected_total", "Requests refused because the queue was full.", self.rejected.get());
        page.counter("client_disconnects_total", "Clients that left before the end.", self.disconnected.get());
        let modes = [StreamMode::BlockAppend, StreamMode::Denoise];
        let frames = modes.map(|mode| (mode_label(mode), self.frames_sent.of(mode).get()));
        page.labelled("stream_frames_sent_total", "SSE frames written.", "mode", frames);
        let bytes = modes.map(|mode| (mode_label(mode), self.bytes_sent.of(mode).get()));
        page.labelled("stream_bytes_total", "Bytes of SSE frames written.", "mode", bytes);
        page.counter("stream_frames_coalesced_total", "Events merged into an unread one.", self.frames_coalesced.get());
        page.counter("worker_restarts_total", "Times a worker was started again.", self.worker_restarts.get());
        page.counter("malformed_frames_total", "Undecodable worker messages.", self.malformed_frames.get());
        page.counter("stale_events_total", "Events of an earlier start of the worker.", self.stale_events.get());
        page.counter("orphan_events_total", "Events of requests without a reader.", self.orphan_events.get());

        let latencies = [
            ("time_to_first_frame_seconds", "From acceptance to the first event.", &self.time_to_first_frame),
            (
                "time_to_first_commit_seconds",
                "From acceptance to the first committed text.",
                &self.time_to_first_commit,
            ),
            ("inter_commit_latency_seconds", "Between commits of one answer.", &self.inter_commit),
            ("e2e_request_latency_seconds", "From acceptance to the reply.", &self.end_to_end),
            ("request_queue_time_seconds", "From the worker's receipt to the first forward.", &self.queue_time),
        ];
        for (name, help, latency) in latencies {
            page.histogram(name, help, &latency.snapshot());
        }
        page.histogram("steps_per_block", "Denoise steps a block took.", &engine.steps_per_block);
        page.histogram("tokens_per_forward", "Tokens per forward of an answer.", &engine.tokens_per_forward);
        page.histogram("commit_confidence", "Probability of tokens when committed.", &engine.commit_confidence);
        page.text
    }
}

/// Prometheus text while it is written; every name gets the prefix `diffulex_`.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "# HELP diffulex_{name} {help}\n# TYPE diffulex_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.text, "diffulex_{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.sample(name, "", value as f64);
    }

    fn labelled<'a>(&mut self, name: &str, help: &str, label: &str, values: impl IntoIterator<Item = (&'a str, u64)>) {
        self.head(name, help, "counter");
        for (key, value) in values {
            self.sample(name, &format!("{{{label}=\"{key}\"}}"), value as f64);
        }
    }

    /// An empty histogram (an engine that has not spoken yet) is left out: it has no bounds to name.
    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        if histogram.counts.is_empty() {
            return;
        }
        self.head(name, help, "histogram");
        let mut total = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            total += count;
            self.sample(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), total as f64);
        }
        let count: u64 = histogram.counts.iter().sum();
        self.sample(&format!("{name}_bucket"), "{le=\"+Inf\"}", count as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum);
        self.sample(&format!("{name}_count"), "", count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_comment_or_a_sample() {
        let telemetry = Telemetry::default();
        telemetry.count_success(FinishReason::StopString);
        telemetry.end_to_end.observe(Duration::from_millis(3));
        let text = telemetry.render(&Gauges::default());
        for line in text.lines() {
            let is_sample =
                line.starts_with("diffulex_") && line.rsplit_once(' ').is_some_and(|(_, v)| v.parse::<f64>().is_ok());
            assert!(line.starts_with("# ") || is_sample, "{line}");
        }
        assert!(text.contains("diffulex_request_success_total{finished_reason=\"stop_string\"} 1"));
        assert!(text.contains("diffulex_e2e_request_latency_seconds_bucket{le=\"0.005\"} 1"));
        assert!(text.contains("diffulex_e2e_request_latency_seconds_bucket{le=\"0.0025\"} 0"));
    }
}
