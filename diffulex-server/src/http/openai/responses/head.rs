//! The head of a response.

use super::input::Settings;
use crate::http::content::form::ContentForm;

/// The parts of a response that do not change.
pub(super) struct Head {
    pub(super) id: String,
    pub(super) rid: String,
    pub(super) created_at: u64,
    pub(super) model: String,
    pub(super) wants_logprobs: bool,
    pub(super) settings: Settings,
    /// How the parts of the answer are found.
    pub(super) content: ContentForm,
}
