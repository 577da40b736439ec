//! Threads, and memory that their tasks write together.

pub(crate) mod shared;
pub(crate) mod sync;
pub(crate) mod threads;
pub(crate) mod workers;
