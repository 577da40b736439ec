//! A conversation as the chat template takes it: with tools, or with their text where the template has no place for them.

use std::collections::BTreeMap;

use diffulex_engine::{ChatMessage, ConversationEnd, ServingInput};

use super::forms::Form;
use super::offer::Offer;
use super::prompt;
use crate::http::answer::error::ApiError;
use crate::http::app::AppState;

/// The input that `messages` are up to `end`, with the tools of `offer`.
pub(in crate::http) fn input(
    app: &AppState,
    mut messages: Vec<ChatMessage>,
    end: ConversationEnd,
    offer: Option<&Offer>,
) -> Result<ServingInput, ApiError> {
    check_continued(&messages, end)?;
    name_results(&mut messages);
    let tools = offer.map(Offer::for_template).unwrap_or_default();
    let text = app.frontend.text();
    let has_calls = messages.iter().any(|message| message.role == "tool" || !message.tool_calls.is_empty());
    if text.template_reads_tools() || tools.is_empty() && !has_calls {
        return Ok(ServingInput::Chat { messages, tools });
    }
    let form = offer.map_or_else(|| Form::of(app.options.tool_call_parser, text.chat_template()), |offer| offer.form);
    Ok(ServingInput::chat(prompt::in_text(messages, &tools, form)))
}

/// Refuses to continue a message with calls of tools: they follow its text.
fn check_continued(messages: &[ChatMessage], end: ConversationEnd) -> Result<(), ApiError> {
    match messages.split_last() {
        Some((last, others)) if end == ConversationEnd::Content && !last.tool_calls.is_empty() => {
            let field = format!("messages[{}].tool_calls", others.len());
            let message = format!("{field}: the answer cannot continue a message with calls of tools");
            Err(ApiError::invalid(&field, message))
        }
        Some(_) | None => Ok(()),
    }
}

/// Gives each result that names its call by the id alone the name of the tool, which some templates write.
fn name_results(messages: &mut [ChatMessage]) {
    let mut names = BTreeMap::new();
    for message in messages {
        names.extend(message.tool_calls.iter().map(|call| (call.id.clone(), call.name.clone())));
        if message.role == "tool" && message.name.is_none() {
            message.name = message.tool_call_id.as_ref().and_then(|id| names.get(id)).cloned();
        }
    }
}
