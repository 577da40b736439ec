//! The way of a request to its route and back: connections, keys, origins, paths, the log of refusals.
//!
//! Never here: routes.

pub mod connection;
pub mod forwarded;
pub(in crate::http) mod guard;
pub mod keys;
pub(in crate::http) mod lifespan;
pub mod listeners;
pub(in crate::http) mod paths;
pub(in crate::http) mod refusals;
pub mod reload;
pub mod root_path;
pub(in crate::http) mod service;
pub mod tls;
