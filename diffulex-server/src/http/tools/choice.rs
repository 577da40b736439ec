//! `tool_choice`: whether tools are called, and which.
//!
//! In: the field as OpenAI's interfaces and Anthropic's have it. Never here: what follows from it ([`super::offer`]).

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::http::answer::error::ApiError;

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::http) enum ToolChoice {
    /// As the model sees fit.
    #[default]
    Auto,
    /// None: the model does not see them.
    Never,
    /// One at least.
    Required,
    /// This one.
    Named(String),
}

/// Anthropic's `tool_choice`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, expecting = "an object with type")]
pub(in crate::http) struct ChoiceField {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    kind: String,
    /// The tool of type `tool`.
    name: Option<String>,
    /// One call at most.
    pub(in crate::http) disable_parallel_tool_use: Option<bool>,
}

const FIELD: &str = "tool_choice";

fn wrong(got: &str) -> ApiError {
    let known = "\"none\", \"auto\", \"required\" or a function's name";
    ApiError::invalid(FIELD, format!("{FIELD} must be {known}, got {got}"))
}

impl ToolChoice {
    /// OpenAI's: a word, or an object with a function's name, in chat's form or in that of responses.
    pub(in crate::http) fn of_openai(choice: Option<&Value>) -> Result<Self, ApiError> {
        let named = |choice: &Value| {
            let function = choice.get("function").unwrap_or(choice);
            function.get("name").and_then(Value::as_str).map(|name| Self::Named(name.to_owned()))
        };
        match choice {
            None | Some(Value::Null) => Ok(Self::Auto),
            Some(Value::String(word)) => match word.as_str() {
                "auto" | "" => Ok(Self::Auto),
                "none" => Ok(Self::Never),
                "required" => Ok(Self::Required),
                _ => Err(wrong(&format!("{word:?}"))),
            },
            Some(choice) => match choice.get("type").and_then(Value::as_str) {
                Some("none") => Ok(Self::Never),
                Some("auto") => Ok(Self::Auto),
                Some("function") => named(choice).ok_or_else(|| wrong(&choice.to_string())),
                Some(kind) => Err(ApiError::invalid(
                    FIELD,
                    format!("{FIELD}: type {kind:?} is not supported by this server; \"function\" is"),
                )),
                None => Err(wrong(&choice.to_string())),
            },
        }
    }

    /// Anthropic's.
    pub(in crate::http) fn of_anthropic(choice: &ChoiceField) -> Result<Self, ApiError> {
        match choice.kind.as_str() {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::Never),
            "any" => Ok(Self::Required),
            "tool" => {
                let place = "tool_choice.name";
                let missing = || ApiError::invalid(place, format!("{place} is required for type \"tool\""));
                choice.name.clone().map(Self::Named).ok_or_else(missing)
            }
            kind => {
                let message = format!("{FIELD}.type must be auto, any, tool or none, got {kind:?}");
                Err(ApiError::invalid(FIELD, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_choice_is_read_in_each_form() {
        let named = ToolChoice::Named("f".to_owned());
        let cases = [
            (json!(null), ToolChoice::Auto),
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::Never),
            (json!("required"), ToolChoice::Required),
            (json!({"type": "function", "function": {"name": "f"}}), named.clone()),
            (json!({"type": "function", "name": "f"}), named.clone()),
        ];
        for (choice, expected) in cases {
            assert_eq!(ToolChoice::of_openai(Some(&choice)).unwrap(), expected, "{choice}");
        }
        for choice in [json!("any"), json!(1), json!({"type": "web_search"}), json!({"type": "function"})] {
            assert!(ToolChoice::of_openai(Some(&choice)).is_err(), "{choice}");
        }
        let of = |choice: Value| ToolChoice::of_anthropic(&serde_json::from_value(choice).unwrap());
        assert_eq!(of(json!({"type": "any"})), Ok(ToolChoice::Required));
        assert_eq!(of(json!({"type": "tool", "name": "f"})), Ok(named));
        assert_eq!(of(json!({"type": "none"})), Ok(ToolChoice::Never));
        assert!(of(json!({"type": "tool"})).is_err() && of(json!({"type": "required"})).is_err());
    }
}
