//! File descriptors: as many as the system grants, and some that connections never take.
//!
//! A process that runs out of them can do nothing any more: no worker started, no message received, no file read. Never here:
//! who opens what.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that is asked for, where the system grants more. Chosen by us: connections beyond it would not be served by one
/// engine, and programs that close all descriptors one by one take a second for a million.
const MOST: u64 = 65_536;

/// Descriptors that connections never take. Chosen by us: the server has some 30 open, and a worker being replaced takes a
/// dozen more for a moment.
const RESERVE: u64 = 128;

/// The least that a server starts with. Chosen by us: 28 are open at rest; beside those, a quarter of the limit are connections',
/// and 8 are left for a worker being replaced.
const LEAST: u64 = 48;

/// A limit that a server cannot work with.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "this process may have {limit} file descriptors; a server needs {LEAST} (ulimit -n, or LimitNOFILE in a unit of systemd)"
)]
pub struct TooFewDescriptors {
    /// The limit, raised as far as it goes.
    pub limit: u64,
}

/// Raises the soft limit as far as it goes; the error is that this is too low.
pub fn require() -> Result<(), TooFewDescriptors> {
    let limit = raise_limit();
    if limit < LEAST { Err(TooFewDescriptors { limit }) } else { Ok(()) }
}

/// Raises the soft limit as far as it goes, and returns it.
pub fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(MOST).min(MOST);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(%error, "the limit of file descriptors stays at {current}");
            current
        }
    }
}

/// How many connections may be open under a limit of `limit` descriptors: all but the reserve, or a quarter where there are
/// few.
pub fn max_connections(limit: u64) -> usize {
    let connections = limit.saturating_sub(RESERVE.min(limit / 4 * 3)).max(1);
    usize::try_from(connections).unwrap_or(usize::MAX)
}

/// How many of the places of `max_connections` are for calls to another server, each of which a client's connection waits for: as
/// many as are wanted, half of them at most.
pub fn max_calls(max_connections: usize, wanted: usize) -> usize {
    wanted.min(max_connections / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_leaves_what_is_open_at_rest_and_a_start_of_a_worker() {
        assert!(LEAST - max_connections(LEAST) as u64 >= 28 + 8);
    }

    #[test]
    fn connections_leave_a_reserve() {
        for (limit, connections) in [(0, 1), (64, 16), (256, 128), (1024, 896), (65_536, 65_408)] {
            assert_eq!(max_connections(limit), connections, "{limit}");
        }
    }

    #[test]
    fn calls_take_half_of_the_places_at_most() {
        for (places, wanted, calls) in [(128, 200, 64), (128, 10, 10), (1, 5, 0)] {
            assert_eq!(max_calls(places, wanted), calls, "{wanted} of {places}");
        }
    }
}
