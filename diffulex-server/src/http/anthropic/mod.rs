//! Anthropic's routes.

pub(in crate::http) mod messages;
