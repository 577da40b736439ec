//! Sockets that clients come to: TCP, with or without TLS, and a Unix socket.
//!
//! Out: connections, and who is at their other end. Never here: HTTP.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::frontend::ClientAddress;
use crate::http::access::tls::Tls;

/// Where clients come to.
#[derive(Debug, Default)]
pub struct Listeners {
    /// A port.
    pub tcp: Option<TcpListener>,
    /// TLS on that port; a Unix socket has none.
    pub tls: Option<Arc<Tls>>,
    /// A file.
    pub unix: Option<UnixListener>,
}

impl From<TcpListener> for Listeners {
    fn from(tcp: TcpListener) -> Self {
        Self { tcp: Some(tcp), ..Self::default() }
    }
}

impl Listeners {
    /// The next connection of any of them.
    pub(in crate::http) async fn accept(&self) -> io::Result<(Socket, ClientAddress)> {
        tokio::select! {
            accepted = async { match &self.tcp { Some(tcp) => tcp.accept().await, None => pending().await } } => {
                let (socket, address) = accepted?;
                Ok((Socket::Tcp(socket), ClientAddress::Ip(address.ip().to_canonical())))
            }
            accepted = async { match &self.unix { Some(unix) => unix.accept().await, None => pending().await } } => {
                Ok((Socket::Unix(accepted?.0), ClientAddress::Unix))
            }
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(in crate::http) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Lets each write leave at once, where it would wait for others.
    pub(in crate::http) fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.set_nodelay(true),
            Self::Unix(_) => Ok(()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            Self::Unix(socket) => Pin::new(socket).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.is_write_vectored(),
            Self::Unix(socket) => socket.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_flush(context),
            Self::Unix(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}
