//! The device: its driver, its memory and the queue of its work.

pub(crate) mod arena;
pub(crate) mod buffer;
pub(crate) mod device;
pub(crate) mod holdings;
pub(crate) mod nvml;
pub(crate) mod queue;
pub(crate) mod staging;
