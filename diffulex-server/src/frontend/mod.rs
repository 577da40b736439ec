//! The front end: admits requests, sends them to the worker and routes its events back to who waits for them.
//!
//! In: requests from the routes, event batches from the supervisor's thread. Out: an [`EventStream`] per request, whose
//! drop aborts the request. Everything has a bound: requests in flight, tokenising threads, what a slow reader holds.
//! A request ends exactly once: by the engine's reply or error, or here when the worker is lost or time is up. This file
//! holds the shared state and the front end's life. Never here: HTTP, sockets, processes.

mod adapters;
mod admission;
mod context_lease;
mod context_requests;
mod contexts;
pub(crate) mod crash_report;
mod outcome;
mod profile;
mod quarantine;
mod request_log;
mod request_spans;
mod request_state;
mod routing;
mod stream;
mod supervisor;
mod tokenising;
mod watched_stream;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use diffulex_engine::TextModel;
use diffulex_protocol::{AdapterSource, EngineStats, ModelCard, ServingCommand};
use tokio::sync::watch;

use adapters::AdapterRegistry;
pub use adapters::{AdapterOutcome, AdapterRefusal};
pub use admission::{Submission, SubmitError, Truncation};
pub use contexts::{
    Addition, ContextError, ContextName, ContextOwner, ContextTable, ContextView, MAX_CONTEXT_TTL, NewContext,
};
pub use crash_report::CrashReports;
use profile::Profiler;
pub use profile::{ProfileEnd, ProfileError, ProfileOrder, ProfileRun};
use quarantine::Quarantine;
pub use request_log::RequestLog;
use request_state::RequestState;
pub use request_state::StreamEvent;
#[cfg(test)]
pub(crate) use request_state::merge_snapshots;
pub use stream::EventStream;
pub use supervisor::{StartError, WorkerHandle, WorkerParts, WorkerStarter};
pub use tokenising::Tokenising;
pub use watched_stream::{AnswerError, ClientDisconnected, WatchedStream};

use crate::draws::Draws;
use crate::link::CommandSender;
use crate::long_work::LongWork;
use crate::telemetry::{Gauges, Telemetry};

/// How a front end behaves.
#[derive(Clone, Debug)]
pub struct FrontendOptions {
    /// Requests in flight at most: those of a batch and those that may wait.
    pub max_in_flight: usize,
    /// Longest time for one request; `None` is no limit.
    pub request_timeout: Option<Duration>,
    /// Longest time a worker may take to load.
    pub startup_timeout: Duration,
    /// Silence after which a worker counts as stuck.
    pub heartbeat_timeout: Duration,
    /// Silence after which a worker is ended; `None` is never.
    pub watchdog_timeout: Option<Duration>,
    /// Where lost workers are reported.
    pub crash_reports: Option<CrashReports>,
    /// Adapters that every worker is started with.
    pub adapters: Vec<AdapterSource>,
    /// Adapters loaded at the same time, those included.
    pub max_loaded_loras: usize,
    /// Folder below which profiles may be written; `None`: none are recorded.
    pub profile_dir: Option<PathBuf>,
    /// Contexts held at the same time.
    pub max_contexts: usize,
    /// How long a context lives after its last use, if it says nothing else.
    pub context_ttl: Duration,
}

/// Where the worker is in its life.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerStatus {
    /// Loading the model for the first time.
    Starting,
    /// Takes requests.
    Running,
    /// Died, and is being started again.
    Restarting {
        /// How it died.
        reason: String,
    },
    /// Could not start the first time; it is not tried again.
    Failed {
        /// Why.
        reason: String,
    },
    /// Left, as it was told to.
    Stopped,
}

/// Why a worker will never take requests.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotServing {
    /// It could not start the first time.
    #[error("{reason}")]
    Failed {
        /// Why.
        reason: String,
    },
    /// It was told to leave.
    #[error("the worker was stopped")]
    Stopped,
    /// The thread that keeps it is gone.
    #[error("the worker's supervisor ended")]
    Unsupervised,
}

/// The front end. Clones share one state.
#[derive(Clone)]
pub struct Frontend {
    shared: Arc<Shared>,
}

/// State shared by the routes and the supervisor's thread.
struct Shared {
    options: FrontendOptions,
    text: TextModel,
    telemetry: Arc<Telemetry>,
    requests: Mutex<HashMap<String, Arc<RequestState>>>,
    /// Commands about to be sent, in order.
    outbox: Mutex<Vec<ServingCommand>>,
    in_flight: AtomicUsize,
    draws: Draws,
    worker: RwLock<WorkerView>,
    status: watch::Sender<WorkerStatus>,
    draining: AtomicBool,
    stop_now: AtomicBool,
    completions: Mutex<VecDeque<Instant>>,
    long_work: LongWork,
    adapters: AdapterRegistry,
    contexts: Mutex<ContextTable>,
    quarantine: Mutex<Quarantine>,
    profiler: Profiler,
    /// Replies and errors that came from workers.
    n_answered: AtomicU64,
}

/// The worker as last heard of.
struct WorkerView {
    /// `None` while no worker takes commands.
    commands: Option<Arc<dyn CommandSender>>,
    card: Option<Arc<ModelCard>>,
    /// Process of the worker; 0 in-process and before the first one.
    pid: u32,
    stats: EngineStats,
    last_heard: Instant,
    /// How long the last one took to load.
    loading: Duration,
    /// Expected time of the next worker's start, while there is none.
    expected: Option<Instant>,
}

impl Frontend {
    /// A front end over the worker that `starter` starts, and starts again whenever it dies.
    pub fn start(
        text: TextModel,
        options: FrontendOptions,
        telemetry: Arc<Telemetry>,
        starter: Box<dyn WorkerStarter>,
    ) -> std::io::Result<Self> {
        let (status, _) = watch::channel(WorkerStatus::Starting);
        let shared = Arc::new(Shared {
            adapters: AdapterRegistry::new(options.adapters.clone(), options.max_loaded_loras),
            contexts: Mutex::new(ContextTable::new(options.max_contexts, options.context_ttl)),
            options,
            text,
            telemetry,
            requests: Mutex::default(),
            outbox: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            draws: Draws::default(),
            worker: RwLock::new(WorkerView {
                commands: None,
                card: None,
                pid: 0,
                stats: EngineStats::default(),
                last_heard: Instant::now(),
                loading: Duration::ZERO,
                expected: None,
            }),
            status,
            draining: AtomicBool::new(false),
            stop_now: AtomicBool::new(false),
            completions: Mutex::default(),
            long_work: LongWork::default(),
            quarantine: Mutex::default(),
            profiler: Profiler::default(),
            n_answered: AtomicU64::new(0),
        });
        let supervised = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("diffulex-events".to_owned())
            .spawn(move || supervisor::supervise(&supervised, starter))?;
        Ok(Self { shared })
    }

    /// The turns of long work, which parsing shares with tokenising.
    pub fn long_work(&self) -> &LongWork {
        &self.shared.long_work
    }

    /// The model's tokenizer and template.
    pub fn text(&self) -> &TextModel {
        &self.shared.text
    }

    /// The served model; `None` until one was ready for the first time.
    pub fn card(&self) -> Option<Arc<ModelCard>> {
        self.shared.worker_view().card.clone()
    }

    /// Where the worker is in its life.
    pub fn status(&self) -> WorkerStatus {
        self.shared.status.borrow().clone()
    }

    /// Every change of [`Self::status`].
    pub fn watch_status(&self) -> watch::Receiver<WorkerStatus> {
        self.shared.status.subscribe()
    }

    /// Waits until the worker takes requests; the error says why it never will.
    pub async fn ready(&self) -> Result<Arc<ModelCard>, NotServing> {
        let mut status = self.watch_status();
        loop {
            match status.borrow_and_update().clone() {
                WorkerStatus::Starting | WorkerStatus::Restarting { .. } => {}
                WorkerStatus::Failed { reason } => return Err(NotServing::Failed { reason }),
                WorkerStatus::Stopped => return Err(NotServing::Stopped),
                WorkerStatus::Running => {
                    if let Some(card) = self.card() {
                        return Ok(card);
                    }
                }
            }
            status.changed().await.map_err(|_| NotServing::Unsupervised)?;
        }
    }

    /// True once [`Self::shutdown`] was called: nothing is accepted any more.
    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire)
    }

    /// How long the worker has been silent, when that is longer than it may be.
    pub fn stall(&self) -> Option<Duration> {
        if self.status() != WorkerStatus::Running {
            return None;
        }
        self.shared.stall_of(&self.shared.worker_view())
    }

    /// Gauges for `/metrics` and `/health`.
    pub fn gauges(&self) -> Gauges {
        let view = self.shared.worker_view();
        let mut engine = view.stats.clone();
        // The engine said it when it was last heard of.
        engine.last_step_age_ms = engine.last_step_age_ms.saturating_add(view.last_heard.elapsed().as_millis() as u64);
        let card = view.card.clone();
        drop(view);
        Gauges {
            card,
            in_flight: self.shared.in_flight.load(Ordering::Relaxed),
            contexts: self.shared.contexts().counts(),
            worker_up: self.status() == WorkerStatus::Running && self.stall().is_none(),
            engine,
        }
    }

    /// Process of the worker, if it is one of its own.
    pub fn worker_pid(&self) -> Option<u32> {
        Some(self.shared.worker_view().pid).filter(|pid| *pid != 0)
    }

    /// Requests in flight at most.
    pub fn max_in_flight(&self) -> usize {
        self.shared.options.max_in_flight
    }

    /// Stops accepting, lets what runs finish within `grace`, tells the rest, ends the worker.
    pub async fn shutdown(&self, grace: Duration) {
        /// Time beyond the grace for the worker to end every request and leave. Chosen by us.
        const MARGIN: Duration = Duration::from_secs(2);

        self.shared.draining.store(true, Ordering::Release);
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        if self.shared.send_control(ServingCommand::Shutdown { grace_ms: Some(grace_ms) }).is_err() {
            // No worker: loading, restarting or gone.
            self.shared.stop_now.store(true, Ordering::Release);
        }
        if tokio::time::timeout(grace + MARGIN, self.stopped()).await.is_err() {
            self.shutdown_now().await;
        }
    }

    /// Ends the worker at once; every open request is told.
    pub async fn shutdown_now(&self) {
        /// The supervisor looks at its orders ten times a second; killing takes no longer. Chosen by us.
        const DEADLINE: Duration = Duration::from_secs(2);

        self.shared.draining.store(true, Ordering::Release);
        self.shared.stop_now.store(true, Ordering::Release);
        if tokio::time::timeout(DEADLINE, self.stopped()).await.is_err() {
            tracing::error!("the worker could not be stopped in time");
        }
    }

    async fn stopped(&self) {
        let is_over = |status: &WorkerStatus| match status {
            WorkerStatus::Stopped | WorkerStatus::Failed { .. } => true,
            WorkerStatus::Starting | WorkerStatus::Running | WorkerStatus::Restarting { .. } => false,
        };
        // An error means that the supervisor has ended, too.
        let _ = self.watch_status().wait_for(is_over).await;
    }
}

impl Shared {
    fn contexts(&self) -> MutexGuard<'_, ContextTable> {
        lock(&self.contexts)
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<String, Arc<RequestState>>> {
        lock(&self.requests)
    }

    fn worker_view(&self) -> RwLockReadGuard<'_, WorkerView> {
        self.worker.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker_view_mut(&self) -> RwLockWriteGuard<'_, WorkerView> {
        self.worker.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a worker that takes commands has been silent, when that is longer than it may be.
    fn stall_of(&self, view: &WorkerView) -> Option<Duration> {
        let silence = view.last_heard.elapsed();
        (view.commands.is_some() && silence > self.options.heartbeat_timeout).then_some(silence)
    }
}

/// A panic while a lock is held cannot leave these maps half-written, so poison is no reason to stop serving.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
