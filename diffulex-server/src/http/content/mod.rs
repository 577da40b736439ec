//! What an answer is made of: thoughts, text and calls of tools, for all interfaces.
//!
//! Never here: how an interface writes them.

pub(in crate::http) mod form;
pub(in crate::http) mod part;
pub(in crate::http) mod reader;
