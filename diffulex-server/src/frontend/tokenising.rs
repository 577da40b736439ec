//! From what a client sent to token ids, and what can be told of them before the request travels.
//!
//! Never here: sending.

use diffulex_engine::{RequestError, TextModel};
use diffulex_protocol::{ModelCard, Prompt, SamplingParams, ServingInput};

use super::{Frontend, SubmitError};

/// Text up to this many bytes is tokenised where it arrives. Chosen by us: it takes some 50 µs, a hop to another thread
/// and back takes 10 to 20.
const INLINE_BYTES: usize = 1024;

impl Frontend {
    /// Token ids of what the client calls `field`. Long texts leave the caller's thread, and one that can never fit the
    /// model is refused before it is tokenised.
    pub async fn tokenise(&self, field: &'static str, input: ServingInput) -> Result<Vec<u32>, SubmitError> {
        let n_bytes: usize = match &input {
            ServingInput::Prompt { prompt: Prompt::Ids(_) } => 0,
            ServingInput::Prompt { prompt: Prompt::Text(text) } => text.len(),
            ServingInput::Chat { messages } => {
                messages.iter().map(|message| message.role.len() + message.content.len()).sum()
            }
        };
        // Unknown while the model loads for the first time, when nothing can be generated either.
        let max_tokens = self.card().map(|card| card.max_model_len as usize);
        if n_bytes <= INLINE_BYTES {
            return Ok(tokenise(self.text(), field, input, max_tokens)?);
        }
        let frontend = self.clone();
        let work = move || tokenise(frontend.text(), field, input, max_tokens);
        Ok(self.long_work().run(work).await.map_err(RequestError::engine)??)
    }
}

/// What a client calls it.
pub(super) fn field_of(input: &ServingInput) -> &'static str {
    match input {
        ServingInput::Prompt { .. } => "prompt",
        ServingInput::Chat { .. } => "messages",
    }
}

fn tokenise(
    text: &TextModel,
    field: &'static str,
    input: ServingInput,
    max_tokens: Option<usize>,
) -> Result<Vec<u32>, RequestError> {
    let written = match input {
        ServingInput::Prompt { prompt: Prompt::Ids(ids) } => return Ok(ids),
        ServingInput::Prompt { prompt: Prompt::Text(prompt) } => prompt,
        ServingInput::Chat { messages } => text.render_chat(&messages)?,
    };
    let least = text.min_tokens(written.len());
    if let Some(most) = max_tokens.filter(|most| least > *most) {
        let n_bytes = written.len();
        let message = format!("{field}: {n_bytes} bytes are {least} tokens at least; the model takes {most}");
        return Err(RequestError::too_large(field, message));
    }
    text.encode(&written)
}

/// Positions of `ids` where the mask is written.
pub(super) fn masks_of(ids: &[u32], card: &ModelCard) -> Vec<u32> {
    (0..).zip(ids).filter(|(_, id)| Some(**id) == card.mask_token_id).map(|(position, _)| position).collect()
}

/// Refuses what is longer than the model takes, whatever it holds. The places of an answer are `n_more`.
pub(super) fn check_length(
    field: &'static str,
    ids: &[u32],
    n_more: usize,
    card: &ModelCard,
) -> Result<(), RequestError> {
    if ids.len() + n_more <= card.max_model_len as usize {
        return Ok(());
    }
    let what = if n_more > 0 { " with at least one token of answer" } else { "" };
    let message = format!("{field}: {} tokens; the model takes {}{what}", ids.len(), card.max_model_len);
    Err(RequestError::too_large(field, message))
}

/// What the front end can know to be wrong before a request travels.
pub(super) fn check_prompt(
    field: &'static str,
    ids: &[u32],
    masked: &[u32],
    params: &SamplingParams,
    card: &ModelCard,
) -> Result<(), RequestError> {
    if ids.is_empty() {
        return Err(RequestError::invalid(field, format!("{field} must not be empty")));
    }
    check_ids(field, ids, card)?;
    // Masks are places of the answer already.
    if masked.is_empty() {
        check_length(field, ids, 1, card)?;
    }
    check_ids("stop_token_ids", &params.stop_token_ids, card)
}

/// Refuses ids that the model does not have.
pub(crate) fn check_ids(field: &'static str, ids: &[u32], card: &ModelCard) -> Result<(), RequestError> {
    let Some(id) = ids.iter().find(|id| **id >= card.vocab_size) else { return Ok(()) };
    let message = format!("{field} holds token id {id}, the model's ids end at {}", card.vocab_size.saturating_sub(1));
    Err(RequestError::invalid(field, message))
}
