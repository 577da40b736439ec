//! The `batch` subcommand: OpenAI's batch lines from one file, answered into another.
//!
//! In: lines of requests. Out: a line for each, as it is answered. Requests go through the server's own routes without a
//! socket, so that a line is answered as the same request over HTTP. A run that was interrupted goes on where it stopped.
//! Never here: what a request may say, the files' form.

mod lines;

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use diffulex_engine::TextModel;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::{JoinError, JoinSet};

use self::lines::{Answer, BadLine, Job, Output, OutputError};
use crate::banner::counted;
use crate::cli::BatchArgs;
use crate::config::{ServerConfig, engine_options};
use crate::engine_loop::{EngineFactory, EngineLoop, EngineLoopError};
use crate::http::{HttpService, ServiceError};
use crate::launch::{self, LaunchError};
use crate::telemetry::Telemetry;
use crate::{demo, http, log};

/// Times that a request is sent while the engine is being started again. Chosen by us: what ends the engine each time is the
/// request.
const MAX_ATTEMPTS: u32 = 3;

/// Longest wait before a request is sent again. Chosen by us: the bound of `Retry-After`.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A batch that cannot be worked on.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Flags, log, model or runtime are wrong or missing, as for a server.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The engine cannot be started.
    #[error(transparent)]
    Engine(#[from] EngineLoopError),
    /// The routes cannot be made.
    #[error(transparent)]
    Routes(#[from] ServiceError),
    /// The requests cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Input {
        /// `--input`.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The answers cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A request's task failed.
    #[error("a request failed: {0}")]
    Task(#[from] JoinError),
}

/// Numbers of lines by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    answered: u32,
    /// Answered with an error.
    failed: u32,
    /// Not a request at all.
    unreadable: u32,
    /// Answered by an earlier run.
    skipped: u32,
}

/// Answers every line that is not answered yet. Fails (exit status 1) if a line of this run has no answer.
pub fn batch(args: &BatchArgs) -> Result<ExitCode, BatchError> {
    let _log = log::init(&args.local.log_level, log::LogFormat::Text).map_err(LaunchError::from)?;
    let started = Instant::now();
    let summary = launch::runtime()?.block_on(run(args))?;
    let Summary { answered, failed, unreadable, skipped } = summary;
    let line = format!(
        "{} answered, {failed} failed, {unreadable} unreadable, {skipped} skipped as answered before; {:.2} s\n",
        counted(answered, "request"),
        started.elapsed().as_secs_f64()
    );
    // A closed standard error is no reason to fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
    Ok(if failed + unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn run(args: &BatchArgs) -> Result<Summary, BatchError> {
    let wrong = |error| BatchError::Input { path: args.input.clone(), error };
    let n_lines = count_lines(&args.input).map_err(wrong)?;
    let input = BufReader::new(File::open(&args.input).map_err(wrong)?);
    let output = Output::open(&args.output)?;
    let (engine, service) = service_of(args).await?;
    let mut batch = Batch {
        service,
        max_running: engine.frontend().max_in_flight(),
        running: JoinSet::new(),
        output,
        summary: Summary::default(),
        bar: progress_bar(n_lines),
    };
    let mut seen = HashSet::new();
    for (number, line) in (1..).zip(input.split(b'\n')) {
        let line = line.map_err(wrong)?;
        if !line.trim_ascii().is_empty() {
            batch.take(number, &line, &mut seen).await?;
        }
    }
    while batch.collect().await? {}
    batch.bar.finish_and_clear();
    engine.stop(Duration::ZERO).await;
    Ok(batch.summary)
}

fn count_lines(path: &Path) -> std::io::Result<u64> {
    let mut n_lines = 0;
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        n_lines += u64::from(!line?.trim_ascii().is_empty());
    }
    Ok(n_lines)
}

fn progress_bar(n_lines: u64) -> ProgressBar {
    // The template is a constant: if it were malformed, the default one would do.
    let style = ProgressStyle::with_template("answering {bar:40} {human_pos} of {human_len} requests, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(n_lines).with_style(style)
}

/// The routes over an engine of this process.
async fn service_of(args: &BatchArgs) -> Result<(EngineLoop, HttpService), BatchError> {
    let path = args.local.engine.model.as_deref();
    let files = demo::model_files(path).map_err(LaunchError::from)?;
    let options = engine_options(&args.local.engine).map_err(LaunchError::from)?;
    let text = TextModel::load(&files).map_err(LaunchError::from)?;
    let config = ServerConfig {
        model: args.local.engine.model.clone(),
        // One batch waits while another runs: more would only take memory.
        max_queued_requests: options.max_num_reqs,
        engine: options.clone(),
        request_timeout_seconds: 0.0,
        ..ServerConfig::default()
    };
    let http_options = launch::http_options(&config, &files, files.name()).map_err(LaunchError::from)?;
    let factory: EngineFactory = Arc::new(move || launch::load_engine(&files, &options));
    let engine = EngineLoop::start(factory, text, config.frontend_options()).await?;
    let service = http::service(engine.frontend().clone(), Arc::new(Telemetry::default()), http_options)?;
    Ok((engine, service))
}

struct Batch {
    service: HttpService,
    /// Requests that the front end takes at once.
    max_running: usize,
    running: JoinSet<Answer>,
    output: Output,
    summary: Summary,
    bar: ProgressBar,
}

impl Batch {
    /// Starts the request of a line, once there is room. `seen` are the names of the lines before.
    async fn take(&mut self, number: u64, line: &[u8], seen: &mut HashSet<String>) -> Result<(), BatchError> {
        let job = match Job::read(number, line) {
            Ok(job) if seen.insert(job.custom_id.clone()) => job,
            Ok(job) => return self.refuse(BadLine::duplicate(job)),
            Err(bad) => return self.refuse(bad),
        };
        if self.output.is_answered(&job.custom_id) {
            self.summary.skipped += 1;
            self.bar.inc(1);
            return Ok(());
        }
        while self.running.len() >= self.max_running {
            self.collect().await?;
        }
        self.running.spawn(answer(self.service.clone(), job));
        Ok(())
    }

    fn refuse(&mut self, bad: BadLine) -> Result<(), BatchError> {
        self.bar.inc(1);
        if self.output.is_refused(bad.line) {
            self.summary.skipped += 1;
            return Ok(());
        }
        self.summary.unreadable += 1;
        Ok(self.output.refuse(&bad)?)
    }

    /// Writes the next answer; false if there is nothing to wait for.
    async fn collect(&mut self) -> Result<bool, BatchError> {
        let Some(answer) = self.running.join_next().await.transpose()? else { return Ok(false) };
        self.output.write(&answer)?;
        self.bar.inc(1);
        let is_answered = answer.status.is_success();
        *(if is_answered { &mut self.summary.answered } else { &mut self.summary.failed }) += 1;
        Ok(true)
    }
}

/// The route's answer. A request that the front end has no room for, or no engine, is sent again.
async fn answer(service: HttpService, job: Job) -> Answer {
    let mut n_attempts = 0;
    loop {
        let (status, wait, body, request_id) = call(&service, &job).await;
        n_attempts += u32::from(status == StatusCode::SERVICE_UNAVAILABLE);
        let is_over = match status {
            // Only the requests of this batch are ahead.
            StatusCode::TOO_MANY_REQUESTS => false,
            StatusCode::SERVICE_UNAVAILABLE => n_attempts >= MAX_ATTEMPTS,
            _ => true,
        };
        if is_over {
            return Answer { line: job.line, custom_id: job.custom_id, status, request_id, body };
        }
        tokio::time::sleep(wait).await;
    }
}

/// One call of a route: its status, when to call again, its body and the request's id.
async fn call(service: &HttpService, job: &Job) -> (StatusCode, Duration, String, Option<String>) {
    let request = Request::post(job.url.as_str())
        // Calls from elsewhere are refused; this one is from here.
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(job.body.to_string()));
    let request = match request {
        Ok(request) => request,
        // The routes are our own words.
        Err(error) => return (StatusCode::BAD_REQUEST, Duration::ZERO, format!("{:?}", error.to_string()), None),
    };
    let (head, body) = service.clone().answer(request).await.into_parts();
    let header = |name: &str| Some(head.headers.get(name)?.to_str().ok()?.to_owned());
    let wait = header("retry-after-ms").and_then(|wait| wait.parse().ok()).map(Duration::from_millis);
    let (status, request_id) = (head.status, header("x-request-id"));
    // A body in memory has no error and no limit.
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    let body = String::from_utf8_lossy(&bytes).into_owned();
    (status, wait.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT), body, request_id)
}
