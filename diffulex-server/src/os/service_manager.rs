//! The service manager that started the server, such as systemd: it is told when the server is ready, what it does, when it stops,
//! and that it lives.
//!
//! The protocol is `sd_notify`'s: datagrams to the socket that `NOTIFY_SOCKET` names. Without that variable nothing is sent. Never
//! here: when the server is ready or stops.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

/// The variables of the protocol, which are about this process alone and not about what it starts.
pub(crate) const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// Signs of life in the time after which silence means death: what sd_watchdog_enabled(3) recommends.
const SIGNS_PER_TIMEOUT: u32 = 2;

/// The shortest time between two signs. Chosen by us: a shorter one would be work without end.
const SHORTEST: Duration = Duration::from_millis(1);

/// Requests are accepted.
pub(crate) fn ready(what: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&one_line(what))]);
}

/// The state of the server, in words.
pub(crate) fn status(what: &str) {
    tell(&[NotifyState::Status(&one_line(what))]);
}

/// The server is about to end.
pub(crate) fn stopping(what: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(&one_line(what))]);
}

/// Gives signs of life until it is dropped, if the service manager waits for them (`WatchdogSec=`), each after `prove` has ended:
/// what `prove` needs is alive.
pub(crate) async fn give_signs_of_life<Proof: Future>(prove: impl Fn() -> Proof) {
    let Some(timeout) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = interval((timeout / SIGNS_PER_TIMEOUT).max(SHORTEST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        drop(prove().await);
        tell(&[NotifyState::Watchdog]);
    }
}

fn tell(news: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(news) {
        let news: Vec<String> = news.iter().map(ToString::to_string).collect();
        tracing::warn!(%error, news = news.join(" "), "the service manager cannot be told");
    }
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
