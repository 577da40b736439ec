//! Texts of an input and of questions: parts, JSON, tool calls, all as messages of a conversation.
//!
//! Messages of the same role in a row become one, as many chat templates want roles that alternate. Never here: questions.

use std::collections::BTreeSet;

use diffulex_engine::ChatMessage;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::http::answer::error::ApiError;
use crate::http::request::fields::TextOr;

/// Limits of a JSON part, OpenAI's: containers inside each other, values, and bytes of compact JSON.
const MAX_LEVELS: usize = 32;
const MAX_VALUES: usize = 10_000;
const MAX_JSON_BYTES: usize = 256 << 10;

/// Who may speak.
const ROLES: [&str; 4] = ["user", "developer", "system", "assistant"];

/// A part of a text.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
    /// JSON that is read as text.
    #[serde(default)]
    data: Option<Value>,
}

/// A text, whole or in parts.
pub(super) type Content = TextOr<Part>;

/// A message, a call or the output of a call.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Item {
    /// `message` where it is left out.
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    call_id: Option<String>,
    /// Name of the function or tool that is called.
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
    /// Input of a custom tool.
    #[serde(default)]
    input: Option<String>,
    #[serde(default)]
    output: Option<Content>,
}

/// The input as a conversation.
pub(super) fn conversation(input: TextOr<Item>) -> Result<Vec<ChatMessage>, ApiError> {
    let items = match input {
        TextOr::Text(text) => return Ok(vec![ChatMessage::new("user", text)]),
        TextOr::List(items) if items.is_empty() => {
            return Err(ApiError::invalid("input", "input must not be empty"));
        }
        TextOr::List(items) => items,
    };
    let mut calls = BTreeSet::new();
    let mut messages: Vec<ChatMessage> = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let ChatMessage { role, content, .. } = item.into_message(&format!("input[{index}]"), &mut calls)?;
        match messages.last_mut() {
            Some(last) if last.role == role => last.content = format!("{}\n\n{content}", last.content),
            Some(_) | None => messages.push(ChatMessage::new(role, content)),
        }
    }
    Ok(messages)
}

impl Item {
    /// Its message; `calls` has the ids of the calls before it.
    fn into_message(self, field: &str, calls: &mut BTreeSet<String>) -> Result<ChatMessage, ApiError> {
        let missing = |name: &str| {
            let place = format!("{field}.{name}");
            ApiError::invalid(&place, format!("{place} is required"))
        };
        let Self { kind, role, content, call_id, name, arguments, input, output } = self;
        let kind = kind.as_deref().unwrap_or("message");
        let written = match kind {
            "message" => {
                let role = role.ok_or_else(|| missing("role"))?;
                if !ROLES.contains(&role.as_str()) {
                    let place = format!("{field}.role");
                    let message = format!("{place}: {role:?} is unknown; roles are {}", ROLES.join(", "));
                    return Err(ApiError::invalid(&place, message));
                }
                let content = content.ok_or_else(|| missing("content"))?;
                // OpenAI's newer name of the same role; no template knows it.
                let role = if role == "developer" { "system".to_owned() } else { role };
                return Ok(ChatMessage::new(role, text_of(&format!("{field}.content"), content)?));
            }
            "function_call" | "custom_tool_call" => {
                let id = call_id.ok_or_else(|| missing("call_id"))?;
                let name = name.ok_or_else(|| missing("name"))?;
                let given = if kind == "function_call" {
                    arguments.ok_or_else(|| missing("arguments"))?
                } else {
                    input.ok_or_else(|| missing("input"))?
                };
                let content = format!("Call {id} of {name}: {given}");
                calls.insert(id);
                ("assistant", content)
            }
            "function_call_output" | "custom_tool_call_output" => {
                let id = call_id.ok_or_else(|| missing("call_id"))?;
                if !calls.contains(&id) {
                    let place = format!("{field}.call_id");
                    return Err(ApiError::invalid(&place, format!("{place}: no call before it has the id {id:?}")));
                }
                let output = text_of(&format!("{field}.output"), output.ok_or_else(|| missing("output"))?)?;
                ("user", format!("Output of call {id}: {output}"))
            }
            kind => {
                let place = format!("{field}.type");
                return Err(ApiError::invalid(&place, format!("{place}: {kind:?} is unknown")));
            }
        };
        Ok(ChatMessage::new(written.0, written.1))
    }
}

/// The text of `content`, which the client calls `field`. Parts are joined by an empty line.
pub(super) fn text_of(field: &str, content: Content) -> Result<String, ApiError> {
    let parts = match content {
        TextOr::Text(text) => return Ok(text),
        TextOr::List(parts) => parts,
    };
    let texts = parts.into_iter().enumerate().map(|(index, part)| part.into_text(&format!("{field}[{index}]")));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n\n"))
}

impl Part {
    fn into_text(self, field: &str) -> Result<String, ApiError> {
        let missing = |name: &str| {
            let place = format!("{field}.{name}");
            ApiError::invalid(&place, format!("{place} is required"))
        };
        match self.kind.as_str() {
            "input_text" | "output_text" => self.text.ok_or_else(|| missing("text")),
            "refusal" => self.refusal.ok_or_else(|| missing("refusal")),
            "input_json" => json_text(&format!("{field}.data"), &self.data.ok_or_else(|| missing("data"))?),
            "input_image" => Err(ApiError::unsupported_modality(&format!("{field}.type"), "images")),
            kind => {
                let place = format!("{field}.type");
                let known = "input_text, input_json, output_text, refusal";
                Err(ApiError::invalid(&place, format!("{place}: {kind:?} is unknown; parts are {known}")))
            }
        }
    }
}

/// JSON as the model reads it: compact, within the limits of a part.
pub(super) fn json_text(field: &str, value: &Value) -> Result<String, ApiError> {
    let too_much =
        |what: &str, limit: usize| Err(ApiError::invalid(field, format!("{field} has more than {limit} {what}")));
    // Level by level, so that no depth of the value is a depth of calls.
    let (mut level, mut n_values) = (vec![value], 0);
    for depth in 0.. {
        n_values += level.len();
        if n_values > MAX_VALUES {
            return too_much("values", MAX_VALUES);
        }
        let has_containers = level.iter().any(|value| value.is_array() || value.is_object());
        if !has_containers {
            break;
        }
        if depth == MAX_LEVELS {
            return too_much("levels", MAX_LEVELS);
        }
        level = level.into_iter().flat_map(children).collect();
    }
    let text = value.to_string();
    if text.len() > MAX_JSON_BYTES { too_much("bytes of compact JSON", MAX_JSON_BYTES) } else { Ok(text) }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// A text that may be given as JSON.
pub(super) fn text_or_json(field: &str, value: &Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        value => json_text(field, value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(input: Value) -> Result<Vec<(String, String)>, String> {
        let messages = conversation(serde_json::from_value(input).unwrap());
        let pair = |ChatMessage { role, content, .. }| (role, content);
        messages.map(|all| all.into_iter().map(pair).collect()).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn items_become_messages_whose_roles_alternate() {
        let input = json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "input_text", "text": "Look:"}, {"type": "input_json", "data": {"b": [1, null], "a": "x"}}
            ]},
            {"role": "user", "content": "Well?"},
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "nothing"},
        ]);
        let messages = read(input).unwrap();
        let roles: Vec<&str> = messages.iter().map(|(role, _)| role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert!(messages[1].1.starts_with("Look:\n\n{") && messages[1].1.ends_with("}\n\nWell?"), "{}", messages[1].1);
        assert_eq!(messages[2].1, "Call c1 of find: {}");
        assert_eq!(messages[3].1, "Output of call c1: nothing");
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        for (input, message) in [
            (json!([]), "input must not be empty"),
            (json!([{"role": "user"}]), "input[0].content is required"),
            (json!([{"role": "tool", "content": "x"}]), "input[0].role: \"tool\" is unknown"),
            (json!([{"type": "reasoning"}]), "input[0].type: \"reasoning\" is unknown"),
            (json!([{"type": "function_call_output", "call_id": "c", "output": "x"}]), "input[0].call_id: no call"),
            (json!([{"role": "user", "content": [{"type": "input_text"}]}]), "input[0].content[0].text is required"),
            (json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]), "images"),
        ] {
            let error = read(input).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn json_has_limits_at_which_it_still_passes() {
        let nested = |levels: usize| (1..levels).fold(json!([]), |inner, _| json!([inner]));
        assert!(json_text("data", &nested(32)).is_ok());
        assert!(json_text("data", &nested(33)).unwrap_err().message().contains("32 levels"));
        // The list is a value, too.
        assert!(json_text("data", &json!(vec![1; 9_999])).is_ok());
        assert!(json_text("data", &json!(vec![1; 10_000])).unwrap_err().message().contains("10000 values"));
        assert!(json_text("data", &json!(["x".repeat(262_144 - 4)])).is_ok());
        assert!(json_text("data", &json!(["x".repeat(262_144 - 3)])).unwrap_err().message().contains("262144 bytes"));
    }
}
