//! Work of a device that waits to be started.

pub(crate) mod arg;
pub(crate) mod diagnostics;
pub(crate) mod list;
pub(crate) mod queue;
