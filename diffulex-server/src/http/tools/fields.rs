//! Tools and calls as the interfaces send them.
//!
//! Only functions are served: tools that a provider would run itself are refused by their type.

use diffulex_engine::ToolCall;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::definitions::Tool;
use crate::http::answer::error::ApiError;

/// A tool of OpenAI's chat and of Ollama.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "a tool")]
pub(in crate::http) struct ToolField {
    /// `function`.
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    function: Option<FunctionField>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
struct FunctionField {
    /// 1 to 64 characters of A-Z, a-z, 0-9, _ and -.
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    description: Option<String>,
    /// JSON schema of the arguments.
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
    /// Calls always fit the schema.
    #[serde(default)]
    strict: Option<bool>,
}

/// A tool of OpenAI's responses, which answers repeat.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(expecting = "a tool")]
pub(in crate::http) struct FlatToolField {
    /// `function`.
    #[serde(rename = "type")]
    kind: String,
    /// 1 to 64 characters of A-Z, a-z, 0-9, _ and -.
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    description: Option<String>,
    /// JSON schema of the arguments.
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
    /// Calls always fit the schema.
    #[serde(default)]
    strict: Option<bool>,
}

/// A tool of Anthropic's messages.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "a tool")]
pub(in crate::http) struct InputToolField {
    /// `custom` or left out.
    #[serde(rename = "type", default)]
    kind: Option<String>,
    /// 1 to 64 characters of A-Z, a-z, 0-9, _ and -.
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    description: Option<String>,
    /// JSON schema of the arguments.
    #[serde(default)]
    input_schema: Option<Map<String, Value>>,
    /// Calls always fit the schema.
    #[serde(default)]
    strict: Option<bool>,
}

/// A call in a message of OpenAI's chat or of Ollama.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "a call")]
pub(in crate::http) struct CallField {
    #[serde(default)]
    id: Option<String>,
    /// `function` or left out.
    #[serde(rename = "type", default)]
    kind: Option<String>,
    function: CalledField,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
struct CalledField {
    name: String,
    /// JSON of an object, or the object.
    #[serde(default)]
    arguments: Value,
}

/// The error of a tool of another kind.
fn refused(field: &str, kind: &str) -> ApiError {
    let message = format!("{field} is not supported by this server (type {kind:?}); it takes functions");
    ApiError::invalid(field, message)
}

impl ToolField {
    /// The tool at `index`.
    pub(in crate::http) fn into_tool(self, index: usize) -> Result<Tool, ApiError> {
        let field = format!("tools[{index}]");
        match (self.kind.as_deref(), self.function) {
            (None | Some("function"), Some(FunctionField { name, description, parameters, strict })) => {
                Tool::checked(&format!("{field}.function"), name, description, ("parameters", parameters), strict)
            }
            (None | Some("function"), None) => {
                let place = format!("{field}.function");
                Err(ApiError::invalid(&place, format!("{place} is required")))
            }
            (Some(kind), _) => Err(refused(&field, kind)),
        }
    }
}

impl FlatToolField {
    /// The tool at `index`.
    pub(in crate::http) fn into_tool(self, index: usize) -> Result<Tool, ApiError> {
        let field = format!("tools[{index}]");
        if self.kind != "function" {
            return Err(refused(&field, &self.kind));
        }
        Tool::checked(&field, self.name, self.description, ("parameters", self.parameters), self.strict)
    }
}

impl InputToolField {
    /// The tool at `index`.
    pub(in crate::http) fn into_tool(self, index: usize) -> Result<Tool, ApiError> {
        let field = format!("tools[{index}]");
        if let Some(kind) = self.kind.filter(|kind| kind != "custom") {
            return Err(refused(&field, &kind));
        }
        Tool::checked(&field, self.name, self.description, ("input_schema", self.input_schema), self.strict)
    }
}

impl CallField {
    /// A call of `name`.
    pub(in crate::http) fn of(id: String, name: String, arguments: Value) -> Self {
        Self { id: Some(id), kind: None, function: CalledField { name, arguments } }
    }

    /// A call whose arguments are JSON in a text that the client calls `field`.
    pub(in crate::http) fn of_text(id: String, name: String, (field, text): (&str, String)) -> Result<Self, ApiError> {
        Ok(Self::of(id, name, arguments_of(field, text.into())?.into()))
    }

    /// The call that the client calls `field`.
    pub(in crate::http) fn into_call(self, field: &str) -> Result<ToolCall, ApiError> {
        if let Some(kind) = self.kind.filter(|kind| kind != "function") {
            let place = format!("{field}.type");
            return Err(ApiError::invalid(&place, format!("{place} must be \"function\", got {kind:?}")));
        }
        let CalledField { name, arguments } = self.function;
        let arguments = arguments_of(&format!("{field}.function.arguments"), arguments)?;
        Ok(ToolCall { id: self.id.unwrap_or_default(), name, arguments })
    }
}

/// Arguments that are an object, or JSON of one in a text.
fn arguments_of(field: &str, arguments: Value) -> Result<Map<String, Value>, ApiError> {
    let read = match arguments {
        Value::Object(arguments) => return Ok(arguments),
        Value::Null => return Ok(Map::new()),
        Value::String(text) if text.trim().is_empty() => return Ok(Map::new()),
        Value::String(text) => serde_json::from_str(&text).ok(),
        _ => None,
    };
    read.ok_or_else(|| ApiError::invalid(field, format!("{field} must be JSON of an object")))
}
