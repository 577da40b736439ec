//! The way of a request to its route and back: connections, keys, origins, paths, the log of refusals.
//!
//! Never here: routes.

pub mod connection;
pub(in crate::http) mod guard;
pub(in crate::http) mod lifespan;
pub(in crate::http) mod paths;
pub(in crate::http) mod refusals;
pub(in crate::http) mod service;
