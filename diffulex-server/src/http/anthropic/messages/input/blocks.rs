//! Blocks of a turn: thoughts, text, calls of tools, and their results.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::http::answer::error::ApiError;
use crate::http::request::fields::{ContentField, ContentPart};
use crate::http::request::interface::message;
use crate::http::request::message::{MessageField, text_of};
use crate::http::tools::fields::CallField;

/// A block of a turn.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, expecting = "a block")]
pub(super) struct Block {
    /// `text`, `thinking`, `redacted_thinking`, `tool_use` or `tool_result`.
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    /// Thoughts of a `thinking`.
    thinking: Option<String>,
    /// Id of a `tool_use`.
    id: Option<String>,
    /// Tool of a `tool_use`.
    name: Option<String>,
    /// Arguments of a `tool_use`.
    input: Option<Map<String, Value>>,
    /// The call of a `tool_result`.
    tool_use_id: Option<String>,
    /// The result.
    content: Option<ContentField>,
}

/// Adds the messages that the blocks of a turn are: results are messages of their own, before the text beside them.
pub(super) fn add(
    messages: &mut Vec<MessageField>,
    field: &str,
    role: &str,
    blocks: Vec<Block>,
) -> Result<(), ApiError> {
    let (mut parts, mut calls, mut thoughts) = (Vec::new(), Vec::new(), String::new());
    let n_before = messages.len();
    for (index, block) in blocks.into_iter().enumerate() {
        let place = format!("{field}[{index}]");
        let missing = |name: &str| {
            let place = format!("{place}.{name}");
            ApiError::invalid(&place, format!("{place} is required"))
        };
        let Block { kind, text, thinking, id, name, input, tool_use_id, content } = block;
        match (kind.as_str(), role) {
            ("thinking", "assistant") => thoughts.push_str(&thinking.ok_or_else(|| missing("thinking"))?),
            // Of a model that is not here; nobody else can read it.
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let id = id.ok_or_else(|| missing("id"))?;
                let name = name.ok_or_else(|| missing("name"))?;
                calls.push(CallField::of(id, name, Value::Object(input.unwrap_or_default())));
            }
            ("tool_result", "user") => {
                let id = tool_use_id.ok_or_else(|| missing("tool_use_id"))?;
                let text = content.map(|content| text_of(&format!("{place}.content"), content, &["text"]));
                let text = text.transpose()?.unwrap_or_default();
                messages.push(MessageField { tool_call_id: Some(id), ..message("tool", text) });
            }
            ("thinking" | "redacted_thinking" | "tool_use" | "tool_result", _) => {
                let place = format!("{place}.type");
                return Err(ApiError::invalid(&place, format!("{place}: {kind:?} is no block of role {role:?}")));
            }
            _ => parts.push((place, ContentPart { kind, text })),
        }
    }
    let has_results = messages.len() > n_before;
    let mut text = String::new();
    for (place, part) in parts {
        text.push_str(&text_of_block(&place, part)?);
    }
    if text.is_empty() && has_results {
        return Ok(());
    }
    let calls = (!calls.is_empty()).then_some(calls);
    let reasoning_content = Some(thoughts).filter(|thoughts| !thoughts.is_empty());
    messages.push(MessageField { tool_calls: calls, reasoning_content, ..message(role, text) });
    Ok(())
}

/// The text of the block that the client calls `place`.
fn text_of_block(place: &str, block: ContentPart) -> Result<String, ApiError> {
    match block {
        ContentPart { kind, text: Some(text) } if kind == "text" => Ok(text),
        ContentPart { kind, .. } if kind == "text" => {
            let place = format!("{place}.text");
            Err(ApiError::invalid(&place, format!("{place} is required")))
        }
        ContentPart { kind, .. } => {
            let place = format!("{place}.type");
            let known = "text, thinking, tool_use and tool_result";
            Err(ApiError::invalid(&place, format!("{place}: {kind:?} is not supported; this server takes {known}")))
        }
    }
}
