//! Fields of a request by which it is known, kept and cut.

use super::GenerationBody;
use crate::frontend::Truncation;
use crate::http::answer::error::ApiError;

/// Longest `request_id`. Chosen by us: room for two UUIDs.
const MAX_REQUEST_ID_BYTES: usize = 64;

impl GenerationBody {
    /// The client's own id of the request.
    pub(super) fn take_request_id(&mut self) -> Result<Option<String>, ApiError> {
        let Some(id) = self.request_id.take() else { return Ok(None) };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.bytes().all(is_plain) {
            return Ok(Some(id));
        }
        let message =
            format!("request_id must be 1 to {MAX_REQUEST_ID_BYTES} characters of A-Z, a-z, 0-9, _ and -, got {id:?}");
        Err(ApiError::invalid("request_id", message))
    }

    pub(super) fn truncation(&self) -> Result<Option<Truncation>, ApiError> {
        match self.truncate_prompt_tokens {
            None => Ok(None),
            Some(-1) => Ok(Some(Truncation::ToFit)),
            Some(n) => match u32::try_from(n) {
                Ok(n) if n > 0 => Ok(Some(Truncation::To(n))),
                _ => {
                    let message = format!("truncate_prompt_tokens must be at least 1, or -1 for what fits, got {n}");
                    Err(ApiError::invalid("truncate_prompt_tokens", message))
                }
            },
        }
    }

    pub(super) fn take_cache_salt(&mut self) -> Result<Option<String>, ApiError> {
        match self.cache_salt.take() {
            // As vLLM: an empty one would isolate nobody.
            Some(salt) if salt.is_empty() => {
                Err(ApiError::invalid("cache_salt", "cache_salt must be a string that is not empty"))
            }
            salt => Ok(salt),
        }
    }
}
