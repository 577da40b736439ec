//! The thread that keeps a worker: starts it, takes its events, notices its death and starts it again.
//!
//! In: a [`WorkerStarter`]. Out: routed events, the worker's status. Starts are numbered, and events of another number
//! than the current one are dropped. It waits on the link alone, which reports a dead worker at once, and looks at its
//! orders (stop, deadlines) ten times a second. Never here: requests' contents, HTTP.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use diffulex_protocol::{ErrorCode, EventBatch, PROTOCOL_VERSION, Ready, ServingEvent};

use super::{Shared, WorkerStatus};
use crate::link::{CommandSender, EventReceiver, Received};

/// How often orders and deadlines are looked at. Chosen by us: a deadline is late by this much at most.
const ORDERS_INTERVAL: Duration = Duration::from_millis(100);

/// Pauses between restarts; the last one repeats. Chosen by us: a crash is over at once, a crash loop must not burn a
/// core loading weights.
const BACK_OFF: [Duration; 8] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
    Duration::from_secs(30),
];

/// A worker that ran this long before it died starts the back-off anew. Chosen by us.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// How long a ready worker may take to connect for commands. Chosen by us; measured at 2 ms.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Starts workers.
pub trait WorkerStarter: Send {
    /// Starts one that stamps `incarnation` on its events. Returns before it is loaded.
    fn start(&mut self, incarnation: u64) -> Result<WorkerParts, String>;
}

/// A started worker: both ends of its link, and a hold on its life.
pub struct WorkerParts {
    /// Where its commands go.
    pub commands: Arc<dyn CommandSender>,
    /// Where its events come from.
    pub events: Box<dyn EventReceiver>,
    /// Its life.
    pub handle: Box<dyn WorkerHandle>,
}

/// A hold on the life of a worker.
pub trait WorkerHandle: Send {
    /// Ends the worker if it has not ended, and says how it ended.
    fn end(self: Box<Self>) -> String;
}

/// How a worker's service ended.
enum Ended {
    /// It was told to.
    Asked,
    /// It was not.
    Lost(String),
}

pub(super) fn supervise(shared: &Arc<Shared>, mut starter: Box<dyn WorkerStarter>) {
    let mut n_failures = 0;
    for incarnation in 1.. {
        let started = Instant::now();
        let reason = match starter.start(incarnation) {
            Ok(parts) => match keep(shared, incarnation, parts) {
                Ended::Asked => break,
                Ended::Lost(reason) => reason,
            },
            Err(reason) => reason,
        };
        if is_stopping(shared) {
            break;
        }
        if shared.worker_view().card.is_none() {
            // Wrong model, wrong flags: trying again would say the same again.
            shared.status.send_replace(WorkerStatus::Failed { reason: reason.clone() });
            shared.fail_all(ErrorCode::EngineLost, &reason);
            return;
        }
        if started.elapsed() >= STABLE_AFTER {
            n_failures = 0;
        }
        let pause = BACK_OFF[n_failures.min(BACK_OFF.len() - 1)];
        n_failures += 1;
        shared.telemetry.worker_restarts.add(1);
        tracing::error!(%reason, ?pause, "the engine was lost and is started again");
        if !pause_unless_stopping(shared, pause) {
            break;
        }
    }
    shared.fail_all(ErrorCode::ShuttingDown, "the server is shutting down");
    shared.status.send_replace(WorkerStatus::Stopped);
}

/// Serves with one worker until it ends.
fn keep(shared: &Shared, incarnation: u64, parts: WorkerParts) -> Ended {
    let WorkerParts { commands, mut events, handle } = parts;
    let mut ready_deadline = Some(Instant::now() + shared.options.startup_timeout);
    let mut next_orders = Instant::now() + ORDERS_INTERVAL;
    let ended = loop {
        match events.receive(ORDERS_INTERVAL) {
            Received::Batch(batch) if batch.incarnation != incarnation => {
                shared.telemetry.stale_events.add(batch.events.len() as u64);
            }
            Received::Batch(mut batch) => {
                let news = news_of(&mut batch);
                if let Some(ready) = news.ready {
                    match welcome(shared, incarnation, &ready, &commands) {
                        Ok(()) => ready_deadline = None,
                        Err(reason) => break Ended::Lost(reason),
                    }
                }
                shared.route(batch);
                if let Some(message) = news.fatal {
                    break Ended::Lost(message);
                }
                if news.goodbye {
                    let is_asked = is_stopping(shared);
                    break if is_asked { Ended::Asked } else { Ended::Lost("the worker left unasked".to_owned()) };
                }
            }
            Received::Malformed(reason) => {
                shared.telemetry.malformed_frames.add(1);
                // The first, then every power of two: a flood must not fill the log.
                let count = shared.telemetry.malformed_frames.get();
                if count.is_power_of_two() {
                    tracing::warn!(count, reason, "a frame that is no event was dropped");
                }
            }
            Received::Quiet => {}
            Received::Lost(reason) => break Ended::Lost(reason),
        }
        let now = Instant::now();
        if now >= next_orders {
            next_orders = now + ORDERS_INTERVAL;
            shared.fail_overdue(now);
            if shared.stop_now.load(Ordering::Acquire) {
                break Ended::Asked;
            }
            if ready_deadline.is_some_and(|deadline| now >= deadline) {
                break Ended::Lost(format!("the model did not load within {:?}", shared.options.startup_timeout));
            }
        }
    };
    dismiss(shared, handle, ended)
}

/// Takes a dead or leaving worker out of service: no new request reaches it, and every open one is told.
fn dismiss(shared: &Shared, handle: Box<dyn super::WorkerHandle>, ended: Ended) -> Ended {
    shared.worker_view_mut().commands = None;
    *super::lock(&shared.profile_waiter) = None;
    shared.adapters.worker_lost();
    match ended {
        Ended::Asked => {
            shared.fail_all(ErrorCode::ShuttingDown, "the server is shutting down");
            tracing::debug!(end = handle.end(), "the worker left");
            Ended::Asked
        }
        Ended::Lost(reason) => {
            // Clients first: reaping a process may take a moment.
            let was_serving = shared.worker_view().card.is_some();
            if was_serving && !is_stopping(shared) {
                shared.status.send_replace(WorkerStatus::Restarting { reason: reason.clone() });
            }
            let message =
                format!("the engine was lost while it worked on this request ({reason}); it is safe to retry");
            shared.fail_all(ErrorCode::EngineLost, &message);
            Ended::Lost(format!("{reason} ({})", handle.end()))
        }
    }
}

/// What a batch says about the worker itself.
#[derive(Default)]
struct News {
    ready: Option<Box<Ready>>,
    fatal: Option<String>,
    goodbye: bool,
}

fn news_of(batch: &mut EventBatch) -> News {
    let mut news = News::default();
    for event in &batch.events {
        match event {
            ServingEvent::Ready(ready) => news.ready = Some(ready.clone()),
            ServingEvent::Fatal { message } => news.fatal = Some(message.clone()),
            ServingEvent::Goodbye => news.goodbye = true,
            ServingEvent::Delta(_)
            | ServingEvent::BufferSnapshot(_)
            | ServingEvent::Reply(_)
            | ServingEvent::Error(_)
            | ServingEvent::Heartbeat { .. }
            | ServingEvent::ProfileReply { .. }
            | ServingEvent::AdapterReply { .. } => {}
        }
    }
    news
}

/// Takes a loaded worker into service.
fn welcome(shared: &Shared, incarnation: u64, ready: &Ready, commands: &Arc<dyn CommandSender>) -> Result<(), String> {
    if ready.protocol_version != PROTOCOL_VERSION {
        return Err(format!(
            "the worker (build {}) speaks protocol {}, this front end {PROTOCOL_VERSION}",
            ready.build, ready.protocol_version
        ));
    }
    if ready.boot_nonce != incarnation {
        return Err(format!("the worker answers to start {}, expected {incarnation}", ready.boot_nonce));
    }
    commands.wait_connected(CONNECT_DEADLINE).map_err(|error| error.to_string())?;
    for command in shared.adapters.missed() {
        commands.send(command).map_err(|error| error.to_string())?;
    }
    {
        let mut view = shared.worker_view_mut();
        view.commands = Some(Arc::clone(commands));
        view.card = Some(Arc::new(ready.model.clone()));
        view.last_heard = Instant::now();
    }
    shared.status.send_replace(WorkerStatus::Running);
    Ok(())
}

fn is_stopping(shared: &Shared) -> bool {
    shared.draining.load(Ordering::Acquire)
}

/// Waits for `pause`; false as soon as the server is to stop.
fn pause_unless_stopping(shared: &Shared, pause: Duration) -> bool {
    let end = Instant::now() + pause;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if is_stopping(shared) {
            return false;
        }
        if left.is_zero() {
            return true;
        }
        std::thread::park_timeout(left.min(ORDERS_INTERVAL));
    }
}
