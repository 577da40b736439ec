//! The events of one request as a stream, which aborts the request when it is dropped before the end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use diffulex_protocol::ServingError;
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream;

use super::Shared;
use super::request_log::RequestLog;
use super::request_state::{RequestState, StreamEvent};

/// A place among the requests in flight, given back on drop.
pub(super) struct Permit {
    shared: Arc<Shared>,
}

impl Permit {
    /// `shared` counts it already.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The pace of a reader that takes only so many snapshots a second.
pub(super) struct Pace {
    interval: Duration,
    /// Runs out when the next one may come; none has come yet where there is none.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    /// At most `fps` a second.
    pub(super) fn new(fps: f32) -> Self {
        /// Stands for a pace that is none, and keeps sums with the clock in range. Chosen by us.
        const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

        let interval = Duration::try_from_secs_f32(fps.recip()).unwrap_or(LONGEST).min(LONGEST);
        Self { interval, timer: None }
    }

    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.timer.as_mut().map_or(Poll::Ready(()), |timer| timer.as_mut().poll(context))
    }

    fn restart(&mut self) {
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(Instant::now() + self.interval),
            None => self.timer = Some(Box::pin(tokio::time::sleep(self.interval))),
        }
    }
}

/// The events of one request. Dropped before its end, it aborts the request.
pub struct EventStream {
    pub(super) shared: Arc<Shared>,
    pub(super) state: Arc<RequestState>,
    pub(super) log: RequestLog,
    /// Tokens that the client gave.
    pub(super) n_given: u32,
    pub(super) pace: Option<Pace>,
    pub(super) _permit: Permit,
}

impl EventStream {
    /// The request's id, as its client knows it.
    pub fn rid(&self) -> &str {
        self.state.public_id()
    }

    /// Tokens of the prompt, as `usage` counts them: with the suffix, without masks.
    pub fn prompt_tokens(&self) -> u32 {
        self.n_given
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
    pub async fn first_event(&mut self) -> Result<(), ServingError> {
        let word = std::future::poll_fn(|context| self.state.poll_first(context)).await;
        if let Err(error) = &word {
            self.log.note(&self.state, &StreamEvent::Error(error.clone()));
        }
        word
    }

    /// [`Self::next_event`] for hand-written streams.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        if let Some(pace) = &mut self.pace {
            // At the end everything is due at once.
            if self.state.poll_end(context).is_pending() && pace.poll_due(context).is_pending() {
                return Poll::Pending;
            }
            self.state.fold(&self.shared.telemetry);
        }
        let polled = self.state.poll(&self.shared.text, context);
        if let (Some(pace), Poll::Ready(Some(StreamEvent::Snapshot(_)))) = (&mut self.pace, &polled) {
            pace.restart();
        }
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
        // An end that arrived but was not read has not been logged yet.
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
