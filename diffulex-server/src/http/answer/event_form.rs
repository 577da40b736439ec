//! The form of a chat's stream in mode `denoise`: OpenAI's chunks, or Diffulex's own events.
//!
//! Never here: how either is written.

use diffulex_protocol::StreamMode;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::frontend::Submission;
use crate::http::answer::error::ApiError;
use crate::http::answer::streamed_usage::UsageChunks;

/// The events of a chat's stream in mode `denoise`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum EventForm {
    /// OpenAI's chunks, with the snapshot's fields.
    #[default]
    Chunks,
    /// Diffulex's events: snapshots, then `final` with the whole answer.
    Diffulex,
}

impl EventForm {
    /// Refuses Diffulex's events on routes without them, and with what they have no form for.
    pub(in crate::http) fn check(
        self,
        is_offered: bool,
        submission: &Submission,
        usage: UsageChunks,
    ) -> Result<(), ApiError> {
        if self == Self::Chunks {
            return Ok(());
        }
        let refused = |field: &str, message: &str| Err(ApiError::invalid(field, message));
        if !is_offered {
            return refused("denoise.form", "denoise.form is a field of /v1/chat/completions; this route has one form");
        }
        if !submission.generate.stream || submission.generate.stream_mode != StreamMode::Denoise {
            return refused("denoise.form", "denoise.form needs \"stream\": true and \"stream_mode\": \"denoise\"");
        }
        if submission.n_choices > 1 {
            return refused("n", "n is 1 with denoise.form \"diffulex\", whose events do not name a choice");
        }
        if usage == UsageChunks::Every {
            let field = "stream_options.continuous_usage_stats";
            let message = "only the last event has the usage with denoise.form \"diffulex\"";
            return refused(field, &format!("{field} is not supported: {message}"));
        }
        Ok(())
    }
}
