//! A worker that its operator starts: it listens at a place and serves whichever front end attaches, one after the other.
//!
//! The other side is [`crate::attached_worker`]. The loop is [`crate::worker::run`], once for each front end; what a front
//! end leaves behind ends before the next is served. Never here: requests, how an engine is loaded.

use std::time::Duration;

use diffulex_engine::{LoadError, ServingEngine};
use diffulex_protocol::{ErrorCode, ServingCommand};
use rustix::fs::Mode;
use rustix::process::umask;

use crate::link::address::AddressError;
use crate::link::place::{Place, PlaceError};
use crate::link::zmq::{ZmqContext, ZmqWorker};
use crate::link::{LinkError, WorkerLink};
use crate::panics::record_panics;
use crate::worker::{self, Served, WorkerError, WorkerOptions};

/// How long one look for a front end takes. Chosen by us; a command ends it.
const LOOK: Duration = Duration::from_secs(60);

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
}

/// Serves until the engine fails; `announce` is told when front ends may attach.
pub fn run(
    options: StandaloneOptions,
    make_engine: impl FnOnce() -> Result<Box<dyn ServingEngine>, LoadError>,
    announce: impl FnOnce(),
) -> Result<(), StandaloneError> {
    // What a worker makes, its sockets above all, is for this user alone.
    umask(Mode::RWXG | Mode::RWXO);
    let StandaloneOptions { place, may_be_shared, heartbeat_interval } = options;
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
    };
    let mut engine = make_engine()?;
    let context = ZmqContext::new()?;
    let mut link = ZmqWorker::open(&context, &place.commands, &place.events)?;
    announce();
    let mut attached = None;
    loop {
        options.incarnation = match attached.take() {
            Some(incarnation) => incarnation,
            None => next_front_end(&mut link)?,
        };
        tracing::info!("a front end has attached");
        match worker::run(engine.as_mut(), &mut link, &options) {
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

/// Waits for a front end; commands that one before it has left are worth nothing.
fn next_front_end(link: &mut ZmqWorker) -> Result<u64, LinkError> {
    loop {
        let commands = link.receive(LOOK)?;
        drop(link.refusals());
        let attached = commands.into_iter().rev().find_map(|command| match command {
            ServingCommand::Attach { incarnation } => Some(incarnation),
            _ => None,
        });
        if let Some(incarnation) = attached {
            return Ok(incarnation);
        }
    }
}
