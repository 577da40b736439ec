//! Panics of libraries that parse untrusted input, as errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of `call`, or the message of its panic.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or("it panicked").to_owned(),
    })
}
