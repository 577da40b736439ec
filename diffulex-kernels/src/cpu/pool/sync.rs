//! Threads, atomics and waiting, as the pool's workers use them. `tests/workers.rs` compiles the workers with loom's instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex, PoisonError};
pub(crate) use std::thread::{Builder, JoinHandle, park, yield_now};
use std::time::{Duration, Instant};

/// Time that a thread spins before it sleeps: longer than the gaps inside a forward. Chosen by us.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// Iterations between two reads of the clock.
const LOOKS_PER_GLANCE: usize = 32;

/// [`std::cell::UnsafeCell`] with loom's methods.
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer to the value.
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer to the value.
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Spins until `is_done`, for at most [`SPIN`]. Returns whether it was.
pub(crate) fn spin_until(is_done: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    loop {
        for _ in 0..LOOKS_PER_GLANCE {
            if is_done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if started.elapsed() > SPIN {
            return false;
        }
    }
}
