//! The worker as a process of its own: how a front end starts and ends it, and what it does when it is one.
//!
//! The child gets its orders ([`WorkerBoot`]) on standard input, so nothing of them is on disk or in the process list. It
//! dies with its parent, and every start has socket paths of its own, so that a straggler cannot take a newer worker's
//! commands. Never here: requests, the loop.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use diffulex_engine::{EngineOptions, ServingEngine};
use diffulex_protocol::{EventBatch, ServingEvent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::config::check_ipc_path;
use crate::frontend::{WorkerHandle, WorkerParts, WorkerStarter};
use crate::link::WorkerLink;
use crate::link::zmq::{self as zmq_link, ZmqWorker};
use crate::telemetry;
use crate::worker::{self, WorkerOptions};

/// How long a worker that was told to leave may take before it is killed. Chosen by us: it has nothing left to do but
/// to free its memory.
const EXIT_DEADLINE: Duration = Duration::from_secs(1);

/// The orders of a worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerBoot {
    /// Which start this is.
    pub incarnation: u64,
    /// Where its commands come from.
    pub command_address: String,
    /// Where its events go.
    pub event_address: String,
    /// Process id of the front end, without which it has no reason to live.
    pub parent_pid: u32,
    /// Longest silence of an idle worker, in milliseconds.
    pub heartbeat_interval_ms: u64,
    /// Level or filter of log lines.
    pub log_level: String,
    /// Checkpoint folder or GGUF file; `None` is the demo model.
    pub model: Option<PathBuf>,
    /// The engine's options.
    pub engine: EngineOptions,
}

/// What every start of a worker has in common.
#[derive(Clone, Debug)]
pub struct WorkerPlan {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Folder only this user can enter; the sockets' place.
    pub private_dir: PathBuf,
    /// Instead of a private command address.
    pub command_address: Option<String>,
    /// Instead of a private event address.
    pub event_address: Option<String>,
    /// Longest silence of an idle worker.
    pub heartbeat_interval: Duration,
    /// Level or filter of log lines.
    pub log_level: String,
    /// Checkpoint folder or GGUF file; `None` is the demo model.
    pub model: Option<PathBuf>,
    /// The engine's options.
    pub engine: EngineOptions,
}

/// Starts workers as processes.
pub struct WorkerProcesses {
    plan: WorkerPlan,
    context: ::zmq::Context,
}

impl WorkerProcesses {
    /// Workers after `plan`.
    pub fn new(plan: WorkerPlan) -> Self {
        Self { plan, context: ::zmq::Context::new() }
    }

    fn address(&self, given: &Option<String>, name: &str, incarnation: u64) -> Result<String, String> {
        if let Some(address) = given {
            return Ok(address.clone());
        }
        let path = self.plan.private_dir.join(format!("{name}-{incarnation}.ipc"));
        let path = path.to_str().ok_or_else(|| format!("the path {} is not text", path.display()))?;
        check_ipc_path(path)?;
        Ok(format!("ipc://{path}"))
    }
}

impl WorkerStarter for WorkerProcesses {
    fn start(&mut self, incarnation: u64) -> Result<WorkerParts, String> {
        let command_address = self.address(&self.plan.command_address, "commands", incarnation)?;
        let event_address = self.address(&self.plan.event_address, "events", incarnation)?;
        let sockets =
            zmq_link::bind(&self.context, &command_address, &event_address).map_err(|error| error.to_string())?;
        for address in [&command_address, &event_address] {
            restrict(address)?;
        }
        let boot = WorkerBoot {
            incarnation,
            command_address,
            event_address,
            parent_pid: std::process::id(),
            heartbeat_interval_ms: u64::try_from(self.plan.heartbeat_interval.as_millis()).unwrap_or(u64::MAX),
            log_level: self.plan.log_level.clone(),
            model: self.plan.model.clone(),
            engine: self.plan.engine.clone(),
        };
        let child = spawn(&self.plan, &boot)?;
        let process = WorkerProcess { child };
        let (commands, events) = sockets.into_ends(Some(process.watch()?));
        Ok(WorkerParts { commands: Arc::new(commands), events: Box::new(events), handle: Box::new(process) })
    }
}

/// Sockets for this user alone, whatever the umask says.
fn restrict(address: &str) -> Result<(), String> {
    let Some(path) = address.strip_prefix("ipc://") else { return Ok(()) };
    std::fs::set_permissions(Path::new(path), Permissions::from_mode(0o600))
        .map_err(|error| format!("cannot restrict {path}: {error}"))
}

fn spawn(plan: &WorkerPlan, boot: &WorkerBoot) -> Result<Child, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("cannot start {}: {error}", plan.program.display());
    let orders = serde_json::to_vec(boot).map_err(|error| wrong(&error))?;
    let mut child = std::process::Command::new(&plan.program)
        .args(&plan.arguments)
        .stdin(Stdio::piped())
        // Its own group: Ctrl-C is for the front end, which lets requests finish.
        .process_group(0)
        .spawn()
        .map_err(|error| wrong(&error))?;
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(&orders).map_err(|error| wrong(&error)),
        None => Err(wrong(&"it has no standard input")),
    };
    if written.is_err() {
        // A child that read nothing does nothing.
        let _ = child.kill();
        let _ = child.wait();
    }
    written.map(|()| child)
}

struct WorkerProcess {
    child: Child,
}

impl WorkerProcess {
    /// A descriptor that becomes readable when the process ends.
    fn watch(&self) -> Result<OwnedFd, String> {
        pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .map_err(|error| format!("cannot watch process {}: {error}", self.child.id()))
    }

    fn wait_for_exit(&self, within: Duration) {
        let Ok(watched) = self.watch() else { return };
        let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
        // Over time or interrupted: it is killed next.
        let _ = poll(&mut [PollFd::new(&watched, PollFlags::IN)], Some(&timeout));
    }
}

impl WorkerHandle for WorkerProcess {
    fn end(mut self: Box<Self>) -> String {
        self.wait_for_exit(EXIT_DEADLINE);
        let was_alive = matches!(self.child.try_wait(), Ok(None));
        if was_alive && let Err(error) = self.child.kill() {
            tracing::error!(pid = self.child.id(), %error, "a worker could not be killed");
        }
        match self.child.wait() {
            Ok(status) if was_alive => format!("it was killed: {status}"),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // After `end` both do nothing; on a start that failed half-way they leave no orphan.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the engine of a worker process.
pub type EngineMaker = dyn FnOnce(&WorkerBoot) -> Result<Box<dyn ServingEngine>, String>;

/// A worker process from its orders to its end.
pub fn run(make_engine: Box<EngineMaker>) -> Result<(), String> {
    // First of all, so that no moment is left in which the parent could die unnoticed.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot tie to the parent: {error}"))?;
    let boot: WorkerBoot = serde_json::from_reader(std::io::stdin())
        .map_err(|error| format!("a worker takes its orders from `serve` on standard input: {error}"))?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if parent != Some(boot.parent_pid) {
        return Err("the front end that started this worker is gone".to_owned());
    }
    telemetry::init_logging(&boot.log_level)?;

    let context = ::zmq::Context::new();
    let mut link =
        ZmqWorker::connect(&context, &boot.command_address, &boot.event_address).map_err(|error| error.to_string())?;
    let options = WorkerOptions {
        incarnation: boot.incarnation,
        pid: std::process::id(),
        heartbeat_interval: Duration::from_millis(boot.heartbeat_interval_ms),
    };
    let mut engine = match make_engine(&boot) {
        Ok(engine) => engine,
        Err(message) => {
            let events = vec![ServingEvent::Fatal { message: message.clone() }];
            link.send(EventBatch { incarnation: boot.incarnation, events }).map_err(|error| error.to_string())?;
            return Err(message);
        }
    };
    worker::run(engine.as_mut(), &mut link, &options).map_err(|error| error.to_string())
}
