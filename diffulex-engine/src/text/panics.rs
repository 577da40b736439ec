//! Panics of libraries that parse untrusted input, as errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of `call`, or the message of its panic.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or("it panicked").to_owned(),
    })
}

/// As [`caught`], on a thread with a stack of `n_bytes`, which are used only as far as `call` recurses.
pub(super) fn caught_on_stack<T: Send>(n_bytes: usize, call: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".to_owned()).stack_size(n_bytes);
        let thread = thread.spawn_scoped(scope, || caught(call)).map_err(|error| format!("no thread: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("its thread failed".to_owned()))
    })
}
