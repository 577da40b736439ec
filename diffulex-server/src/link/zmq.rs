//! A link between two processes: two ZMQ PUSH/PULL pairs and MessagePack frames.
//!
//! Who binds: the worker a socket that is a file, the front end one of TCP. libzmq aborts the process that accepts on a
//! file when it has no descriptor left (ipc_listener.cpp, `accept`), and of the two only the front end can be brought
//! there, by its clients; a connection that cannot be made is tried again. TCP has no such fault, and there the side that
//! sends commands binds, so that nobody else can send them.
//!
//! ZMQ never reports the death of a peer, so [`ZmqEvents`] also watches a descriptor that becomes readable when the
//! worker's process ends. Every socket has linger 0, high-water marks, a cap on message size and time-outs. Never here:
//! processes, requests.

use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use diffulex_protocol::codec::{self, MAX_FRAME_BYTES};
use diffulex_protocol::{CodecError, EventBatch, ServingCommand, ServingError};

use super::address::Address;
use super::{CommandSender, EventReceiver, LinkError, Received, WorkerLink};
use crate::os::locks::lock;
use crate::os::platform::ProcessEnd;

/// Messages a socket holds before it refuses more. Chosen by us: above every command that admission lets through, and
/// more batches than a front end can fall behind in [`SEND_DEADLINE`].
const HIGH_WATER_MARK: i32 = 16 * 1024;

/// How long a worker waits for a front end that takes no events. Chosen by us: the front end only routes, so one that
/// is silent this long is not coming back, and the worker must not hang on it.
const SEND_DEADLINE: Duration = Duration::from_secs(10);

/// How long a worker that leaves may take to hand over its last events. Chosen by us; a live front end takes below 1 ms.
const LAST_EVENTS_DEADLINE: Duration = Duration::from_secs(1);

/// How long messages of a worker that has ended may take to arrive. Chosen by us: they are in this machine's memory, and only
/// wait for a thread to run; a loss is noticed so much later.
const LAST_ARRIVAL: Duration = Duration::from_millis(100);

/// How long the last report about a connection may take. Chosen by us; without load it takes below 1 ms.
const LAST_REPORT_DEADLINE: Duration = Duration::from_secs(10);

/// Size of the first part of a report: 16 bits of its kind, 32 of a value (zmq_socket_monitor(3)).
const REPORT_BYTES: usize = 6;

/// How soon a side that connects tries again. Chosen by us: a new worker binds some 10 ms after its start.
const RECONNECT_INTERVAL_MS: i32 = 10;

/// The context of all sockets of a process.
pub struct ZmqContext {
    context: ::zmq::Context,
}

impl ZmqContext {
    /// Starts the threads that move messages, which fails only for want of descriptors; later, it would abort.
    pub fn new() -> Result<Self, LinkError> {
        let context = ::zmq::Context::new();
        call(|| context.socket(::zmq::PULL)).map_err(|why| why.lost("cannot start ZMQ"))?;
        Ok(Self { context })
    }
}

/// Which end of a link a socket is for.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    FrontEnd,
    Worker,
}

/// Why a call into ZMQ gave nothing.
enum Refused {
    /// There is nothing to do now.
    Again,
    Interrupted,
    Failed(String),
}

impl Refused {
    fn lost(self, what: &str) -> LinkError {
        LinkError::Lost(match self {
            Self::Again => format!("{what}: it took too long"),
            Self::Interrupted => format!("{what}: it was interrupted"),
            Self::Failed(why) => format!("{what}: {why}"),
        })
    }
}

/// The one way into the `zmq` crate. It panics on every error number that it does not list (ENOSPC, EROFS, ENOTDIR, EPERM
/// and others; `Error::from_raw`), and what a socket says must never end a thread.
fn call<T>(call: impl FnOnce() -> ::zmq::Result<T>) -> Result<T, Refused> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(::zmq::Error::EAGAIN)) => Err(Refused::Again),
        Ok(Err(::zmq::Error::EINTR)) => Err(Refused::Interrupted),
        Ok(Err(error)) => Err(Refused::Failed(error.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(Refused::Failed(text.unwrap_or("ZMQ panicked").to_owned()))
        }
    }
}

/// The front end's two sockets.
pub struct FrontEndSockets {
    commands: ::zmq::Socket,
    events: ::zmq::Socket,
}

/// The front end's side of a new link.
pub fn open(context: &ZmqContext, commands: &Address, events: &Address) -> Result<FrontEndSockets, LinkError> {
    Ok(FrontEndSockets {
        commands: socket(context, ::zmq::PUSH, commands, Side::FrontEnd)?,
        events: socket(context, ::zmq::PULL, events, Side::FrontEnd)?,
    })
}

impl FrontEndSockets {
    /// The two ends; `worker_end` becomes readable when the worker's process is gone.
    pub fn into_ends(self, worker_end: Option<Arc<ProcessEnd>>) -> (ZmqCommands, ZmqEvents) {
        let worker_end = worker_end.map_or(WorkerEnd::Unseen, WorkerEnd::Process);
        (ZmqCommands { socket: Mutex::new(self.commands) }, ZmqEvents { socket: self.events, worker_end })
    }

    /// The two ends, of which that of events notices when the worker's connection ends. For a worker whose process is
    /// nobody's here. `key` tells links of the same `context` apart.
    pub fn into_watched_ends(self, context: &ZmqContext, key: u64) -> Result<(ZmqCommands, ZmqEvents), LinkError> {
        let place = format!("inproc://monitor-{key:016x}");
        let watch = || -> ::zmq::Result<::zmq::Socket> {
            let reported = ::zmq::SocketEvent::DISCONNECTED as u16 | ::zmq::SocketEvent::MONITOR_STOPPED as u16;
            self.events.monitor(&place, reported.into())?;
            let monitor = context.context.socket(::zmq::PAIR)?;
            monitor.set_linger(0)?;
            monitor.connect(&place)?;
            Ok(monitor)
        };
        let monitor = call(watch).map_err(|why| why.lost("cannot watch a connection"))?;
        let events = ZmqEvents { socket: self.events, worker_end: WorkerEnd::Connection(Monitor(monitor)) };
        Ok((ZmqCommands { socket: Mutex::new(self.commands) }, events))
    }
}

/// Something that becomes readable when a worker is gone.
enum WorkerEnd {
    /// Nothing does.
    Unseen,
    /// A descriptor of its process.
    Process(Arc<ProcessEnd>),
    /// The connection to it is watched.
    Connection(Monitor),
}

/// A socket to which ZMQ reports the end of a connection.
struct Monitor(::zmq::Socket);

impl Drop for Monitor {
    /// Waits for the last report, which comes once the watched socket is gone. ZMQ's thread waits for ever to hand a report to a
    /// monitor that is closed, and no other socket of the context would go on.
    fn drop(&mut self) {
        let deadline = Instant::now() + LAST_REPORT_DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match call(|| self.0.poll(::zmq::POLLIN, as_millis(left))) {
                Ok(0) if left.is_zero() => return tracing::error!("ZMQ did not end the watch of a connection"),
                Ok(_) | Err(Refused::Again | Refused::Interrupted) => {}
                Err(_) => return,
            }
            // The kind of a report is the first two bytes of its first part.
            while let Ok(report) = call(|| self.0.recv_bytes(::zmq::DONTWAIT)) {
                let kind = report.first_chunk().map(|kind| u16::from_ne_bytes(*kind));
                if report.len() == REPORT_BYTES && kind == Some(::zmq::SocketEvent::MONITOR_STOPPED as u16) {
                    return;
                }
            }
        }
    }
}

impl WorkerEnd {
    fn poll_item(&self) -> Option<::zmq::PollItem<'_>> {
        match self {
            Self::Unseen => None,
            Self::Process(end) => Some(::zmq::PollItem::from_fd(end.as_raw_fd(), ::zmq::POLLIN)),
            Self::Connection(Monitor(monitor)) => Some(monitor.as_poll_item(::zmq::POLLIN)),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Unseen | Self::Process(_) => "the worker process ended",
            Self::Connection(_) => "the worker closed its connection",
        }
    }
}

/// [`CommandSender`] over a ZMQ PUSH socket. The lock is held for one non-blocking send.
pub struct ZmqCommands {
    socket: Mutex<::zmq::Socket>,
}

impl CommandSender for ZmqCommands {
    fn send(&self, command: ServingCommand) -> Result<(), LinkError> {
        let bytes = codec::encode_command(&command)?;
        let socket = lock(&self.socket);
        call(|| socket.send(bytes, ::zmq::DONTWAIT)).map_err(|why| match why {
            Refused::Again => LinkError::Full,
            why => why.lost("a command was not sent"),
        })
    }

    fn wait_connected(&self, within: Duration) -> Result<(), LinkError> {
        let socket = lock(&self.socket);
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match call(|| socket.poll(::zmq::POLLOUT, as_millis(left))) {
                Ok(0) => return Err(LinkError::Lost("the worker's command socket was not reached".to_owned())),
                Ok(_) => return Ok(()),
                Err(Refused::Interrupted) => {}
                Err(why) => return Err(why.lost("cannot wait for the worker's command socket")),
            }
        }
    }
}

/// [`EventReceiver`] over a ZMQ PULL socket.
pub struct ZmqEvents {
    // Dropped before its monitor, which waits for that.
    socket: ::zmq::Socket,
    worker_end: WorkerEnd,
}

impl ZmqEvents {
    fn take(&self) -> Option<Received> {
        match call(|| self.socket.recv_msg(::zmq::DONTWAIT)) {
            Ok(message) => Some(match codec::decode_batch(&message) {
                Ok(batch) => Received::Batch(batch),
                Err(error) => match diffulex_protocol::salvage(&message) {
                    Some(salvaged) => Received::Damaged(salvaged),
                    None => Received::Malformed(error.to_string()),
                },
            }),
            Err(Refused::Again | Refused::Interrupted) => None,
            Err(why) => Some(lost(why, "no event can be received")),
        }
    }

    /// A message of a worker that has ended, which ZMQ's thread may not have read from its socket yet.
    fn take_last(&self) -> Received {
        // An error leaves nothing to take.
        let _ = call(|| self.socket.poll(::zmq::POLLIN, as_millis(LAST_ARRIVAL)));
        self.take().unwrap_or_else(|| Received::Lost(self.worker_end.reason().to_owned()))
    }
}

impl EventReceiver for ZmqEvents {
    fn receive(&mut self, timeout: Duration) -> Received {
        if let Some(received) = self.take() {
            return received;
        }
        let mut items = vec![self.socket.as_poll_item(::zmq::POLLIN)];
        items.extend(self.worker_end.poll_item());
        match call(|| ::zmq::poll(&mut items, as_millis(timeout))) {
            Ok(_) | Err(Refused::Again | Refused::Interrupted) => {}
            Err(why) => return lost(why, "cannot wait for events"),
        }
        let worker_ended = items.get(1).is_some_and(::zmq::PollItem::is_readable);
        drop(items);
        // What a worker sent before it died counts, so the socket is asked first.
        match self.take() {
            Some(received) => received,
            None if worker_ended => self.take_last(),
            None => Received::Quiet,
        }
    }
}

fn lost(why: Refused, what: &str) -> Received {
    Received::Lost(why.lost(what).to_string())
}

/// [`WorkerLink`] over ZMQ.
pub struct ZmqWorker {
    commands: ::zmq::Socket,
    events: ::zmq::Socket,
    malformed: u64,
    refusals: Vec<ServingError>,
}

impl ZmqWorker {
    /// The worker's side of a link.
    pub fn open(context: &ZmqContext, commands: &Address, events: &Address) -> Result<Self, LinkError> {
        let commands = socket(context, ::zmq::PULL, commands, Side::Worker)?;
        let events = socket(context, ::zmq::PUSH, events, Side::Worker)?;
        // The last words of a worker (its requests' errors, `Goodbye`) must get out before the process ends.
        call(|| events.set_linger(LAST_EVENTS_DEADLINE.as_millis() as i32))
            .map_err(|why| why.lost("cannot set up a socket"))?;
        Ok(Self { commands, events, malformed: 0, refusals: Vec::new() })
    }

    fn take(&mut self) -> Result<Option<ServingCommand>, LinkError> {
        loop {
            match call(|| self.commands.recv_msg(::zmq::DONTWAIT)) {
                Ok(message) => match codec::decode_command(&message) {
                    Ok(command) => return Ok(Some(command)),
                    Err(error) => {
                        self.refusals.extend(codec::refusal(&message, &error));
                        self.malformed += 1;
                        // The first, then every power of two: a flood must not fill the log.
                        if self.malformed.is_power_of_two() {
                            tracing::warn!(count = self.malformed, %error, "an undecodable command was dropped");
                        }
                    }
                },
                Err(Refused::Again) => return Ok(None),
                Err(Refused::Interrupted) => {}
                Err(why) => return Err(why.lost("no command can be received")),
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
            if !commands.is_empty() || !self.refusals.is_empty() || left.is_zero() {
                return Ok(commands);
            }
            match call(|| self.commands.poll(::zmq::POLLIN, as_millis(left))) {
                Ok(_) | Err(Refused::Again | Refused::Interrupted) => {}
                Err(why) => return Err(why.lost("cannot wait for commands")),
            }
        }
    }

    fn refusals(&mut self) -> Vec<ServingError> {
        std::mem::take(&mut self.refusals)
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
        loop {
            match call(|| self.events.send(bytes.as_slice(), 0)) {
                Ok(()) => return Ok(()),
                Err(Refused::Interrupted) => {}
                Err(Refused::Again) => {
                    return Err(LinkError::Lost(format!("no event was taken for {SEND_DEADLINE:?}")));
                }
                Err(why) => return Err(why.lost("an event was not sent")),
            }
        }
    }
}

fn socket(
    context: &ZmqContext,
    kind: ::zmq::SocketType,
    address: &Address,
    side: Side,
) -> Result<::zmq::Socket, LinkError> {
    let build = || -> ::zmq::Result<::zmq::Socket> {
        let socket = context.context.socket(kind)?;
        // The default of -1 makes a drop wait for ever for a dead peer.
        socket.set_linger(0)?;
        socket.set_sndhwm(HIGH_WATER_MARK)?;
        socket.set_rcvhwm(HIGH_WATER_MARK)?;
        socket.set_maxmsgsize(MAX_FRAME_BYTES as i64)?;
        socket.set_sndtimeo(SEND_DEADLINE.as_millis() as i32)?;
        socket.set_rcvtimeo(SEND_DEADLINE.as_millis() as i32)?;
        socket.set_reconnect_ivl(RECONNECT_INTERVAL_MS)?;
        // What is sent before somebody is there to take it is refused instead of kept. A socket that receives is left
        // alone: it would lose what has come when the sender dies.
        socket.set_immediate(kind == ::zmq::PUSH)?;
        socket.set_ipv6(matches!(address, Address::Tcp(address) if address.is_ipv6()))?;
        Ok(socket)
    };
    let socket = call(build).map_err(|why| why.lost("cannot make a socket"))?;
    let binds = match address {
        Address::Ipc(_) => side == Side::Worker,
        Address::Tcp(_) => side == Side::FrontEnd,
    };
    let text = address.to_string();
    let (attached, what) = match binds {
        true => (call(|| socket.bind(&text)), "cannot listen at"),
        false => (call(|| socket.connect(&text)), "cannot connect to"),
    };
    attached.map_err(|why| why.lost(&format!("{what} {address}")))?;
    Ok(socket)
}

/// Rounded up, so that a wait that is not over does not become a busy loop.
fn as_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_that_the_crate_does_not_list_is_an_error() {
        let context = ZmqContext::new().expect("a context");
        let (commands, events) = (Address::Ipc("/etc/passwd/a".into()), Address::Ipc("/etc/passwd/b".into()));
        let Err(error) = ZmqWorker::open(&context, &commands, &events) else { panic!("no folder") };
        let told = error.to_string();
        assert!(told.contains("/etc/passwd/a") && told.contains("Not a directory"), "{told}");
    }

    #[test]
    fn a_side_that_was_there_first_is_found_by_the_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let [commands, events] = ["a", "b"].map(|name| Address::Ipc(folder.path().join(name)));
        let context = ZmqContext::new().expect("a context");
        let (sender, _events) = open(&context, &commands, &events).expect("open").into_ends(None);
        assert!(matches!(sender.send(ServingCommand::FlushCache), Err(LinkError::Full)), "nobody is there");
        assert!(sender.wait_connected(Duration::from_millis(1)).is_err());
        let mut worker = ZmqWorker::open(&context, &commands, &events).expect("open");
        sender.wait_connected(Duration::from_secs(10)).expect("connected");
        sender.send(ServingCommand::FlushCache).expect("sent");
        let received = worker.receive(Duration::from_secs(10)).expect("received");
        assert_eq!(received, [ServingCommand::FlushCache]);
    }

    #[test]
    fn a_connection_that_ends_while_its_watch_is_given_up_stops_no_other() {
        // Leaked: a context whose thread is stuck would not end, and hide the failure.
        let context: &ZmqContext = Box::leak(Box::new(ZmqContext::new().expect("a context")));
        let batch = |incarnation| EventBatch { incarnation, events: Vec::new() };
        for round in 0..300 {
            let folder = tempfile::tempdir().expect("a folder");
            let [commands, events] = ["a", "b"].map(|name| Address::Ipc(folder.path().join(name)));
            let theirs = ZmqContext::new().expect("a context");
            let mut worker = ZmqWorker::open(&theirs, &commands, &events).expect("open");
            let sockets = open(context, &commands, &events).expect("open");
            let (sender, mut receiver) = sockets.into_watched_ends(context, round).expect("watched");
            sender.wait_connected(Duration::from_secs(10)).unwrap_or_else(|error| panic!("round {round}: {error}"));
            worker.send(batch(round)).expect("sent");
            assert!(matches!(receiver.receive(Duration::from_secs(10)), Received::Batch(_)), "round {round}");
            let end = std::thread::spawn(move || drop((worker, theirs)));
            drop((receiver, sender));
            end.join().expect("ended");
        }
    }
}
