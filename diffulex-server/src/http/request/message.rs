//! One message of a conversation, as clients write it: a role, and text or parts of it.
//!
//! Never here: chat templates, other fields of a request.

use diffulex_engine::ChatMessage;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::http::answer::error::ApiError;
use crate::http::request::fields::{ContentField, ContentPart};
use crate::http::tools::fields::CallField;

/// One message as clients write it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(in crate::http) struct MessageField {
    pub(in crate::http) role: String,
    #[serde(default)]
    pub(in crate::http) content: Option<ContentField>,
    /// Calls of tools that the assistant made.
    #[serde(default)]
    pub(in crate::http) tool_calls: Option<Vec<CallField>>,
    /// The call whose result a message of role `tool` is.
    #[serde(default)]
    pub(in crate::http) tool_call_id: Option<String>,
    /// What the assistant thought before its content.
    #[serde(default, alias = "reasoning")]
    pub(in crate::http) reasoning_content: Option<String>,
    /// The tool whose result a message of role `tool` is; of other roles it is ignored.
    #[serde(default)]
    pub(in crate::http) name: Option<String>,
}

/// Kinds of parts that are text.
const TEXT_PARTS: [&str; 2] = ["text", "input_text"];

/// Who may speak. A template takes any text for a role, and would write it beside its own markup.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

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
                "function" => "is the older name of \"tool\"",
                _ => "is unknown",
            };
            let message = format!("{param}: {:?} {what}; roles are {}", self.role, ROLES.join(", "));
            return Err(ApiError::invalid(&param, message));
        }
        let calls = self.tool_calls.unwrap_or_default();
        if !calls.is_empty() && self.role != "assistant" {
            let param = format!("messages[{index}].tool_calls");
            return Err(ApiError::invalid(&param, format!("{param}: role {:?} makes no calls of tools", self.role)));
        }
        let call = |(nth, call): (usize, CallField)| call.into_call(&format!("messages[{index}].tool_calls[{nth}]"));
        let tool_calls = calls.into_iter().enumerate().map(call).collect::<Result<_, _>>()?;
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
        let is_result = role == "tool";
        let of_result = |field: Option<String>| field.filter(|_| is_result);
        let (tool_call_id, name) = (of_result(self.tool_call_id), of_result(self.name));
        let reasoning = self.reasoning_content.filter(|thoughts| role == "assistant" && !thoughts.is_empty());
        Ok(ChatMessage { role, content, reasoning, tool_calls, tool_call_id, name })
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
