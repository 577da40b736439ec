//! What a model thinks before it answers: whether it does, and how that is told from the answer.
//!
//! Never here: how an interface writes it ([`super::content`] has the parts of answers).

mod model;
mod parser;
pub(in crate::http) mod reader;
pub(in crate::http) mod wish;

pub(in crate::http) use model::{Reasoning, Settled};
pub use parser::ReasoningParser;
