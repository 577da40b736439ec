//! Profiles: what happened to each request and in each step, and when, as files.
//!
//! In: events and spans, with times of one clock for all processes of a machine. Out: `events_<stage>_<pid>.jsonl`, one line per
//! event of a request, and a trace in Chrome's format. A process has a [`Recording`] for each run. Never here: when a profile
//! runs, reports.

mod folder;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use diffulex_protocol::ProfileStart;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use folder::ProfileFolder;
pub use folder::{MAX_ENTRIES, MAX_FOLDER_BYTES};

/// Bytes that one process writes for one run at most. Chosen by us: hours of a busy server; a profile that nobody stops must not
/// fill a disk.
const MAX_BYTES: u64 = 1 << 30;

/// Traces of one run that a process may begin: one for each time that the engine is started again. Chosen by us.
const MAX_TRACES: usize = 100;

/// A part of the server that a request passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Admission, routing, the client's stream.
    Frontend,
    /// Chat template and tokenizer.
    Tokenizer,
    /// Queue, forwards, decisions.
    Engine,
    /// From committed tokens to text and events.
    Detokenizer,
}

impl Stage {
    /// In the order in which a request passes them.
    pub const ALL: [Self; 4] = [Self::Frontend, Self::Tokenizer, Self::Engine, Self::Detokenizer];

    /// The name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Frontend => "frontend",
            Self::Tokenizer => "tokenizer",
            Self::Engine => "engine",
            Self::Detokenizer => "detokenizer",
        }
    }
}

/// Stages that run in the same process, named by the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The front end.
    Frontend,
    /// The worker.
    Engine,
}

impl Part {
    fn stages(self) -> [Stage; 2] {
        match self {
            Self::Frontend => [Stage::Frontend, Stage::Tokenizer],
            Self::Engine => [Stage::Engine, Stage::Detokenizer],
        }
    }

    fn as_str(self) -> &'static str {
        self.stages()[0].as_str()
    }
}

/// A part of a request's time: from one event to another.
#[derive(Debug, PartialEq, Eq)]
pub struct Interval {
    /// Its name in traces and reports.
    pub name: &'static str,
    /// Stage and name of the event at its start.
    pub open: (Stage, &'static str),
    /// Stage and name of the event at its end.
    pub close: (Stage, &'static str),
}

/// The time of a request from its admission to its end: each interval begins where the one before ends. The names of the events
/// are those of SGLang-Omni's profiler.
pub const INTERVALS: [Interval; 10] = {
    use Stage::{Detokenizer, Engine, Frontend, Tokenizer};
    const fn interval(name: &'static str, open: (Stage, &'static str), close: (Stage, &'static str)) -> Interval {
        Interval { name, open, close }
    }
    const TEXT: (Stage, &str) = (Tokenizer, "preprocess_start");
    const IDS: (Stage, &str) = (Tokenizer, "preprocess_end");
    const SENT: (Stage, &str) = (Frontend, "stage_hop_sent");
    const RECEIVED: (Stage, &str) = (Engine, "stage_input_received");
    const QUEUED: (Stage, &str) = (Engine, "scheduler_queue_enter");
    const STARTED: (Stage, &str) = (Engine, "scheduler_prefill_start");
    const DECODED: (Stage, &str) = (Engine, "stage_complete");
    const WRITTEN: (Stage, &str) = (Detokenizer, "stage_hop_sent");
    const BACK: (Stage, &str) = (Frontend, "stage_input_received");
    [
        interval("admit", (Frontend, "request_admission"), TEXT),
        interval("tokenize", TEXT, IDS),
        interval("dispatch", IDS, SENT),
        interval("hop_to_engine", SENT, RECEIVED),
        interval("accept", RECEIVED, QUEUED),
        interval("queue", QUEUED, STARTED),
        interval("denoise", STARTED, DECODED),
        interval("detokenize", DECODED, WRITTEN),
        interval("hop_to_frontend", WRITTEN, BACK),
        interval("respond", BACK, (Frontend, "terminal_response")),
    ]
};

/// Unix time that never runs backwards: the monotonic clock and a difference to it that all processes of a run share.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset_ns: i64,
}

impl Clock {
    /// A clock that shows the time of day as it is now.
    pub fn of_host() -> Self {
        Self {
            offset_ns: nanoseconds(clock_gettime(ClockId::Realtime)) - nanoseconds(clock_gettime(ClockId::Monotonic)),
        }
    }

    /// The clock of the process that measured `offset_ns`, on the same machine.
    pub fn with_offset(offset_ns: i64) -> Self {
        Self { offset_ns }
    }

    /// Unix time less the monotonic clock, in nanoseconds.
    pub fn offset_ns(self) -> i64 {
        self.offset_ns
    }

    /// Now, in nanoseconds.
    pub fn now(self) -> u64 {
        u64::try_from(nanoseconds(clock_gettime(ClockId::Monotonic)) + self.offset_ns).unwrap_or_default()
    }

    /// The time of `instant`, which has passed.
    pub fn at(self, instant: Instant) -> u64 {
        self.now().saturating_sub(u64::try_from(instant.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// A path of a profile that is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} is not below the folder for profiles, {}", .root.display())]
pub struct OutsideRoot {
    /// As it was given.
    pub path: String,
    /// The folder for profiles.
    pub root: PathBuf,
}

/// `path` below `root`: relative to it, or absolute and beginning with it. `..` is not accepted anywhere.
pub fn below(root: &Path, path: &str) -> Result<PathBuf, OutsideRoot> {
    let outside = || OutsideRoot { path: path.to_owned(), root: root.to_owned() };
    let given = Path::new(path);
    let relative = if given.is_absolute() { given.strip_prefix(root).map_err(|_| outside())? } else { given };
    let is_plain = relative.components().all(|component| matches!(component, Component::Normal(_)));
    if !is_plain || relative.as_os_str().is_empty() || path.contains('\0') {
        return Err(outside());
    }
    Ok(root.join(relative))
}

/// A file that a recording writes.
#[derive(Debug)]
struct Sink {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Sink {
    /// Appends to `path`, or with `is_new` makes it.
    fn open(folder: &ProfileFolder, path: PathBuf, is_new: bool) -> io::Result<Self> {
        let file = BufWriter::new(folder.append_to(&path, is_new)?);
        Ok(Self { path, file })
    }
}

/// One line of an events file.
#[derive(Debug, Serialize, Deserialize)]
pub struct EventLine<T = Value> {
    /// The request; [`STEP_ID`] for steps of the whole batch.
    pub request_id: T,
    /// Where it happened.
    pub stage: Stage,
    /// Its name.
    pub event_name: T,
    /// Unix time in nanoseconds, on the monotonic clock.
    pub timestamp_ns: u64,
    /// The run.
    pub run_id: T,
    /// The process.
    pub pid: u32,
    /// Details by name.
    pub metadata: Value,
}

/// The request id of events that concern the whole batch.
pub const STEP_ID: &str = "engine";

/// Files of one run in one process.
#[derive(Debug)]
pub struct Recording {
    run_id: String,
    pid: u32,
    clock: Clock,
    part: Part,
    /// One for each stage of the part, or none.
    events: Vec<Sink>,
    trace: Option<Sink>,
    /// That may be written.
    max_bytes: u64,
    n_bytes: u64,
    n_lost: u64,
    first_error: Option<String>,
}

/// The end of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The files.
    pub paths: Vec<String>,
    /// Why something is missing in them.
    pub problem: Option<String>,
}

impl Recording {
    /// Opens the files that `order` asks for, below `root`.
    pub fn start(order: &ProfileStart, root: Option<&Path>, part: Part) -> io::Result<Self> {
        let ProfileStart { profile_prefix, event_dir, trace_path_template, clock_offset_ns } = order;
        if event_dir.is_none() && trace_path_template.is_none() {
            return Err(io::Error::other("neither event_dir nor trace_path_template is given"));
        }
        let root = root.ok_or_else(|| io::Error::other("there is no folder for profiles (--profile-dir)"))?;
        let files = ProfileFolder::open(root)?;
        // Front end and worker share what there is.
        let max_bytes = MAX_BYTES.min(files.room()? / 2);
        let pid = std::process::id();
        let mut events = Vec::new();
        if let Some(folder) = event_dir {
            let folder = below(root, folder).map_err(io::Error::other)?;
            for stage in part.stages() {
                let path = folder.join(format!("events_{}_{pid}.jsonl", stage.as_str()));
                events.push(Sink::open(&files, path, false)?);
            }
        }
        let trace = match trace_path_template {
            Some(template) => Some(open_trace(&files, root, template, part, pid)?),
            None => None,
        };
        let mut recording = Self {
            run_id: profile_prefix.clone().unwrap_or_default(),
            pid,
            clock: Clock::with_offset(*clock_offset_ns),
            part,
            events,
            trace,
            max_bytes,
            n_bytes: 0,
            n_lost: 0,
            first_error: None,
        };
        recording.write_trace(
            || json!({"name": "process_name", "ph": "M", "args": {"name": format!("diffulex {}", part.as_str())}}),
        );
        Ok(recording)
    }

    /// The run's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Writes that `name` happened to a request at `at_ns`.
    pub fn event(&mut self, stage: Stage, name: &str, request_id: &str, at_ns: u64, metadata: Value) {
        let line = EventLine {
            request_id,
            stage,
            event_name: name,
            timestamp_ns: at_ns,
            run_id: self.run_id.as_str(),
            pid: self.pid,
            metadata,
        };
        if let Some(sink) = self.part.stages().iter().position(|of| *of == stage).and_then(|at| self.events.get_mut(at))
        {
            let written = serde_json::to_vec(&line).map_err(io::Error::from).and_then(|mut line| {
                line.push(b'\n');
                append(sink, &line, &mut self.n_bytes, self.max_bytes)
            });
            self.note(written);
        }
        let stages = self.part.stages();
        let here = |(stage, _): (Stage, &str)| stages.contains(&stage);
        for interval in INTERVALS.iter().filter(|interval| here(interval.open) && here(interval.close)) {
            for (is_edge, phase) in [(interval.close == (stage, name), "e"), (interval.open == (stage, name), "b")] {
                if is_edge {
                    self.write_trace(|| {
                        json!({"name": interval.name, "cat": "request", "ph": phase, "id": request_id, "tid": 0,
                               "ts": microseconds(at_ns)})
                    });
                }
            }
        }
    }

    /// Writes a span of the trace, from `from_ns` to `to_ns`.
    pub fn span(&mut self, name: &str, from_ns: u64, to_ns: u64, details: &Value) {
        self.write_trace(|| {
            json!({"name": name, "cat": "step", "ph": "X", "tid": 0, "ts": microseconds(from_ns),
                   "dur": microseconds(to_ns.saturating_sub(from_ns)), "args": details})
        });
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) {
        for at in 0..self.events.len() {
            let flushed = self.events[at].file.flush();
            self.note(flushed);
        }
    }

    /// Ends the run: completes and closes its files.
    pub fn finish(mut self) -> Recorded {
        self.flush();
        if let Some(mut sink) = self.trace.take() {
            let ended = sink.file.write_all(b"\n]\n").and_then(|()| sink.file.flush());
            self.note(ended);
            self.trace = Some(sink);
        }
        let paths = self.events.iter().chain(&self.trace).map(|sink| sink.path.display().to_string()).collect();
        let problem = self.first_error.map(|error| format!("{} entries were not written: {error}", self.n_lost));
        Recorded { paths, problem }
    }

    fn write_trace(&mut self, event: impl FnOnce() -> Value) {
        let Some(sink) = &mut self.trace else { return };
        let mut event = event();
        event["pid"] = self.pid.into();
        // The first is the name of the process.
        let begin = if event["ph"] == "M" { "[\n" } else { ",\n" };
        let written = append(sink, format!("{begin}{event}").as_bytes(), &mut self.n_bytes, self.max_bytes);
        self.note(written);
    }

    /// Keeps the first error for the end of the run, and logs it; the server goes on.
    fn note(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        self.n_lost += 1;
        if self.first_error.is_none() {
            tracing::warn!(%error, run_id = self.run_id, "a profile is incomplete");
            self.first_error = Some(error.to_string());
        }
    }
}

fn append(sink: &mut Sink, bytes: &[u8], n_bytes: &mut u64, max_bytes: u64) -> io::Result<()> {
    if *n_bytes + bytes.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("the run has {max_bytes} bytes, the most that a process writes")));
    }
    *n_bytes += bytes.len() as u64;
    sink.file.write_all(bytes)
}

/// The first of `<template>.<part>.<pid>.trace.json`, `...2.trace.json` and so on that does not exist.
fn open_trace(files: &ProfileFolder, root: &Path, template: &str, part: Part, pid: u32) -> io::Result<Sink> {
    let template = below(root, template).map_err(io::Error::other)?;
    let mut stem = template.into_os_string();
    stem.push(format!(".{}.{pid}", part.as_str()));
    let path = |n: usize| {
        let mut path = stem.clone();
        path.push(if n == 1 { ".trace.json".to_owned() } else { format!(".{n}.trace.json") });
        PathBuf::from(path)
    };
    let mut opened = Sink::open(files, path(1), true);
    for n in 2..=MAX_TRACES {
        match &opened {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => opened = Sink::open(files, path(n), true),
            _ => break,
        }
    }
    opened
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn order(event_dir: &str, trace: &str) -> ProfileStart {
        ProfileStart {
            profile_prefix: Some("r".to_owned()),
            event_dir: Some(event_dir.to_owned()),
            trace_path_template: Some(trace.to_owned()),
            clock_offset_ns: Clock::of_host().offset_ns(),
        }
    }

    #[test]
    fn only_plain_paths_below_the_folder_are_accepted() {
        let root = Path::new("/var/profiles");
        for (path, expected) in [
            ("a", Some("/var/profiles/a")),
            ("a/b.c", Some("/var/profiles/a/b.c")),
            ("/var/profiles/a", Some("/var/profiles/a")),
            ("", None),
            (".", None),
            ("/var/profiles", None),
            ("..", None),
            ("a/../../b", None),
            ("/var/profiles/../b", None),
            ("/var/profiles-of-another/a", None),
            ("/etc/cron.d", None),
            ("a\0b", None),
        ] {
            assert_eq!(below(root, path).ok(), expected.map(PathBuf::from), "{path:?}");
        }
    }

    #[test]
    fn a_link_leads_no_file_out_of_the_folder() {
        let (root, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        std::os::unix::fs::symlink(other.path(), root.path().join("link")).expect("a link");
        // One that would be made behind the link, too, and one behind a link that stays inside.
        fs::create_dir(root.path().join("inside")).expect("a folder");
        std::os::unix::fs::symlink("inside", root.path().join("inner")).expect("a link");
        for order in [
            order("link", "t"),
            order("e", "link/t"),
            order("link/new/e", "t"),
            order("e", "link/new/t"),
            order("inner/e", "t"),
        ] {
            assert!(Recording::start(&order, Some(root.path()), Part::Engine).is_err());
        }
        let victim = other.path().join("victim");
        let name = format!("events_engine_{}.jsonl", std::process::id());
        fs::create_dir_all(root.path().join("f")).expect("a folder");
        std::os::unix::fs::symlink(&victim, root.path().join("f").join(name)).expect("a link");
        assert!(Recording::start(&order("f", "t"), Some(root.path()), Part::Engine).is_err());
        assert!(!victim.exists() && fs::read_dir(other.path()).expect("a folder").next().is_none());
    }

    #[test]
    fn a_pipe_is_no_file_to_write_to() {
        let root = tempfile::tempdir().expect("a folder");
        let name = format!("events_engine_{}.jsonl", std::process::id());
        fs::create_dir(root.path().join("e")).expect("a folder");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, root.path().join("e").join(name), mode).expect("a pipe");
        assert!(Recording::start(&order("e", "t"), Some(root.path()), Part::Engine).is_err());
    }

    #[test]
    fn files_are_bounded_in_number_and_in_size() {
        let root = tempfile::tempdir().expect("a folder");
        let start = |run: usize| {
            let order = order(&format!("{run}/e"), &format!("{run}/t"));
            Recording::start(&order, Some(root.path()), Part::Engine).map(Recording::finish)
        };
        // Each takes two folders and three files.
        let refused = (0..MAX_ENTRIES).find_map(|run| Some((run, start(run).err()?))).expect("a limit");
        assert!((195..=201).contains(&refused.0), "{refused:?}");
        let words = refused.1.to_string();
        assert!(words.contains("1000 files") && words.contains(&root.path().display().to_string()), "{words}");

        let root = tempfile::tempdir().expect("a folder");
        let full = File::create(root.path().join("full")).expect("a file");
        full.set_len(MAX_FOLDER_BYTES - 1000).expect("a hole");
        let mut recording = Recording::start(&order("e", "t"), Some(root.path()), Part::Engine).expect("room for some");
        for _ in 0..10 {
            recording.event(Stage::Engine, "stage_input_received", "a", 1, json!({"filler": "x".repeat(100)}));
        }
        let problem = recording.finish().problem.expect("not all of it was written");
        assert!(problem.contains("500 bytes"), "{problem}");
        full.set_len(MAX_FOLDER_BYTES).expect("a hole");
        let words = Recording::start(&order("f", "t"), Some(root.path()), Part::Engine).expect_err("full").to_string();
        assert!(words.contains("4294967296 bytes"), "{words}");
    }

    #[test]
    fn files_are_json_and_a_second_trace_overwrites_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let mut paths = Vec::new();
        for _ in 0..2 {
            let mut recording = Recording::start(&order("e", "t"), Some(root.path()), Part::Engine).expect("it starts");
            let now = recording.clock().now();
            recording.event(Stage::Engine, "stage_input_received", "a\"b", now, json!({}));
            recording.event(Stage::Engine, "scheduler_queue_enter", "a\"b", now, json!({}));
            recording.event(Stage::Engine, "scheduler_prefill_start", "a\"b", now + 5, json!({"n": 1}));
            // Of another process.
            recording.event(Stage::Frontend, "terminal_response", "a\"b", now, json!({}));
            recording.span("forward", now, now + 7000, &json!({"rows": 3}));
            let recorded = recording.finish();
            assert_eq!(recorded.problem, None);
            paths = recorded.paths;
        }
        let names: Vec<_> = paths.iter().map(|path| path.rsplit('/').next().expect("a name")).collect();
        let pid = std::process::id();
        let expected = [
            format!("events_engine_{pid}.jsonl"),
            format!("events_detokenizer_{pid}.jsonl"),
            format!("t.engine.{pid}.2.trace.json"),
        ];
        assert_eq!(names, expected);
        let lines = fs::read_to_string(&paths[0]).expect("a file");
        let lines: Vec<EventLine<String>> =
            lines.lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
        assert_eq!(lines.len(), 6, "a second run of the same name is appended");
        assert_eq!((lines[2].request_id.as_str(), &lines[2].metadata), ("a\"b", &json!({"n": 1})));
        let trace: Vec<Value> = serde_json::from_slice(&fs::read(&paths[2]).expect("a file")).expect("a list");
        let phases: Vec<_> = trace.iter().map(|event| event["ph"].as_str().expect("a phase")).collect();
        assert_eq!(phases, ["M", "b", "e", "b", "e", "b", "X"]);
        assert_eq!((&trace[6]["name"], trace[6]["dur"].as_f64()), (&json!("forward"), Some(7.0)));
    }
}
