//! Parrot's routes: primitives on contexts, sessions, engines that register here.

pub(in crate::http) mod engines;
pub(in crate::http) mod primitives;
pub(in crate::http) mod sampling_config;
