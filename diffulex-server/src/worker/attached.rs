//! A worker that this front end did not start: how it attaches to one, notices its loss, and attaches again.
//!
//! The other side is [`crate::worker::standalone`]. Nothing here ends the worker: the front end leaves it as it found it. A
//! worker of another model is refused ([`ExpectedModel`]).
//! Never here: requests, processes.

use std::sync::Arc;
use std::time::Duration;

use diffulex_protocol::{ServingCommand, ServingEvent};

use crate::frontend::{StartError, WorkerHandle, WorkerParts, WorkerStarter};
use crate::link::place::{Place, PlaceError, PlaceLock};
use crate::link::zmq::{self as zmq_link, ZmqCommands, ZmqContext, ZmqEvents};
use crate::link::{CommandSender, EventReceiver, LinkError, Received};
use crate::worker::expected_model::ExpectedModel;

/// A place that no front end can attach at.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Its folder is not what it should be.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// ZMQ cannot start.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Attaches to the worker that listens at a place, as often as it has to.
pub struct AttachedWorker {
    place: Place,
    model: Arc<ExpectedModel>,
    context: ZmqContext,
    _lock: PlaceLock,
}

impl AttachedWorker {
    /// The worker of `model` at `place`, which may start later. Refuses a place at which another front end is.
    pub fn new(place: Place, may_be_shared: bool, model: ExpectedModel) -> Result<Self, AttachError> {
        place.prepare(may_be_shared)?;
        let lock = place.lock()?;
        Ok(Self { place, model: Arc::new(model), context: ZmqContext::new()?, _lock: lock })
    }
}

impl WorkerStarter for AttachedWorker {
    fn start(&mut self, incarnation: u64) -> Result<WorkerParts, StartError> {
        let sockets = zmq_link::open(&self.context, &self.place.commands, &self.place.events)?;
        let (commands, events) = sockets.into_watched_ends(&self.context, incarnation)?;
        let commands = Arc::new(commands);
        let model = Arc::clone(&self.model);
        let greeting = Greeting { commands: Arc::clone(&commands), events, incarnation, model, is_sent: false };
        let handle = Box::new(Attachment { commands: Arc::clone(&commands) });
        Ok(WorkerParts { commands, events: Box::new(greeting), handle })
    }
}

/// Events of a worker, which is told first for whom it works.
struct Greeting {
    commands: Arc<ZmqCommands>,
    events: ZmqEvents,
    incarnation: u64,
    model: Arc<ExpectedModel>,
    is_sent: bool,
}

impl Greeting {
    /// Replaces the greeting of a worker with another model by a refusal.
    fn checked(&self, received: Received) -> Received {
        let events = match &received {
            Received::Batch(batch) if batch.incarnation == self.incarnation => batch.events.as_slice(),
            _ => &[],
        };
        let mismatch = events.iter().find_map(|event| match event {
            ServingEvent::Ready(ready) => self.model.check(ready).err(),
            _ => None,
        });
        mismatch.map_or(received, |mismatch| Received::Refused(mismatch.to_string()))
    }
}

impl EventReceiver for Greeting {
    fn receive(&mut self, timeout: Duration) -> Received {
        if self.is_sent {
            let received = self.events.receive(timeout);
            return self.checked(received);
        }
        // The worker may not have started yet, and there is no other end to lose before it has.
        if self.commands.wait_connected(timeout).is_err() {
            return Received::Quiet;
        }
        match self.commands.send(ServingCommand::Attach { incarnation: self.incarnation }) {
            Ok(()) => {
                self.is_sent = true;
                Received::Quiet
            }
            Err(LinkError::Full) => Received::Quiet,
            Err(error) => Received::Lost(error.to_string()),
        }
    }
}

struct Attachment {
    commands: Arc<ZmqCommands>,
}

impl WorkerHandle for Attachment {
    /// Attaching again is all there is to do, and it does not matter in which state the worker is.
    fn can_end(&self) -> bool {
        true
    }

    /// The worker ends what it has of this front end, and listens for the next.
    fn end(self: Box<Self>) -> String {
        // One that is gone has nothing left.
        let _ = self.commands.send(ServingCommand::Shutdown { grace_ms: Some(0) });
        String::new()
    }
}
