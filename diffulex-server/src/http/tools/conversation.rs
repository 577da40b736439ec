//! A conversation as the chat template takes it: with tools, or with their text where the template has no place for them.

use std::collections::BTreeMap;

use diffulex_engine::{ChatMessage, ConversationEnd, ServingInput};

use super::forms::Form;
use super::offer::Offer;
use super::prompt;
use crate::http::answer::error::ApiError;
use crate::http::app::AppState;
use crate::http::reasoning::Settled;
use crate::http::reasoning::wish::Wish;

/// The input that `messages` are up to `end`, with the tools of `offer`, and the thinking that `wish` asks for.
pub(in crate::http) fn input(
    app: &AppState,
    (mut messages, end): (Vec<ChatMessage>, ConversationEnd),
    offer: Option<&Offer>,
    wish: Wish,
) -> Result<(ServingInput, Settled), ApiError> {
    check_continued(&messages, end)?;
    let settled = app.reasoning.settle(wish, &messages, end)?;
    let variables = settled.variables.clone();
    name_results(&mut messages);
    let tools = offer.map(Offer::for_template).unwrap_or_default();
    let text = app.frontend.text();
    let has_calls = messages.iter().any(|message| message.role == "tool" || !message.tool_calls.is_empty());
    if text.template_reads("tools") || tools.is_empty() && !has_calls {
        return Ok((ServingInput::Chat { messages, tools, variables }, settled));
    }
    let form = offer.map_or_else(|| Form::of(app.options.tool_call_parser, text.chat_template()), |offer| offer.form);
    let messages = prompt::in_text(messages, &tools, form);
    Ok((ServingInput::Chat { messages, tools: Vec::new(), variables }, settled))
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
