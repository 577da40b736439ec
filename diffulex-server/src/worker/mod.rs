//! Workers: what starts, runs, attaches to and watches one.
//!
//! Never here: requests, and who waits for them.

pub mod attached;
pub mod drive;
pub mod engine_loop;
pub mod expected_model;
pub mod process;
pub mod standalone;
