//! Memory of a device, and the host's memory through which bytes travel to it.

pub(crate) mod arena;
pub(crate) mod buffer;
pub(crate) mod device;
pub(crate) mod holdings;
pub(crate) mod staging;
