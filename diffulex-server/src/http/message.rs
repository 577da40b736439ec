//! One message of a conversation, as clients write it: a role, and text or parts of it.
//!
//! Never here: chat templates, other fields of a request.

use diffulex_protocol::ChatMessage;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::error::ApiError;
use super::fields::{ContentField, ContentPart};
use super::other_fields::is_empty;

/// One message as clients write it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct MessageField {
    pub(super) role: String,
    #[serde(default)]
    pub(super) content: Option<ContentField>,
    #[serde(default)]
    pub(super) tool_calls: Option<Value>,
}

/// Who may speak. A template takes any text for a role, and would write it beside its own markup.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

impl MessageField {
    /// The message of its role and text; `index` is its place, for errors.
    pub(super) fn into_chat_message(self, index: usize) -> Result<ChatMessage, ApiError> {
        if !ROLES.contains(&self.role.as_str()) {
            let param = format!("messages[{index}].role");
            let what = match self.role.as_str() {
                "tool" | "function" => "is a role of tools, which are not supported",
                _ => "is unknown",
            };
            let message = format!("{param}: {:?} {what}; roles are {}", self.role, ROLES.join(", "));
            return Err(ApiError::invalid(&param, message));
        }
        if self.tool_calls.is_some_and(|calls| !is_empty(&calls)) {
            let param = format!("messages[{index}].tool_calls");
            return Err(ApiError::invalid(&param, format!("{param} is not supported by this server")));
        }
        let content = match self.content {
            Some(ContentField::Text(text)) => text,
            Some(ContentField::List(parts)) => {
                let texts = parts.into_iter().map(|part| part.into_text(index));
                texts.collect::<Result<Vec<_>, _>>()?.join("")
            }
            None if self.role == "assistant" => String::new(),
            None => {
                let param = format!("messages[{index}].content");
                return Err(ApiError::invalid(&param, format!("{param} is required for role {:?}", self.role)));
            }
        };
        // OpenAI's newer name of the same role; no template knows it.
        let role = if self.role == "developer" { "system".to_owned() } else { self.role };
        Ok(ChatMessage { role, content })
    }
}

impl ContentPart {
    fn into_text(self, index: usize) -> Result<String, ApiError> {
        let what = match (self.kind.as_str(), self.text) {
            ("text" | "input_text", Some(text)) => return Ok(text),
            ("text" | "input_text", None) => "a part of type text without a text".to_owned(),
            (kind, _) => format!("a part of type {kind:?}; this model takes text only"),
        };
        let param = format!("messages[{index}].content");
        Err(ApiError::invalid(&param, format!("{param} holds {what}")))
    }
}
