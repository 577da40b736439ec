//! The Diffulex server: HTTP in front, an engine behind, messages between.
//!
//! ```text
//! http::* -> frontend -> link <- worker -> engine
//! engine_loop -> worker, frontend, link::channel
//! ```
//! Routes parse and frame, [`frontend`] admits and routes events, [`link`] carries messages, [`worker`] drives an
//! engine. [`launch`] puts them together. Never here: decoding, tensors.

pub mod attached_worker;
pub mod banner;
pub mod batch;
pub mod cli;
pub mod config;
pub mod config_error;
pub mod decoding_flags;
pub mod demo;
pub mod descriptors;
pub mod diffulex_flags;
mod draws;
pub mod engine_loop;
pub mod flags;
pub mod frontend;
pub mod http;
pub mod launch;
pub mod link;
pub mod local_model;
pub mod log;
pub mod long_work;
pub mod one_shot;
mod outbound;
pub mod panics;
pub mod parrot_engine;
mod platform;
pub mod private_dir;
pub mod profile_report;
pub mod registration;
pub mod sampling_defaults;
pub mod shell;
pub mod standalone_worker;
pub mod telemetry;
pub mod terminal;
pub mod traces;
pub mod worker;
pub mod worker_process;
