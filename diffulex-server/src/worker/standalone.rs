//! A worker that its operator starts: it listens at a place and serves whichever front end attaches, one after the other.
//!
//! The other side is [`crate::worker::attached`]. The loop is [`crate::worker::drive::run`], once for each front end; what a front
//! end leaves behind ends before the next is served. Never here: requests, how an engine is loaded.

use std::io;
use std::time::Duration;

use diffulex_engine::{LoadError, ServingEngine};
use diffulex_protocol::{ErrorCode, ServingCommand};
use rustix::fs::Mode;
use rustix::process::umask;

use crate::link::address::AddressError;
use crate::link::place::{Place, PlaceError};
use crate::link::zmq::{ZmqContext, ZmqWorker};
use crate::link::{LinkError, WorkerLink};
use crate::os::panics::record_panics;
use crate::worker::drive::{self, EndOrder, Served, WorkerError, WorkerOptions};

/// How long one look for a front end takes. Chosen by us: an order to end is seen as much later at most; a command ends it.
const LOOK: Duration = Duration::from_millis(500);

/// A worker that cannot listen, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum StandaloneError {
    /// Its place is not what it should be.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A socket cannot be at its address.
    #[error("cannot listen at {place}: {error}")]
    Address {
        /// `--listen`.
        place: Place,
        /// Why not.
        error: AddressError,
    },
    /// Its sockets cannot be opened, or used.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// It could not be told to end.
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
    /// The model could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The engine failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// How a worker listens.
#[derive(Clone, Debug)]
pub struct StandaloneOptions {
    /// Where.
    pub place: Place,
    /// Other users may reach it.
    pub may_be_shared: bool,
    /// Longest silence while a front end is attached.
    pub heartbeat_interval: Duration,
    /// Ends the worker.
    pub end_order: EndOrder,
}

/// Serves until it is told to end or the engine fails; `on_listening` is called when front ends may attach.
pub fn run(
    options: StandaloneOptions,
    make_engine: impl FnOnce() -> Result<Box<dyn ServingEngine>, LoadError>,
    on_listening: impl FnOnce() -> io::Result<()>,
) -> Result<(), StandaloneError> {
    // What a worker makes, its sockets above all, is for this user alone.
    umask(Mode::RWXG | Mode::RWXO);
    let StandaloneOptions { place, may_be_shared, heartbeat_interval, end_order } = options;
    place.prepare(may_be_shared)?;
    // Before the model loads, which may take long.
    for address in [&place.commands, &place.events] {
        address.try_listen().map_err(|error| StandaloneError::Address { place: place.clone(), error })?;
    }
    let mut options = WorkerOptions {
        incarnation: 0,
        pid: std::process::id(),
        heartbeat_interval,
        last_panic: record_panics(),
        may_be_replaced: true,
        end_order: end_order.clone(),
    };
    let mut engine = make_engine()?;
    let context = ZmqContext::new()?;
    let mut link = ZmqWorker::open(&context, &place.commands, &place.events)?;
    on_listening().map_err(StandaloneError::Signals)?;
    let mut attached = None;
    loop {
        options.incarnation = match attached.take() {
            Some(incarnation) => incarnation,
            None => match next_front_end(&mut link, &end_order)? {
                Some(incarnation) => incarnation,
                None => return Ok(()),
            },
        };
        tracing::info!("a front end has attached");
        match drive::run(engine.as_mut(), &mut link, &options) {
            Ok(Served::Shutdown) if end_order.is_given() => return Ok(()),
            Ok(Served::Shutdown) => tracing::info!("the front end has left"),
            Ok(Served::Replaced { incarnation }) => {
                tracing::warn!("another front end has attached; what the one before left behind is ended");
                attached = Some(incarnation);
            }
            Err(WorkerError::Link(error)) => tracing::warn!(%error, "the front end is gone"),
            Err(error) => return Err(error.into()),
        }
        // Nobody waits for them any more.
        drop(engine.fail_all(ErrorCode::ShuttingDown, "the front end is gone"));
    }
}

/// Waits for a front end; commands that one before it has left are worth nothing. `None` once there is an order to end.
fn next_front_end(link: &mut ZmqWorker, end_order: &EndOrder) -> Result<Option<u64>, LinkError> {
    while !end_order.is_given() {
        let commands = link.receive(LOOK)?;
        drop(link.refusals());
        let attached = commands.into_iter().rev().find_map(|command| match command {
            ServingCommand::Attach { incarnation } => Some(incarnation),
            _ => None,
        });
        if attached.is_some() {
            return Ok(attached);
        }
    }
    Ok(None)
}
