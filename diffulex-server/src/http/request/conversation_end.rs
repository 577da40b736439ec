//! The end of a conversation in the prompt: vLLM's `add_generation_prompt` and `continue_final_message`.
//!
//! Never here: rendering.

use diffulex_engine::ConversationEnd;

use crate::http::answer::error::ApiError;

/// The end that the two fields ask for. A prompt, which has no messages, takes their defaults only.
pub(in crate::http) fn conversation_end(
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    has_messages: bool,
) -> Result<ConversationEnd, ApiError> {
    let adds_prompt = add_generation_prompt.unwrap_or(true);
    let continues = continue_final_message.unwrap_or(false);
    for (field, is_default) in [("continue_final_message", !continues), ("add_generation_prompt", adds_prompt)] {
        if !has_messages && !is_default {
            return Err(ApiError::invalid(field, format!("{field} needs messages; a prompt is taken as it is")));
        }
    }
    match (adds_prompt, continues) {
        (true, false) => Ok(ConversationEnd::GenerationPrompt),
        (false, false) => Ok(ConversationEnd::LastMessage),
        (false, true) => Ok(ConversationEnd::Content),
        (true, true) => {
            let message = "continue_final_message and add_generation_prompt cannot both be true; \
                           send add_generation_prompt: false";
            Err(ApiError::invalid("continue_final_message", message))
        }
    }
}
