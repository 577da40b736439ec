//! The front end: admits requests, sends them to the worker and routes its events back to who waits for them.
//!
//! In: requests from the routes, event batches from the supervisor's thread. Out: an [`EventStream`] per request, whose
//! drop aborts the request. Everything has a bound: requests in flight, tokenising threads, what a slow reader holds.
//! A request ends exactly once: by the engine's reply or error, or here when the worker is lost or time is up.
//! Never here: HTTP, sockets, processes.

mod adapters;
pub(crate) mod crash_report;
mod quarantine;
mod request_log;
mod request_state;
mod supervisor;
mod tokenising;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use diffulex_engine::{RequestError, TextModel};
use diffulex_protocol::{
    AdapterSource, ChatMessage, EngineStats, ErrorCode, EventBatch, ModelCard, Prompt, SamplingParams, ServingCommand,
    ServingError, ServingEvent, ServingGenerate, ServingInput, SnapshotSpan, StreamMode,
};
use futures::Stream;
use tokio::sync::{oneshot, watch};

pub use adapters::AdapterOutcome;
use adapters::AdapterRegistry;
pub use crash_report::CrashReports;
use quarantine::{Fingerprint, Quarantine};
use request_log::RequestLog;
pub use request_state::StreamEvent;
use request_state::{RequestSize, RequestState};
pub use supervisor::{WorkerHandle, WorkerParts, WorkerStarter};
pub(crate) use tokenising::check_ids;
use tokenising::{check_length, check_prompt, masks_of};

use crate::link::{CommandSender, LinkError};
use crate::long_work::LongWork;
use crate::telemetry::{Gauges, Telemetry};

/// How many completions the rate behind `Retry-After` looks back. Chosen by us.
const COMPLETIONS_KEPT: usize = 64;

/// Longest wait for the engine's word on an adapter or a profile. Chosen by us: it answers between two steps, and one step
/// of a large model on a CPU may take this long.
const CONTROL_DEADLINE: Duration = Duration::from_secs(120);

/// Bounds of `Retry-After`, as `http-api` promises them.
const RETRY_AFTER: std::ops::RangeInclusive<u64> = 1..=60;

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

/// What a client asks the front end for.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Who asks, for the log.
    pub route: &'static str,
    /// What to start from.
    pub input: ServingInput,
    /// Sampling and limits; a missing seed is [`SamplingParams::seed_or`] one that is drawn.
    pub sampling_params: SamplingParams,
    /// Progress is wanted, not only the reply.
    pub stream: bool,
    /// Which progress.
    pub stream_mode: StreamMode,
    /// How much a snapshot covers.
    pub snapshot: SnapshotSpan,
    /// What follows the answer.
    pub suffix: Option<Prompt>,
    /// A mask in the prompt is a place to fill; otherwise it is a token like any other.
    pub fills_masks: bool,
    /// The adapter to answer with.
    pub adapter: Option<String>,
    /// The client's own tag.
    pub user: Option<String>,
    /// Answers wanted; each is a request of its own with the next seed.
    pub n_choices: u32,
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The request is wrong.
    #[error("{}", .0.message)]
    Request(RequestError),
    /// Too many requests in flight.
    #[error("too many requests are waiting; try again in {} s", .retry_after.as_secs())]
    QueueFull {
        /// When there is likely to be room.
        retry_after: Duration,
    },
    /// There is no worker to take it.
    #[error("{message}")]
    Unavailable {
        /// Why.
        message: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// The engine has not answered.
    #[error("the engine did not answer within {} s", .after.as_secs())]
    NoAnswer {
        /// After this long.
        after: Duration,
    },
    /// The request has ended the engine before.
    #[error("this request ended the engine twice, the second time while it was the only suspect; it is refused for another {} s", .left.as_secs().max(1))]
    Poisoned {
        /// How much longer it is refused.
        left: Duration,
    },
}

impl From<RequestError> for SubmitError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

/// Outcome of a profile command.
pub type ProfileOutcome = Result<Vec<String>, String>;

/// The front end. Clones share one state.
#[derive(Clone)]
pub struct Frontend {
    shared: Arc<Shared>,
}

/// What the routes and the supervisor's thread share.
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
    profile_waiter: Mutex<Option<oneshot::Sender<ProfileOutcome>>>,
    adapters: AdapterRegistry,
    quarantine: Mutex<Quarantine>,
    /// Replies and errors that came from workers.
    n_answered: AtomicU64,
}

/// The worker as last heard of.
struct WorkerView {
    /// `None` while no worker takes commands.
    commands: Option<Arc<dyn CommandSender>>,
    card: Option<Arc<ModelCard>>,
    stats: EngineStats,
    last_heard: Instant,
    /// How long the last one took to load.
    loading: Duration,
    /// When the next one is likely to take requests, while there is none.
    expected: Option<Instant>,
}

/// What ran when a worker was lost.
struct LostRequests {
    sizes: Vec<RequestSize>,
    /// Suspects that killed it.
    refused: Vec<String>,
    /// Those that wait, or run again.
    spared: HashSet<String>,
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
            profile_waiter: Mutex::default(),
            quarantine: Mutex::default(),
            n_answered: AtomicU64::new(0),
        });
        let supervised = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("diffulex-events".to_owned())
            .spawn(move || supervisor::supervise(&supervised, starter))?;
        Ok(Self { shared })
    }

    /// Accepts a request, or says why not. One stream per choice.
    pub async fn submit(&self, submission: Submission) -> Result<Vec<EventStream>, SubmitError> {
        let accepted = Instant::now();
        let card = self.shared.card_of_running_worker()?;
        let max_in_flight = self.shared.options.max_in_flight;
        if submission.n_choices as usize > max_in_flight {
            let message = format!("n is {}; this server takes {max_in_flight} requests at once", submission.n_choices);
            return Err(RequestError::too_large("n", message).into());
        }
        let prompt_field = tokenising::field_of(&submission.input);
        let permits = (0..submission.n_choices).map(|_| self.shared.admit()).collect::<Result<Vec<_>, _>>()?;
        let ids = self.tokenise(prompt_field, submission.input).await?;
        // First, so that nobody walks along a list that is refused anyway.
        check_length(prompt_field, &ids, 0, &card)?;
        let masked = if submission.fills_masks { masks_of(&ids, &card) } else { Vec::new() };
        check_prompt(prompt_field, &ids, &masked, &submission.sampling_params, &card)?;
        let suffix = match submission.suffix {
            Some(prompt) => Some(self.tokenise("suffix", ServingInput::Prompt { prompt }).await?),
            None => None,
        };
        if suffix.as_ref().is_some_and(|suffix| !masks_of(suffix, &card).is_empty()) {
            let message = "suffix holds the mask token; places to fill are masks of the prompt, without a suffix";
            return Err(RequestError::invalid("suffix", message).into());
        }

        let fingerprint = Fingerprint::of(
            &self.shared.draws.key,
            &ids,
            suffix.as_deref(),
            submission.adapter.as_deref(),
            &submission.sampling_params,
        );
        if let Some(left) = lock(&self.shared.quarantine).refusal(fingerprint, accepted) {
            return Err(SubmitError::Poisoned { left });
        }
        let size = RequestSize {
            prompt_tokens: ids.len(),
            max_tokens: submission.sampling_params.max_tokens,
            stream: submission.stream,
            stream_mode: submission.stream_mode,
            age_s: 0.0,
        };

        let first_seed = submission.sampling_params.seed_or(|| self.shared.draws.seed());
        let created_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut streams = Vec::with_capacity(permits.len());
        for (choice, permit) in (0..).zip(permits) {
            let rid = self.shared.draws.rid();
            let generate = ServingGenerate {
                rid: rid.clone(),
                input: ServingInput::ids(ids.clone()),
                sampling_params: SamplingParams {
                    seed: Some(first_seed.wrapping_add(choice)),
                    ..submission.sampling_params.clone()
                },
                stream: submission.stream,
                stream_mode: submission.stream_mode,
                snapshot: submission.snapshot,
                suffix: suffix.clone().map(Prompt::Ids),
                masked: masked.clone(),
                adapter: submission.adapter.clone(),
                user: submission.user.clone(),
                created_time,
            };
            let deadline = self.shared.options.request_timeout.map(|timeout| accepted + timeout);
            let first = streams.first().map(|stream: &EventStream| stream.rid().to_owned());
            let state = Arc::new(RequestState::new(rid, first, (fingerprint, size), accepted, deadline));
            tracing::debug!(rid = state.rid, user = generate.user, prompt_tokens = ids.len(), "accepted");
            self.shared.register(&state, generate)?;
            let log = RequestLog::new(submission.route, ids.len());
            streams.push(EventStream { shared: Arc::clone(&self.shared), state, log, _permit: permit });
        }
        // Whoever else is about to send goes first; then one of them sends for all, which wakes ZMQ's thread once.
        tokio::task::yield_now().await;
        self.shared.flush();
        self.shared.advance_trials();
        Ok(streams)
    }

    /// The turns of long work, which parsing shares with tokenising.
    pub fn long_work(&self) -> &LongWork {
        &self.shared.long_work
    }

    /// Messages as the model's template writes them.
    pub fn render_chat_prompt(&self, messages: &[ChatMessage]) -> Result<String, RequestError> {
        self.shared.text.render_chat(messages)
    }

    /// The model's tokenizer and template.
    pub fn text(&self) -> &TextModel {
        &self.shared.text
    }

    /// What the worker serves; `None` until one was ready for the first time.
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
    pub async fn ready(&self) -> Result<Arc<ModelCard>, String> {
        let mut status = self.watch_status();
        loop {
            match status.borrow_and_update().clone() {
                WorkerStatus::Starting | WorkerStatus::Restarting { .. } => {}
                WorkerStatus::Failed { reason } => return Err(reason),
                WorkerStatus::Stopped => return Err("the worker was stopped".to_owned()),
                WorkerStatus::Running => {
                    if let Some(card) = self.card() {
                        return Ok(card);
                    }
                }
            }
            status.changed().await.map_err(|error| error.to_string())?;
        }
    }

    /// Why a request would not be taken now, whatever it asks for.
    pub fn check_ready(&self) -> Result<(), SubmitError> {
        self.shared.card_of_running_worker().map(drop)
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
        drop(view);
        Gauges {
            in_flight: self.shared.in_flight.load(Ordering::Relaxed),
            worker_up: self.status() == WorkerStatus::Running && self.stall().is_none(),
            engine,
        }
    }

    /// Requests in flight at most.
    pub fn max_in_flight(&self) -> usize {
        self.shared.options.max_in_flight
    }

    /// Asks the engine to end request `rid`, all of its choices; their streams get replies with reason `aborted`. False for
    /// unknown ids.
    pub fn abort(&self, rid: &str) -> bool {
        let of_request = |state: &&Arc<RequestState>| state.rid == rid || state.first.as_deref() == Some(rid);
        let rids: Vec<String> =
            self.shared.requests().values().filter(of_request).map(|state| state.rid.clone()).collect();
        for rid in &rids {
            self.shared.send_held(rid);
            self.shared.send_abort(rid);
        }
        !rids.is_empty()
    }

    /// Gives up cached prefixes.
    pub fn flush_cache(&self) -> Result<(), SubmitError> {
        self.shared.send_control(ServingCommand::FlushCache)
    }

    /// Starts (`Some(prefix)`) or stops a profile, and waits for the worker's word.
    pub async fn profile(&self, command: ServingCommand) -> Result<ProfileOutcome, SubmitError> {
        let (waiter, outcome) = oneshot::channel();
        *lock(&self.shared.profile_waiter) = Some(waiter);
        self.shared.send_control(command)?;
        self.shared.answer_of(outcome).await
    }

    /// Name and folder of each adapter that requests may name, by name.
    pub fn adapters(&self) -> BTreeMap<String, String> {
        self.shared.adapters.served()
    }

    /// True if requests may name the adapter `name`.
    pub fn has_adapter(&self, name: &str) -> bool {
        self.shared.adapters.is_served(name)
    }

    /// Loads an adapter, and waits for the worker's word.
    pub async fn load_adapter(&self, source: AdapterSource) -> Result<AdapterOutcome, SubmitError> {
        let name = source.name.clone();
        self.command_adapter(&name, ServingCommand::LoadAdapter(source)).await
    }

    /// Unloads an adapter, and waits for the worker's word. Requests that run with it finish.
    pub async fn unload_adapter(&self, name: String) -> Result<AdapterOutcome, SubmitError> {
        self.command_adapter(&name, ServingCommand::UnloadAdapter { name: name.clone() }).await
    }

    async fn command_adapter(&self, name: &str, command: ServingCommand) -> Result<AdapterOutcome, SubmitError> {
        self.shared.card_of_running_worker()?;
        let expected = self.shared.adapters.expect(name, command.clone());
        let outcome = expected.map_err(|message| RequestError::invalid("lora_name", message))?;
        self.shared.send_control(command).inspect_err(|_| self.shared.adapters.forget(name))?;
        self.shared.answer_of(outcome).await
    }

    /// Stops accepting, lets what runs finish within `grace`, tells the rest, ends the worker.
    pub async fn shutdown(&self, grace: Duration) {
        /// What the worker may take beyond the grace to tell everybody and leave. Chosen by us.
        const MARGIN: Duration = Duration::from_secs(2);

        self.shared.draining.store(true, Ordering::Release);
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        if self.shared.send_control(ServingCommand::Shutdown { grace_ms: Some(grace_ms) }).is_err() {
            // Nobody to ask: loading, restarting or gone.
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
        // An error means that the supervisor is gone, which is what is waited for.
        let _ = self.watch_status().wait_for(is_over).await;
    }
}

impl Shared {
    fn requests(&self) -> MutexGuard<'_, HashMap<String, Arc<RequestState>>> {
        lock(&self.requests)
    }

    fn worker_view(&self) -> RwLockReadGuard<'_, WorkerView> {
        self.worker.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker_view_mut(&self) -> RwLockWriteGuard<'_, WorkerView> {
        self.worker.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn card_of_running_worker(&self) -> Result<Arc<ModelCard>, SubmitError> {
        if self.draining.load(Ordering::Acquire) {
            return Err(unavailable("the server is shutting down", 5));
        }
        let view = self.worker_view();
        if let Some(silence) = self.stall_of(&view) {
            return Err(unavailable(&format!("the engine has been silent for {} s", silence.as_secs()), 5));
        }
        match (&view.commands, &view.card) {
            (Some(_), Some(card)) => Ok(Arc::clone(card)),
            _ => Err(self.no_worker(&view)),
        }
    }

    /// How long a worker that takes commands has been silent, when that is longer than it may be.
    fn stall_of(&self, view: &WorkerView) -> Option<Duration> {
        let silence = view.last_heard.elapsed();
        (view.commands.is_some() && silence > self.options.heartbeat_timeout).then_some(silence)
    }

    /// The engine's word on a command, or why there is none.
    async fn answer_of<T>(&self, outcome: oneshot::Receiver<T>) -> Result<T, SubmitError> {
        match tokio::time::timeout(CONTROL_DEADLINE, outcome).await {
            Ok(Ok(answer)) => Ok(answer),
            // Dropped without a word: the worker is lost, or another command of the kind came in between.
            Ok(Err(_)) => {
                let retry_after = self.restart_wait(&self.worker_view());
                let message = "the engine was lost before it answered".to_owned();
                Err(SubmitError::Unavailable { message, retry_after })
            }
            Err(_) => Err(SubmitError::NoAnswer { after: CONTROL_DEADLINE }),
        }
    }

    /// When a lost worker is likely to be replaced.
    fn restart_wait(&self, view: &WorkerView) -> Duration {
        let wait = view.expected.map_or(Duration::ZERO, |expected| expected.saturating_duration_since(Instant::now()));
        // Whole seconds, as the header has no others.
        Duration::from_secs((wait.as_secs_f64().ceil() as u64).clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end()))
    }

    fn no_worker(&self, view: &WorkerView) -> SubmitError {
        match &*self.status.borrow() {
            WorkerStatus::Starting | WorkerStatus::Running => unavailable("the model is loading", 2),
            WorkerStatus::Restarting { reason } => SubmitError::Unavailable {
                message: format!("the engine is being restarted after it was lost: {reason}"),
                retry_after: self.restart_wait(view),
            },
            WorkerStatus::Failed { reason } => unavailable(&format!("the engine could not start: {reason}"), 60),
            WorkerStatus::Stopped => unavailable("the server is shutting down", 5),
        }
    }

    fn admit(self: &Arc<Self>) -> Result<Permit, SubmitError> {
        let in_flight = self.in_flight.fetch_add(1, Ordering::AcqRel);
        let permit = Permit { shared: Arc::clone(self) };
        if in_flight < self.options.max_in_flight {
            return Ok(permit);
        }
        self.telemetry.rejected.add(1);
        Err(SubmitError::QueueFull { retry_after: self.retry_after(in_flight) })
    }

    /// The time in which the recent rate of completions empties half of what is in flight: waiting for all of it would
    /// leave the server idle, coming back for the first free place would meet everybody else there.
    fn retry_after(&self, in_flight: usize) -> Duration {
        let completions = lock(&self.completions);
        let seconds = match completions.front() {
            Some(oldest) => {
                let rate = completions.len() as f64 / oldest.elapsed().as_secs_f64().max(1e-3);
                (in_flight as f64 / 2.0 / rate).ceil() as u64
            }
            // Nothing has finished yet, so nothing is known; 5 is chosen by us.
            None => 5,
        };
        Duration::from_secs(seconds.clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end()))
    }

    /// Registers a request and puts its command into the outbox. From here on it ends like every other: a worker lost
    /// before the command leaves fails it.
    fn register(&self, state: &Arc<RequestState>, generate: ServingGenerate) -> Result<(), SubmitError> {
        // Held over both steps: the supervisor takes it to write before it fails the requests of a lost worker.
        let view = self.worker_view();
        if view.commands.is_none() {
            return Err(self.no_worker(&view));
        }
        self.requests().insert(state.rid.clone(), Arc::clone(state));
        let admitted = {
            let mut quarantine = lock(&self.quarantine);
            if quarantine.is_suspect(state.fingerprint, state.accepted) {
                state.withhold();
            }
            quarantine.admit(state.fingerprint, generate, state.accepted)
        };
        lock(&self.outbox).extend(admitted.map(ServingCommand::Generate));
        Ok(())
    }

    /// Lets the quarantine go on: sends whose turn it is, gives readers what was kept from them.
    fn advance_trials(&self) {
        if lock(&self.quarantine).is_idle() {
            return;
        }
        let next = {
            // Held to the end, so that no worker is lost between the choice of what is sent and the outbox.
            let view = self.worker_view();
            if view.commands.is_none() {
                return;
            }
            let mut next = lock(&self.quarantine).next(Instant::now());
            lock(&self.outbox).extend(std::mem::take(&mut next.send).into_iter().map(ServingCommand::Generate));
            next
        };
        self.flush();
        let cleared: Vec<_> = {
            let requests = self.requests();
            next.cleared.iter().filter_map(|rid| requests.get(rid).cloned()).collect()
        };
        cleared.iter().filter_map(|state| state.release()).for_each(Waker::wake);
    }

    /// Sends a request that the quarantine holds out of turn, for an abort to find it.
    fn send_held(&self, rid: &str) {
        let Some(generate) = lock(&self.quarantine).take(rid) else { return };
        if let Some(state) = self.requests().get(rid) {
            state.release();
        }
        lock(&self.outbox).push(ServingCommand::Generate(generate));
    }

    /// A request's reader is gone or was told: whatever the worker still says about it finds nobody.
    fn give_up(&self, state: &RequestState) {
        let is_unsent = lock(&self.quarantine).left(state.running());
        if !is_unsent {
            self.send_abort(&state.rid);
        }
    }

    /// Sends what is in the outbox. A request whose command cannot leave fails.
    fn flush(&self) {
        let view = self.worker_view();
        // Held while sending, so that an abort cannot overtake its request.
        let mut outbox = lock(&self.outbox);
        for command in outbox.drain(..) {
            // A lost worker's requests have been failed already; commands to it are worth nothing.
            let Some(commands) = &view.commands else { continue };
            let rid = command.request_id().map(str::to_owned);
            let is_request = matches!(command, ServingCommand::Generate(_));
            match commands.send(command) {
                Ok(()) if is_request => tracing::debug!(rid, "sent to the engine"),
                Ok(()) => {}
                Err(error) => self.fail_unsent(rid, &error),
            }
        }
    }

    fn fail_unsent(&self, rid: Option<String>, error: &LinkError) {
        tracing::debug!(rid, %error, "a command was not sent");
        let Some(state) = rid.and_then(|rid| self.requests().remove(&rid)) else { return };
        let code = match error {
            LinkError::Full | LinkError::Lost(_) => ErrorCode::EngineLost,
            LinkError::Codec(_) => ErrorCode::TooLarge,
        };
        if let Some(waker) = state.fail(code, &error.to_string(), &self.telemetry) {
            waker.wake();
        }
    }

    /// Sends a command after those in the outbox.
    fn send_control(&self, command: ServingCommand) -> Result<(), SubmitError> {
        self.flush();
        let view = self.worker_view();
        let Some(commands) = &view.commands else { return Err(self.no_worker(&view)) };
        commands.send(command).map_err(|error| unavailable(&error.to_string(), 2))
    }

    fn send_abort(&self, rid: &str) {
        // A worker that is lost or takes nothing has nothing to abort for us: its events will find no reader.
        if let Err(error) = self.send_control(ServingCommand::Abort { rid: rid.to_owned() }) {
            tracing::debug!(rid, %error, "an abort was not sent");
        }
    }

    /// Brings every event of a batch to its request. One lock of the table a batch, wakes after it is released.
    fn route(&self, batch: EventBatch) {
        let now = Instant::now();
        let mut wakers: Vec<Waker> = Vec::with_capacity(batch.events.len());
        let mut n_ended = 0;
        let mut stats = None;
        {
            let mut requests = self.requests();
            for event in batch.events {
                let waker = match event {
                    ServingEvent::Delta(delta) => self
                        .known(&requests, &delta.rid)
                        .and_then(|state| state.take_delta(delta, now, &self.telemetry)),
                    ServingEvent::BufferSnapshot(snapshot) => self
                        .known(&requests, &snapshot.rid)
                        .and_then(|state| state.take_snapshot(snapshot, now, &self.telemetry)),
                    ServingEvent::Reply(reply) => {
                        n_ended += 1;
                        self.ended(&mut requests, &reply.rid)
                            .and_then(|state| state.take_reply(reply, now, &self.telemetry))
                    }
                    ServingEvent::Error(error) => {
                        n_ended += 1;
                        self.ended(&mut requests, &error.rid).and_then(|state| state.take_error(error, &self.telemetry))
                    }
                    ServingEvent::Heartbeat { stats: newest } => {
                        stats = Some(newest);
                        None
                    }
                    ServingEvent::ProfileReply { ok, message, paths } => {
                        if let Some(waiter) = lock(&self.profile_waiter).take() {
                            let outcome = if ok { Ok(paths) } else { Err(message.unwrap_or_default()) };
                            // Nobody waits any more: the client left.
                            let _ = waiter.send(outcome);
                        }
                        None
                    }
                    ServingEvent::AdapterReply { name, ok, message } => {
                        self.adapters.settle(&name, if ok { Ok(()) } else { Err(message.unwrap_or_default()) });
                        None
                    }
                    // The supervisor has read these before it let the batch come here.
                    ServingEvent::Ready(_) | ServingEvent::Fatal { .. } | ServingEvent::Goodbye => None,
                };
                wakers.extend(waker);
            }
        }
        for waker in wakers {
            waker.wake();
        }
        if n_ended > 0 {
            self.note_completions(n_ended, now);
            self.n_answered.fetch_add(n_ended as u64, Ordering::Relaxed);
        }
        {
            let mut view = self.worker_view_mut();
            view.last_heard = now;
            if let Some(stats) = stats {
                view.stats = *stats;
            }
        }
        if n_ended > 0 {
            self.advance_trials();
        }
    }

    fn known<'a>(&self, requests: &'a HashMap<String, Arc<RequestState>>, rid: &str) -> Option<&'a Arc<RequestState>> {
        let state = requests.get(rid);
        if state.is_none() {
            self.telemetry.orphan_events.add(1);
        }
        state
    }

    fn ended(&self, requests: &mut HashMap<String, Arc<RequestState>>, rid: &str) -> Option<Arc<RequestState>> {
        let state = requests.remove(rid);
        let was_tried = lock(&self.quarantine).ended(rid);
        match &state {
            Some(state) if was_tried => state.end_withholding(),
            Some(_) => {}
            None => self.telemetry.orphan_events.add(1),
        }
        state
    }

    fn note_completions(&self, count: usize, now: Instant) {
        let mut completions = lock(&self.completions);
        for _ in 0..count.min(COMPLETIONS_KEPT) {
            if completions.len() == COMPLETIONS_KEPT {
                completions.pop_front();
            }
            completions.push_back(now);
        }
    }

    /// Ends every request with an error, for good.
    fn fail_all(&self, code: ErrorCode, message: &str) {
        lock(&self.quarantine).abandon();
        self.fail_where(code, message, |_| true);
    }

    /// Finds out which requests a lost worker had, and what becomes of them.
    fn judge_lost(&self) -> LostRequests {
        let requests = self.requests();
        let mut quarantine = lock(&self.quarantine);
        let waited = quarantine.held();
        let aftermath = quarantine.worker_lost(requests.values().map(|state| state.running()), Instant::now());
        for state in aftermath.again.iter().filter_map(|rid| requests.get(rid)) {
            state.start_again();
        }
        let ran = requests.values().filter(|state| !waited.contains(&state.rid));
        let sizes =
            ran.map(|state| RequestSize { age_s: state.accepted.elapsed().as_secs_f64(), ..state.size }).collect();
        LostRequests { sizes, refused: aftermath.refused, spared: quarantine.held() }
    }

    /// Tells the requests of a lost worker, but those that wait or run again.
    fn fail_lost(&self, lost: &LostRequests, reason: &str) {
        let refused = SubmitError::Poisoned { left: quarantine::REFUSED_FOR }.to_string();
        self.fail_where(ErrorCode::Poisoned, &refused, |rid| lost.refused.iter().any(|other| other == rid));
        let message = format!("the engine was lost while it worked on this request ({reason}); it is safe to retry");
        self.fail_where(ErrorCode::EngineLost, &message, |rid| !lost.spared.contains(rid));
    }

    fn fail_where(&self, code: ErrorCode, message: &str, is_meant: impl Fn(&str) -> bool) {
        let failed: Vec<_> = self.requests().extract_if(|rid, _| is_meant(rid)).map(|(_, state)| state).collect();
        for state in failed {
            if let Some(waker) = state.fail(code, message, &self.telemetry) {
                waker.wake();
            }
        }
    }

    /// Ends the requests that have taken too long.
    fn fail_overdue(&self, now: Instant) {
        let overdue: Vec<_> = self
            .requests()
            .extract_if(|_, state| state.deadline.is_some_and(|deadline| deadline <= now))
            .map(|(_, state)| state)
            .collect();
        for state in overdue {
            self.give_up(&state);
            let message =
                format!("the request took longer than {:?}", self.options.request_timeout.unwrap_or_default());
            if let Some(waker) = state.fail(ErrorCode::Timeout, &message, &self.telemetry) {
                waker.wake();
            }
        }
    }
}

/// A place among the requests in flight, given back on drop.
struct Permit {
    shared: Arc<Shared>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The events of one request. Dropped before its end, it aborts the request.
pub struct EventStream {
    shared: Arc<Shared>,
    state: Arc<RequestState>,
    log: RequestLog,
    _permit: Permit,
}

impl EventStream {
    /// The request's id.
    pub fn rid(&self) -> &str {
        &self.state.rid
    }

    /// When a request that was lost with its worker may be sent again.
    pub fn retry_after(&self) -> Duration {
        self.shared.restart_wait(&self.shared.worker_view())
    }

    /// The next event, `None` after the end.
    pub async fn next_event(&mut self) -> Option<StreamEvent> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// Waits until there is something to read. Where that is an error, and nothing came before it, it is taken.
    pub async fn first_word(&mut self) -> Result<(), ServingError> {
        let word = std::future::poll_fn(|context| self.state.poll_first(context)).await;
        if let Err(error) = &word {
            self.log.note(&self.state, &StreamEvent::Error(error.clone()));
        }
        word
    }

    /// [`Self::next_event`] for hand-written streams.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        let polled = self.state.poll(&self.shared.text, context);
        if let Poll::Ready(Some(event)) = &polled {
            self.log.note(&self.state, event);
        }
        polled
    }
}

impl Stream for EventStream {
    type Item = StreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(context)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        // An end that came, and that nobody took, has had no line either.
        self.log.close(&self.state);
        if self.state.is_ended() {
            return;
        }
        self.shared.telemetry.disconnected.add(1);
        if self.shared.requests().remove(&self.state.rid).is_some() {
            self.shared.give_up(&self.state);
        }
    }
}

/// Request ids and seeds: a keyed hash of a count, which costs no system call and which nobody without the key guesses.
#[derive(Default)]
struct Draws {
    key: RandomState,
    count: AtomicU64,
}

impl Draws {
    fn next(&self) -> u64 {
        self.key.hash_one(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Diffulex's form: its prefix and 32 hexadecimal digits.
    fn rid(&self) -> String {
        format!("diffulex-{:016x}{:016x}", self.next(), self.next())
    }

    /// 53 bits, so that a JavaScript client can send the reported seed back.
    fn seed(&self) -> u64 {
        self.next() >> 11
    }
}

fn unavailable(message: &str, retry_after_s: u64) -> SubmitError {
    SubmitError::Unavailable { message: message.to_owned(), retry_after: Duration::from_secs(retry_after_s) }
}

/// A panic while a lock is held cannot leave these maps half-written, so poison is no reason to stop serving.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
