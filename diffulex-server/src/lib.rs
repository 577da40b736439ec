//! The Diffulex server: HTTP in front, an engine behind, messages between.
//!
//! ```text
//! http::* -> frontend -> link <- worker -> engine
//! engine_loop -> worker, frontend, link::channel
//! ```
//! Routes parse and frame, [`frontend`] admits and routes events, [`link`] carries messages, [`worker`] drives an
//! engine. [`launch`] puts them together. Never here: decoding, tensors.

pub mod cli;
pub mod config;
pub mod demo;
pub mod engine_loop;
pub mod frontend;
pub mod http;
pub mod launch;
pub mod link;
pub mod one_shot;
pub mod telemetry;
pub mod worker;
pub mod worker_process;
