//! `pins`: tokens of an answer that the client decides.

use diffulex_protocol::Pin;
use schemars::JsonSchema;
use serde::Deserialize;

/// Consecutive tokens of the answer.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in crate::http) struct PinField {
    /// Position of the first, from the beginning of the answer.
    position: u32,
    /// The token ids.
    ids: Vec<u32>,
}

impl PinField {
    /// As it goes to the engine.
    pub(in crate::http) fn into_pin(self) -> Pin {
        Pin { position: self.position, ids: self.ids }
    }
}
