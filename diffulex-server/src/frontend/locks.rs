//! Locks whose holders may have panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic while a lock is held cannot leave these maps half-written, so poison is no reason to stop serving.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
