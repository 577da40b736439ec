//! Connections: accepts as many as there are places for, bounds how long a peer may idle or refuse to read, notices when it
//! leaves, and ends all at shutdown.
//!
//! In: listeners and the service. Out: nothing until the shutdown signal and its deadline. Never here: routes.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;

use crate::frontend::ClientAddress;
use crate::http::access::listeners::{Listeners, Socket};
use crate::http::access::service::HttpService;
use crate::os::platform::has_peer_left;

/// Bytes of one connection that may wait to be sent. Chosen by us: more than any one frame, so that a reader that does
/// not read holds little.
const BUFFER_BYTES: usize = 64 * 1024;

/// How long after a failed accept (mostly: no file descriptors left) the next one is tried. Chosen by us.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often the same trouble of all connections is logged at most. Chosen by us.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// How often a peer is looked after of whom hyper reads nothing. Chosen by us.
const LEAVING_PAUSE: Duration = Duration::from_secs(1);

/// Time-outs of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOptions {
    /// Connections open at the same time; others wait to be accepted.
    pub max_connections: usize,
    /// Longest time from a connection's start, or its last answer, to the end of the next head.
    pub header_timeout: Duration,
    /// Longest time a peer may take nothing of what is ready for it.
    pub write_timeout: Duration,
    /// Longest time for open connections to end after the shutdown signal.
    pub drain_timeout: Duration,
}

/// Serves until `shutdown` turns true, then lets open connections end.
pub async fn serve(
    listeners: impl Into<Listeners>,
    service: HttpService,
    options: ConnectionOptions,
    shutdown: watch::Receiver<bool>,
) {
    let listeners = listeners.into();
    let mut connections = JoinSet::new();
    let mut stop = shutdown.clone();
    let mut trouble = Trouble::default();
    loop {
        // Ended ones must not pile up.
        while connections.try_join_next().is_some() {}
        if connections.len() >= options.max_connections {
            trouble.log(format_args!("{} connections are open, others wait", connections.len()));
            tokio::select! {
                _ = connections.join_next() => continue,
                () = signalled(&mut stop) => break,
            }
        }
        let accepted = tokio::select! {
            accepted = listeners.accept() => accepted,
            () = signalled(&mut stop) => break,
        };
        match accepted {
            Ok((socket, peer)) => {
                let acceptor = listeners.tls.as_ref().filter(|_| matches!(socket, Socket::Tcp(_)));
                let acceptor = acceptor.map(|tls| tls.acceptor());
                let connection = Connection { peer, service: service.clone(), options, shutdown: shutdown.clone() };
                connections.spawn(connection.run(socket, acceptor));
            }
            Err(error) => {
                trouble.log(format_args!("a connection could not be accepted: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listeners);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(options.drain_timeout, all_ended).await.is_err() {
        tracing::warn!("some connections did not end in time and are cut");
    }
}

/// Logs an event that may repeat quickly once a second at most.
#[derive(Default)]
struct Trouble {
    last_logged: Option<Instant>,
}

impl Trouble {
    fn log(&mut self, what: std::fmt::Arguments<'_>) {
        let now = Instant::now();
        if self.last_logged.is_none_or(|last| now.duration_since(last) >= LOG_PAUSE) {
            self.last_logged = Some(now);
            tracing::warn!("{what}");
        }
    }
}

/// Waits for the shutdown signal. An error means that the sender is gone, which is a shutdown, too.
async fn signalled(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|stop| *stop).await;
}

/// A client's connection.
struct Connection {
    peer: ClientAddress,
    service: HttpService,
    options: ConnectionOptions,
    shutdown: watch::Receiver<bool>,
}

/// The first byte of a TLS connection: a record of the handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 0x16;

/// What a client gets that speaks plain HTTP where TLS is spoken.
const NOT_TLS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 172\r\n\r\n\
    {\"error\":{\"message\":\"this port speaks TLS: use https://\",\"type\":\"invalid_request_error\",\"param\":null,\
    \"code\":\"https_required\"},\"detail\":\"this port speaks TLS: use https://\"}";

/// Bytes of a plain request that are read before it is refused, so that its client sees the refusal and not a reset.
const PLAIN_BYTES: usize = 16 * 1024;

impl Connection {
    async fn run(self, socket: Socket, acceptor: Option<TlsAcceptor>) {
        // A frame must leave when it is written.
        if let Err(error) = socket.set_nodelay() {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let socket = PeerWatch { socket, write_timeout: self.options.write_timeout, blocked: None, unread: None };
        let ended = match acceptor {
            None => self.serve(socket).await,
            // Boxed, so that its size does not add to the future of every connection.
            Some(acceptor) => Box::pin(self.serve_tls(socket, acceptor)).await,
        };
        if let Err(error) = ended {
            tracing::debug!(error, "a connection ended early");
        }
    }

    /// TLS, and HTTP in it. The handshake has the time of a head.
    async fn serve_tls(mut self, mut socket: PeerWatch, acceptor: TlsAcceptor) -> Result<(), String> {
        let handshake = async {
            if let Socket::Tcp(tcp) = &socket.socket {
                let mut first = [0];
                if tcp.peek(&mut first).await? == 1 && first != [HANDSHAKE] {
                    let mut plain = vec![0; PLAIN_BYTES];
                    let _ = socket.read(&mut plain).await?;
                    socket.write_all(NOT_TLS).await?;
                    socket.shutdown().await?;
                    return Err(io::Error::other("plain HTTP where TLS is spoken"));
                }
            }
            acceptor.accept(socket).await
        };
        let stream = tokio::select! {
            done = tokio::time::timeout(self.options.header_timeout, handshake) => match done {
                Ok(stream) => stream.map_err(|error| format!("TLS: {error}"))?,
                Err(_) => return Err("TLS: the handshake took too long".to_owned()),
            },
            () = signalled(&mut self.shutdown) => return Ok(()),
        };
        self.serve(stream).await
    }

    async fn serve(mut self, stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<(), String> {
        let answer = |mut request: Request<Incoming>| {
            let service = self.service.clone();
            request.extensions_mut().insert(self.peer);
            async move { Ok::<_, Infallible>(service.answer(request).await) }
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.options.header_timeout)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        let mut connection = std::pin::pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = signalled(&mut self.shutdown) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        result.map_err(|error| error.to_string())
    }
}

/// A socket that gives up when its peer takes nothing for too long, or leaves, so that what feeds it is dropped.
///
/// hyper notices that a peer leaves when it reads. It does not read while it holds bytes that it has no use for yet (a second
/// request behind the first one, a body that nobody takes): then the peer is looked after from time to time.
struct PeerWatch {
    socket: Socket,
    write_timeout: Duration,
    /// Runs while a write waits.
    blocked: Option<Pin<Box<Sleep>>>,
    /// Runs while nobody waits for bytes of the peer.
    unread: Option<Pin<Box<Sleep>>>,
}

impl PeerWatch {
    fn watch<T>(&mut self, outcome: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.blocked = None;
            return outcome;
        }
        let deadline = Instant::now() + self.write_timeout;
        let timer = self.blocked.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }

    /// An error once the peer has left; wakes the connection from time to time to look again.
    fn check_peer(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(timer) = &mut self.unread else { return Ok(()) };
        while timer.as_mut().poll(context).is_ready() {
            if has_peer_left(&self.socket)? {
                return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the peer has left"));
            }
            timer.as_mut().reset(Instant::now() + LEAVING_PAUSE);
        }
        Ok(())
    }
}

impl AsyncRead for PeerWatch {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_read(context, buffer);
        if outcome.is_pending() {
            // The socket itself reports when the peer leaves.
            self.unread = None;
        } else if self.unread.is_none() {
            self.unread = Some(Box::pin(tokio::time::sleep(LEAVING_PAUSE)));
        }
        outcome
    }
}

impl AsyncWrite for PeerWatch {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.watch(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.watch(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Called whenever the connection is woken.
        self.check_peer(context)?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
