//! `profile-report`: where the time of a profile's requests went.
//!
//! In: the folder of a run, with its `events_*.jsonl`. Out: a table or JSON: per request, per stage, per hop, per part of a denoise
//! step. Never here: recording.

mod numbers;
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use diffulex_engine::profile::{EventLine, INTERVALS, STEP_ID, Stage};
use serde::Serialize;
use serde_json::Value;

use numbers::{Summary, milliseconds};

/// Everything `profile-report` takes.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Folder of a run, or its events folder.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Form of the report; json also has the timeline of each request.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ReportFormat,
    /// File to write instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// A report that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder, or a file in it, cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It holds no profile.
    #[error("{} has no events of requests (events_*.jsonl)", .0.display())]
    Empty(PathBuf),
    /// The report cannot be written.
    #[error("cannot write the report: {0}")]
    Write(#[from] io::Error),
}

/// Where the time of a profile's requests went.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Requests whose end is in the profile.
    pub request_count: usize,
    /// Lines that are no events.
    pub skipped_lines: usize,
    /// Each of those requests.
    pub requests: Vec<RequestTimes>,
    /// By part of the time of requests, the largest first.
    pub stage_breakdown: Vec<StageRow>,
    /// By way between stages.
    pub hop_breakdown: Vec<HopRow>,
    /// By part of a denoise step.
    pub denoise_breakdown: DenoiseBreakdown,
    /// Events of each request, in order.
    pub timelines: BTreeMap<String, Vec<TimelineEvent>>,
}

/// A request and its time.
#[derive(Debug, Serialize)]
pub struct RequestTimes {
    /// The request.
    pub request_id: String,
    /// From admission to the end for its client.
    pub wall_ms: f64,
    /// Share of it that named parts account for, 0 to 1.
    pub accounted: f64,
    /// Milliseconds by part. `denoise` is divided into `own_steps`, `other_steps` that the request had no rows in, and `turns`: from
    /// a step to the next, when the worker sends events and receives commands. Its rest is not accounted for.
    pub parts_ms: BTreeMap<&'static str, f64>,
    /// Forwards that it took part in.
    pub forwards: usize,
    /// Tokens that they decided.
    pub accepted: u64,
}

/// A part of the time of requests.
#[derive(Debug, Serialize)]
pub struct StageRow {
    /// The stage in which it begins.
    pub stage: Stage,
    /// The part.
    pub name: &'static str,
    /// Its first and last event.
    pub interval: String,
    /// Its durations.
    #[serde(flatten)]
    pub summary: Summary,
}

/// A way between two stages.
#[derive(Debug, Serialize)]
pub struct HopRow {
    /// From.
    pub src: String,
    /// To.
    pub dst: String,
    /// `payload` or `stream_chunk`.
    pub kind: &'static str,
    /// Its durations.
    #[serde(flatten)]
    pub summary: Summary,
}

/// Denoise steps.
#[derive(Debug, Default, Serialize)]
pub struct DenoiseBreakdown {
    /// Steps of the batch, with one row for each of their parts.
    pub parts: Vec<PartRow>,
    /// Requests in a step, on average.
    pub requests_per_step: f64,
    /// Token rows of a step, on average.
    pub rows_per_step: f64,
    /// Tokens decided in each request's forward, on average.
    pub tokens_per_forward: f64,
    /// Denoise steps of a block, on average.
    pub steps_per_block: f64,
}

/// A part of the steps.
#[derive(Debug, Serialize)]
pub struct PartRow {
    /// `step`, or a part of it.
    pub part: String,
    /// Its durations.
    #[serde(flatten)]
    pub summary: Summary,
}

/// An event on a request's timeline.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineEvent {
    /// Where.
    pub stage: Stage,
    /// Its name.
    pub event_name: String,
    /// Since the request's first event.
    pub t_rel_ms: f64,
    /// Details.
    pub metadata: Value,
}

type Event = EventLine<String>;

/// Writes the report of a folder.
pub fn run(args: &ReportArgs) -> Result<(), ReportError> {
    let report = Report::of_folder(&args.folder)?;
    let text = match args.format {
        ReportFormat::Table => table::text(&report),
        ReportFormat::Json => serde_json::to_string_pretty(&report).map_err(io::Error::from)? + "\n",
    };
    match &args.out {
        Some(path) => fs::write(path, text)?,
        None => io::stdout().lock().write_all(text.as_bytes())?,
    }
    Ok(())
}

impl Report {
    /// The report of a run's folder.
    pub fn of_folder(folder: &Path) -> Result<Self, ReportError> {
        let mut files = Vec::new();
        find_files(folder, &mut files)?;
        let (mut events, mut n_skipped) = (Vec::new(), 0);
        for path in files {
            let bytes = fs::read(&path).map_err(|error| ReportError::Read { path, error })?;
            for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                match serde_json::from_slice::<Event>(line) {
                    Ok(event) => events.push(event),
                    Err(_) => n_skipped += 1,
                }
            }
        }
        if events.is_empty() {
            return Err(ReportError::Empty(folder.to_owned()));
        }
        Ok(Self::of_events(events, n_skipped))
    }

    fn of_events(mut events: Vec<Event>, skipped_lines: usize) -> Self {
        // Stable: events of one file with the same time stay in order.
        events.sort_by_key(|event| event.timestamp_ns);
        let steps: BTreeMap<(u32, u64), [u64; 2]> = events.iter().filter_map(step_span).collect();
        let mut by_request: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
        for event in events.iter().filter(|event| event.request_id != STEP_ID) {
            by_request.entry(&event.request_id).or_default().push(event);
        }
        let requests: Vec<RequestTimes> =
            by_request.iter().filter_map(|(rid, events)| RequestTimes::of(rid, events, &steps)).collect();
        let timelines = by_request.iter().map(|(rid, events)| ((*rid).to_owned(), timeline(events))).collect();
        Self {
            request_count: requests.len(),
            skipped_lines,
            stage_breakdown: stage_rows(&by_request),
            hop_breakdown: hop_rows(&by_request),
            denoise_breakdown: DenoiseBreakdown::of(&events),
            requests,
            timelines,
        }
    }
}

fn find_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), ReportError> {
    let wrong = |error| ReportError::Read { path: folder.to_owned(), error };
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().map_err(wrong)?;
        if kind.is_dir() {
            find_files(&entry.path(), files)?;
        } else if name.starts_with("events_") && name.ends_with(".jsonl") {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Process and index of a step, and when it was.
fn step_span(event: &Event) -> Option<((u32, u64), [u64; 2])> {
    let is_step = event.request_id == STEP_ID && event.event_name == "engine_step";
    let number = |name: &str| event.metadata.get(name)?.as_u64();
    is_step.then(|| Some(((event.pid, number("step")?), [number("started_ns")?, event.timestamp_ns])))?
}

/// When `name` happened in `stage` for the last time: what a lost engine did with the request is done again.
fn time_of(events: &[&Event], (stage, name): (Stage, &str)) -> Option<u64> {
    let is_it = |event: &&&Event| event.stage == stage && event.event_name == name;
    events.iter().rev().find(is_it).map(|event| event.timestamp_ns)
}

impl RequestTimes {
    /// `None` where the beginning or the end is not in the profile.
    fn of(rid: &str, events: &[&Event], steps: &BTreeMap<(u32, u64), [u64; 2]>) -> Option<Self> {
        let [first, .., last] = &INTERVALS;
        let (from, to) = (time_of(events, first.open)?, time_of(events, last.close)?);
        let mut parts_ns: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut accounted_ns = 0;
        for interval in &INTERVALS {
            let (Some(open), Some(close)) = (time_of(events, interval.open), time_of(events, interval.close)) else {
                continue;
            };
            let length = close.saturating_sub(open);
            parts_ns.insert(interval.name, length);
            accounted_ns += length;
            if interval.name == "denoise" {
                let parts = step_times(events, [open, close], steps);
                accounted_ns -= length.saturating_sub(parts.iter().map(|(_, ns)| ns).sum());
                parts_ns.extend(parts);
            }
        }
        let wall = to.saturating_sub(from);
        let forwards = events.iter().filter(|event| event.event_name == "denoise_step");
        let accepted = forwards.clone().filter_map(|event| event.metadata.get("accepted")?.as_u64());
        Some(Self {
            request_id: rid.to_owned(),
            wall_ms: milliseconds(wall),
            accounted: if wall == 0 { 1.0 } else { accounted_ns as f64 / wall as f64 },
            parts_ms: parts_ns.into_iter().map(|(name, ns)| (name, milliseconds(ns))).collect(),
            forwards: forwards.clone().count(),
            accepted: accepted.sum(),
        })
    }
}

/// The nanoseconds of `denoise`, from `from` to `to`, by part.
fn step_times(
    events: &[&Event],
    [from, to]: [u64; 2],
    steps: &BTreeMap<(u32, u64), [u64; 2]>,
) -> [(&'static str, u64); 3] {
    let own: BTreeSet<(u32, u64)> = events
        .iter()
        .filter(|event| event.event_name == "denoise_step")
        .filter_map(|event| Some((event.pid, event.metadata.get("step")?.as_u64()?)))
        .collect();
    let within = |start: u64, end: u64| end.min(to).saturating_sub(start.max(from));
    let (mut own_ns, mut other_ns, mut turn_ns) = (0, 0, 0);
    for (step, [start, end]) in steps {
        *(if own.contains(step) { &mut own_ns } else { &mut other_ns }) += within(*start, *end);
        let (pid, idx) = step;
        if let Some([next, _]) = steps.get(&(*pid, idx + 1)) {
            turn_ns += within(*end, *next);
        }
    }
    [("own_steps", own_ns), ("other_steps", other_ns), ("turns", turn_ns)]
}

fn timeline(events: &[&Event]) -> Vec<TimelineEvent> {
    let start = events.first().map_or(0, |event| event.timestamp_ns);
    let placed = events.iter().map(|event| TimelineEvent {
        stage: event.stage,
        event_name: event.event_name.clone(),
        t_rel_ms: milliseconds(event.timestamp_ns.saturating_sub(start)),
        metadata: event.metadata.clone(),
    });
    placed.collect()
}

fn stage_rows(by_request: &BTreeMap<&str, Vec<&Event>>) -> Vec<StageRow> {
    let rows = INTERVALS.iter().filter_map(|interval| {
        let length = |events: &Vec<&Event>| {
            let open = time_of(events, interval.open)?;
            time_of(events, interval.close).map(|close| milliseconds(close.saturating_sub(open)))
        };
        Some(StageRow {
            stage: interval.open.0,
            name: interval.name,
            interval: format!("{}->{}", interval.open.1, interval.close.1),
            summary: Summary::of(by_request.values().filter_map(length).collect())?,
        })
    });
    let mut rows: Vec<StageRow> = rows.collect();
    rows.sort_by(|a, b| b.summary.total_ms.total_cmp(&a.summary.total_ms));
    rows
}

/// Each sending is joined with the receipt of the same request, way and chunk.
fn hop_rows(by_request: &BTreeMap<&str, Vec<&Event>>) -> Vec<HopRow> {
    let mut hops: BTreeMap<(String, String, &'static str), Vec<f64>> = BTreeMap::new();
    for events in by_request.values() {
        let mut sent: BTreeMap<(String, String, Option<u64>), VecDeque<u64>> = BTreeMap::new();
        for event in events {
            let other = |name: &str| Some(event.metadata.get(name)?.as_str()?.to_owned());
            let chunk = event.metadata.get("chunk_id").and_then(Value::as_u64);
            let here = event.stage.as_str().to_owned();
            match event.event_name.as_str() {
                "stage_hop_sent" | "stage_stream_chunk_sent" => {
                    let Some(to) = other("to_stage") else { continue };
                    sent.entry((here, to, chunk)).or_default().push_back(event.timestamp_ns);
                }
                "stage_input_received" | "stage_stream_chunk_received" => {
                    let Some(from) = other("from_stage") else { continue };
                    let key = (from, here, chunk);
                    let Some(start) = sent.get_mut(&key).and_then(VecDeque::pop_front) else { continue };
                    let kind = if chunk.is_some() { "stream_chunk" } else { "payload" };
                    let length = milliseconds(event.timestamp_ns.saturating_sub(start));
                    hops.entry((key.0, key.1, kind)).or_default().push(length);
                }
                _ => {}
            }
        }
    }
    let rows = hops
        .into_iter()
        .filter_map(|((src, dst, kind), lengths)| Some(HopRow { src, dst, kind, summary: Summary::of(lengths)? }));
    rows.collect()
}

impl DenoiseBreakdown {
    fn of(events: &[Event]) -> Self {
        let mut parts: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let (mut n_requests, mut n_rows, mut n_accepted, mut n_forwards) = (Vec::new(), Vec::new(), 0.0, 0);
        let mut block_steps = Vec::new();
        for event in events {
            let number = |name: &str| event.metadata.get(name).and_then(Value::as_f64).unwrap_or_default();
            match event.event_name.as_str() {
                "engine_step" => {
                    let length = event.timestamp_ns as f64 - number("started_ns");
                    parts.entry("step".to_owned()).or_default().push(length / 1e6);
                    let details = event.metadata.as_object().into_iter().flatten();
                    for (name, ns) in details.filter(|(name, _)| *name != "started_ns") {
                        if let (Some(part), Some(ns)) = (name.strip_suffix("_ns"), ns.as_f64()) {
                            parts.entry(part.to_owned()).or_default().push(ns / 1e6);
                        }
                    }
                    n_requests.push(number("requests"));
                    n_rows.push(number("rows"));
                }
                "denoise_step" => {
                    n_forwards += 1;
                    n_accepted += number("accepted");
                    let done = event.metadata.get("blocks_done").and_then(Value::as_array);
                    block_steps.extend(done.into_iter().flatten().filter_map(Value::as_f64));
                }
                _ => {}
            }
        }
        let mut rows: Vec<PartRow> =
            parts.into_iter().filter_map(|(part, ms)| Some(PartRow { part, summary: Summary::of(ms)? })).collect();
        rows.sort_by(|a, b| b.summary.total_ms.total_cmp(&a.summary.total_ms));
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        Self {
            parts: rows,
            requests_per_step: mean(&n_requests),
            rows_per_step: mean(&n_rows),
            tokens_per_forward: n_accepted / f64::from(n_forwards.max(1)),
            steps_per_block: mean(&block_steps),
        }
    }
}

#[cfg(test)]
mod tests;
