//! Notations of calls that are not JSON, as they are written.

pub(super) mod gemma;
pub(super) mod parameters;
