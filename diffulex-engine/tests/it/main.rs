//! The engine as a whole, on a tiny golden checkpoint.

mod adapters;
mod block_edit;
mod checkpoints;
mod determinism;
mod emission;
mod families;
mod forwards;
mod gguf;
mod golden;
mod harness;
mod picture;
mod requests;
mod text;
mod token_merge;
mod whole_answers;
