//! A link between two processes: two ZMQ PUSH/PULL pairs and MessagePack frames.
//!
//! The front end binds both addresses ([`bind`]), the worker connects ([`ZmqWorker::connect`]). ZMQ never reports the
//! death of a peer, so [`ZmqEvents`] also watches a descriptor that becomes readable when the worker's process ends.
//! Every socket has linger 0, high-water marks, a cap on message size and time-outs. Never here: processes, requests.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use diffulex_protocol::codec::{self, MAX_FRAME_BYTES};
use diffulex_protocol::{CodecError, EventBatch, ServingCommand};

use super::{CommandSender, EventReceiver, LinkError, Received, WorkerLink};

/// Messages a socket holds before it refuses more. Chosen by us: above every command that admission lets through, and
/// more batches than a front end can fall behind in [`SEND_DEADLINE`].
const HIGH_WATER_MARK: i32 = 16 * 1024;

/// How long a worker waits for a front end that takes no events. Chosen by us: the front end only routes, so one that
/// is silent this long is not coming back, and the worker must not hang on it.
const SEND_DEADLINE: Duration = Duration::from_secs(10);

/// How long a worker that leaves may take to hand over its last events. Chosen by us; a live front end takes below 1 ms.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The front end's two sockets, bound.
pub struct BoundSockets {
    commands: ::zmq::Socket,
    events: ::zmq::Socket,
}

/// Binds both addresses of a new link.
pub fn bind(context: &::zmq::Context, command_address: &str, event_address: &str) -> Result<BoundSockets, LinkError> {
    let commands = socket(context, ::zmq::PUSH)?;
    let events = socket(context, ::zmq::PULL)?;
    for (socket, address) in [(&commands, command_address), (&events, event_address)] {
        socket.bind(address).map_err(|error| LinkError::Lost(format!("cannot bind {address}: {error}")))?;
    }
    Ok(BoundSockets { commands, events })
}

impl BoundSockets {
    /// The two ends; `worker_end` becomes readable when the worker's process is gone.
    pub fn into_ends(self, worker_end: Option<OwnedFd>) -> (ZmqCommands, ZmqEvents) {
        (ZmqCommands { socket: Mutex::new(self.commands) }, ZmqEvents { socket: self.events, worker_end })
    }
}

/// [`CommandSender`] over a ZMQ PUSH socket. The lock is held for one non-blocking send.
pub struct ZmqCommands {
    socket: Mutex<::zmq::Socket>,
}

impl CommandSender for ZmqCommands {
    fn send(&self, command: ServingCommand) -> Result<(), LinkError> {
        let bytes = codec::encode_command(&command)?;
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.send(bytes, ::zmq::DONTWAIT).map_err(|error| match error {
            ::zmq::Error::EAGAIN => LinkError::Full,
            error => LinkError::Lost(error.to_string()),
        })
    }

    fn wait_connected(&self, within: Duration) -> Result<(), LinkError> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match socket.poll(::zmq::POLLOUT, as_millis(within)) {
            Ok(0) => Err(LinkError::Lost("the worker did not connect its command socket".to_owned())),
            Ok(_) => Ok(()),
            Err(error) => Err(LinkError::Lost(error.to_string())),
        }
    }
}

/// [`EventReceiver`] over a ZMQ PULL socket.
pub struct ZmqEvents {
    socket: ::zmq::Socket,
    worker_end: Option<OwnedFd>,
}

impl ZmqEvents {
    fn take(&self) -> Option<Received> {
        match self.socket.recv_msg(::zmq::DONTWAIT) {
            Ok(message) => Some(match codec::decode_batch(&message) {
                Ok(batch) => Received::Batch(batch),
                Err(error) => Received::Malformed(error.to_string()),
            }),
            Err(::zmq::Error::EAGAIN | ::zmq::Error::EINTR) => None,
            Err(error) => Some(Received::Lost(error.to_string())),
        }
    }
}

impl EventReceiver for ZmqEvents {
    fn receive(&mut self, timeout: Duration) -> Received {
        if let Some(received) = self.take() {
            return received;
        }
        let mut items = vec![self.socket.as_poll_item(::zmq::POLLIN)];
        if let Some(worker_end) = &self.worker_end {
            items.push(::zmq::PollItem::from_fd(worker_end.as_raw_fd(), ::zmq::POLLIN));
        }
        match ::zmq::poll(&mut items, as_millis(timeout)) {
            Ok(_) | Err(::zmq::Error::EINTR) => {}
            Err(error) => return Received::Lost(error.to_string()),
        }
        let worker_ended = items.get(1).is_some_and(::zmq::PollItem::is_readable);
        drop(items);
        // What a worker sent before it died counts, so the socket is asked first.
        match self.take() {
            Some(received) => received,
            None if worker_ended => Received::Lost("the worker process ended".to_owned()),
            None => Received::Quiet,
        }
    }
}

/// [`WorkerLink`] over ZMQ.
pub struct ZmqWorker {
    commands: ::zmq::Socket,
    events: ::zmq::Socket,
    malformed: u64,
}

impl ZmqWorker {
    /// Connects to the addresses a front end has bound.
    pub fn connect(context: &::zmq::Context, command_address: &str, event_address: &str) -> Result<Self, LinkError> {
        let commands = socket(context, ::zmq::PULL)?;
        let events = socket(context, ::zmq::PUSH)?;
        for (socket, address) in [(&commands, command_address), (&events, event_address)] {
            socket.connect(address).map_err(|error| LinkError::Lost(format!("cannot connect {address}: {error}")))?;
        }
        // The last words of a worker (its requests' errors, `Goodbye`) must get out before the process ends.
        events.set_linger(LAST_WORDS.as_millis() as i32).map_err(|error| LinkError::Lost(error.to_string()))?;
        Ok(Self { commands, events, malformed: 0 })
    }

    fn take(&mut self) -> Result<Option<ServingCommand>, LinkError> {
        loop {
            match self.commands.recv_msg(::zmq::DONTWAIT) {
                Ok(message) => match codec::decode_command(&message) {
                    Ok(command) => return Ok(Some(command)),
                    Err(error) => {
                        self.malformed += 1;
                        // The first, then every power of two: a flood must not fill the log.
                        if self.malformed.is_power_of_two() {
                            tracing::warn!(count = self.malformed, %error, "a frame that is no command was dropped");
                        }
                    }
                },
                Err(::zmq::Error::EAGAIN) => return Ok(None),
                Err(::zmq::Error::EINTR) => {}
                Err(error) => return Err(LinkError::Lost(error.to_string())),
            }
        }
    }
}

impl WorkerLink for ZmqWorker {
    fn receive(&mut self, wait: Duration) -> Result<Vec<ServingCommand>, LinkError> {
        let mut commands = Vec::new();
        let deadline = Instant::now() + wait;
        loop {
            while let Some(command) = self.take()? {
                commands.push(command);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !commands.is_empty() || left.is_zero() {
                return Ok(commands);
            }
            match self.commands.poll(::zmq::POLLIN, as_millis(left)) {
                Ok(_) | Err(::zmq::Error::EINTR) => {}
                Err(error) => return Err(LinkError::Lost(error.to_string())),
            }
        }
    }

    fn send(&mut self, mut batch: EventBatch) -> Result<(), LinkError> {
        let bytes = match codec::encode_batch(&batch) {
            // All events of a step together may be more than one message carries.
            Err(CodecError::TooLarge { .. }) if batch.events.len() > 1 => {
                let rest = batch.events.split_off(batch.events.len() / 2);
                let incarnation = batch.incarnation;
                self.send(batch)?;
                return self.send(EventBatch { incarnation, events: rest });
            }
            encoded => encoded?,
        };
        self.events.send(bytes, 0).map_err(|error| match error {
            ::zmq::Error::EAGAIN => LinkError::Lost(format!("no event was taken for {SEND_DEADLINE:?}")),
            error => LinkError::Lost(error.to_string()),
        })
    }
}

fn socket(context: &::zmq::Context, kind: ::zmq::SocketType) -> Result<::zmq::Socket, LinkError> {
    let build = || -> ::zmq::Result<::zmq::Socket> {
        let socket = context.socket(kind)?;
        // The default of -1 makes a drop wait for ever for a dead peer.
        socket.set_linger(0)?;
        socket.set_sndhwm(HIGH_WATER_MARK)?;
        socket.set_rcvhwm(HIGH_WATER_MARK)?;
        socket.set_maxmsgsize(MAX_FRAME_BYTES as i64)?;
        socket.set_sndtimeo(SEND_DEADLINE.as_millis() as i32)?;
        socket.set_rcvtimeo(SEND_DEADLINE.as_millis() as i32)?;
        Ok(socket)
    };
    build().map_err(|error| LinkError::Lost(format!("cannot make a socket: {error}")))
}

/// Rounded up, so that a wait that is not over does not become a busy loop.
fn as_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(i64::MAX)
}
