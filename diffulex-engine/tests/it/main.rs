//! The engine as a whole, on a tiny golden checkpoint.

mod determinism;
mod forwards;
mod golden;
mod harness;
mod picture;
mod requests;
mod text;
