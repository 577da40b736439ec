//! One message of a conversation, as clients write it: a role, and text or parts of it.
//!
//! Never here: chat templates, other fields of a request.

use diffulex_engine::ChatMessage;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::http::answer::error::ApiError;
use crate::http::request::field_lists::is_empty;
use crate::http::request::fields::{ContentField, ContentPart};

/// One message as clients write it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in crate::http) struct MessageField {
    pub(in crate::http) role: String,
    #[serde(default)]
    pub(in crate::http) content: Option<ContentField>,
    #[serde(default)]
    pub(in crate::http) tool_calls: Option<Value>,
}

/// Kinds of parts that are text.
const TEXT_PARTS: [&str; 2] = ["text", "input_text"];

/// Who may speak. A template takes any text for a role, and would write it beside its own markup.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

impl MessageField {
    /// Its content is a text that ends with whitespace.
    pub(in crate::http) fn ends_with_space(&self) -> bool {
        matches!(&self.content, Some(ContentField::Text(text)) if text.ends_with(char::is_whitespace))
    }

    /// The message of its role and text; `index` is its place, for errors.
    fn into_chat_message(self, index: usize) -> Result<ChatMessage, ApiError> {
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
            Some(content) => text_of(&format!("messages[{index}].content"), content, &TEXT_PARTS)?,
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

/// The messages of a conversation; an error when there is none.
pub(in crate::http) fn chat_messages(messages: Vec<MessageField>) -> Result<Vec<ChatMessage>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages must not be empty"));
    }
    messages.into_iter().enumerate().map(|(index, message)| message.into_chat_message(index)).collect()
}

/// Text of a field that may be a text or a list of parts: those of `kinds`, joined. Others are refused by their place.
pub(in crate::http) fn text_of(field: &str, content: ContentField, kinds: &[&str]) -> Result<String, ApiError> {
    let parts = match content {
        ContentField::Text(text) => return Ok(text),
        ContentField::List(parts) => parts,
    };
    let texts = parts.into_iter().enumerate().map(|(index, ContentPart { kind, text })| match text {
        Some(text) if kinds.contains(&kind.as_str()) => Ok(text),
        None if kinds.contains(&kind.as_str()) => {
            let param = format!("{field}[{index}].text");
            Err(ApiError::invalid(&param, format!("{param} is required")))
        }
        _ => {
            let param = format!("{field}[{index}].type");
            let known = kinds.join(", ");
            Err(ApiError::invalid(&param, format!("{param}: {kind:?} is not supported; this server takes {known}")))
        }
    });
    texts.collect()
}
