//! OpenAI's routes.
//!
//! Never here: fields and parts of answers that other interfaces have, too.

pub(in crate::http) mod chat;
pub(in crate::http) mod completions;
pub(in crate::http) mod embeddings;
pub(in crate::http) mod responses;
pub(in crate::http) mod speech;
