//! The head of a response.

use super::input::Settings;
use crate::http::tools::calls::CallForm;

/// The parts of a response that do not change.
pub(super) struct Head {
    pub(super) id: String,
    pub(super) rid: String,
    pub(super) created_at: u64,
    pub(super) model: String,
    pub(super) wants_logprobs: bool,
    pub(super) settings: Settings,
    /// How calls of tools are found, where tools are offered.
    pub(super) calls: Option<CallForm>,
}
