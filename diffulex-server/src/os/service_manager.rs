//! The service manager that started the server, such as systemd: it is told when the server is ready, what it does, when it stops,
//! and that it lives.
//!
//! The protocol is `sd_notify`'s: datagrams to the socket that `NOTIFY_SOCKET` names. Without that variable nothing is sent. Never
//! here: when the server is ready or stops.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdDatagram};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::net::UnixDatagram;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Names the socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The variables of the protocol, which are about this process alone and not about what it starts.
pub(crate) const VARIABLES: [&str; 3] = [SOCKET, "WATCHDOG_PID", "WATCHDOG_USEC"];

/// Signs of life in the time after which silence means death: what sd_watchdog_enabled(3) recommends.
const SIGNS_PER_TIMEOUT: u32 = 2;

/// The shortest time between two signs. Chosen by us: a shorter one would be work without end.
const SHORTEST: Duration = Duration::from_millis(1);

/// Longest wait for a service manager that does not read. Chosen by us: a busy one takes less, and a dead one holds nothing up for long.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Requests are accepted.
pub(crate) async fn ready(what: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&one_line(what))]).await;
}

/// The state of the server, in words.
pub(crate) async fn status(what: &str) {
    tell(&[NotifyState::Status(&one_line(what))]).await;
}

/// The server is about to end.
pub(crate) async fn stopping(what: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(&one_line(what))]).await;
}

/// Gives signs of life until it is dropped, if the service manager waits for them (`WatchdogSec=`), each after `prove` has ended:
/// what `prove` needs is alive.
pub(crate) async fn give_signs_of_life<Proof: Future>(prove: impl Fn() -> Proof) {
    let Some(silence) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = interval((silence / SIGNS_PER_TIMEOUT).max(SHORTEST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        drop(prove().await);
        tell(&[NotifyState::Watchdog]).await;
    }
}

async fn tell(news: &[NotifyState<'_>]) {
    let Some(name) = std::env::var_os(SOCKET) else { return };
    let lines: Vec<String> = news.iter().map(ToString::to_string).collect();
    let told = timeout(LONGEST_WAIT, send(&name, &lines.join("\n"))).await;
    if let Err(error) = told.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "it does not read"))) {
        tracing::warn!(%error, news = lines.join(" "), "the service manager cannot be told");
    }
}

/// `sd_notify::notify` would wait for ever for a service manager that does not read.
async fn send(name: &OsStr, message: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = StdDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)?.send(message.as_bytes()).await.map(drop)
}

/// Each line of a message is an assignment, so a text with several could say anything.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line_whatever_it_says() {
        assert_eq!(one_line("lost:\r\nMAINPID=1\n"), "lost:  MAINPID=1 ");
    }
}
