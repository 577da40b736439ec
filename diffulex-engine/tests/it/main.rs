//! The engine as a whole, on a tiny golden checkpoint.

mod adapters;
mod block_edit;
mod checkpoints;
mod cuda;
mod determinism;
mod emission;
mod extremes;
mod families;
mod forwards;
mod fuzzed;
mod gguf;
mod golden;
mod harness;
mod hostile;
mod loading;
mod pages;
mod picture;
mod planning;
mod request_params;
mod requests;
mod restated;
mod scores;
mod sequences;
mod text;
mod token_merge;
mod whole_answers;
