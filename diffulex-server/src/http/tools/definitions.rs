//! Definitions of tools, in one form for all interfaces, and their limits.
//!
//! Never here: the fields in which interfaces send them ([`super::fields`]).

use serde_json::{Map, Value, json};

use crate::http::answer::error::ApiError;

/// Most tools of a request: OpenAI's limit.
const MAX_TOOLS: usize = 128;

/// Most bytes of JSON of all definitions. Chosen by us: 2 KiB for each of the most tools, several times a usual definition.
const MAX_DEFINITION_BYTES: usize = 256 * 1024;

/// Longest name: OpenAI's limit.
const MAX_NAME_BYTES: usize = 64;

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) struct Tool {
    /// Its name in calls.
    pub(in crate::http) name: String,
    /// What it does.
    pub(in crate::http) description: Option<String>,
    /// Schema of its arguments, an object's.
    pub(in crate::http) parameters: Map<String, Value>,
    /// Calls of it always fit the schema.
    pub(in crate::http) is_strict: bool,
}

impl Tool {
    /// The tool that the client calls `field`, e.g. `tools[0].function`; `schema` is the name of the schema's field there.
    pub(in crate::http) fn checked(
        field: &str,
        name: Option<String>,
        description: Option<String>,
        (schema, parameters): (&str, Option<Map<String, Value>>),
        strict: Option<bool>,
    ) -> Result<Self, ApiError> {
        let place = format!("{field}.name");
        let Some(name) = name else { return Err(ApiError::invalid(&place, format!("{place} is required"))) };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(is_plain) {
            let message =
                format!("{place} must be 1 to {MAX_NAME_BYTES} characters of A-Z, a-z, 0-9, _ and -, got {name:?}");
            return Err(ApiError::invalid(&place, message));
        }
        let parameters = parameters.filter(|schema| !schema.is_empty()).unwrap_or_else(no_parameters);
        match parameters.get("type") {
            None => {}
            Some(Value::String(kind)) if kind == "object" => {}
            Some(kind) => {
                let place = format!("{field}.{schema}.type");
                return Err(ApiError::invalid(&place, format!("{place} must be \"object\", got {kind}")));
            }
        }
        Ok(Self { name, description, parameters, is_strict: strict == Some(true) })
    }

    /// A tool called `name` with any arguments.
    #[cfg(test)]
    pub(in crate::http) fn of_test(name: &str) -> Self {
        Self { name: name.to_owned(), description: None, parameters: no_parameters(), is_strict: false }
    }

    /// The tool as chat templates expect it.
    pub(super) fn for_template(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), self.name.as_str().into());
        if let Some(description) = &self.description {
            function.insert("description".to_owned(), description.as_str().into());
        }
        function.insert("parameters".to_owned(), self.parameters.clone().into());
        json!({"type": "function", "function": function})
    }

    /// Schema of its arguments, as JSON.
    pub(super) fn schema(&self) -> String {
        Value::from(self.parameters.clone()).to_string()
    }
}

/// The schema of a tool without parameters.
fn no_parameters() -> Map<String, Value> {
    [("type".to_owned(), json!("object")), ("properties".to_owned(), json!({}))].into_iter().collect()
}

/// Refuses more tools than the limits allow, and two of one name.
pub(super) fn check(tools: &[Tool]) -> Result<(), ApiError> {
    let n_tools = tools.len();
    if n_tools > MAX_TOOLS {
        return Err(ApiError::invalid("tools", format!("tools must have at most {MAX_TOOLS} entries, got {n_tools}")));
    }
    let bytes = |tool: &Tool| tool.name.len() + tool.description.as_ref().map_or(0, String::len) + tool.schema().len();
    let n_bytes: usize = tools.iter().map(bytes).sum();
    if n_bytes > MAX_DEFINITION_BYTES {
        let message = format!("tools must have at most {MAX_DEFINITION_BYTES} bytes of definitions, got {n_bytes}");
        return Err(ApiError::invalid("tools", message));
    }
    let is_repeated = |(index, tool): &(usize, &Tool)| tools[..*index].iter().any(|other| other.name == tool.name);
    match tools.iter().enumerate().find(is_repeated) {
        Some((index, tool)) => {
            let place = format!("tools[{index}]");
            Err(ApiError::invalid(&place, format!("{place}: {:?} is the name of another tool", tool.name)))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Result<Tool, ApiError> {
        Tool::checked("tools[0].function", Some(name.to_owned()), None, ("parameters", None), None)
    }

    #[test]
    fn a_name_has_sixty_four_plain_characters_at_most() {
        for name in ["f", "get_weather-2", &"x".repeat(64)] {
            assert!(tool(name).is_ok(), "{name}");
        }
        for name in ["", "get weather", "größe", "a.b", &"x".repeat(65)] {
            let error = tool(name).unwrap_err();
            let known = "tools[0].function.name must be 1 to 64 characters of A-Z, a-z, 0-9, _ and -, got";
            assert_eq!(error.message(), format!("{known} {name:?}"));
        }
    }

    #[test]
    fn tools_have_limits_and_names_of_their_own() {
        let tools = |n: usize| (0..n).map(|n| tool(&format!("f{n}")).unwrap()).collect::<Vec<_>>();
        assert!(check(&tools(128)).is_ok());
        let message = |tools: &[Tool]| check(tools).unwrap_err().message().to_owned();
        assert_eq!(message(&tools(129)), "tools must have at most 128 entries, got 129");
        assert_eq!(message(&[tool("f").unwrap(), tool("f").unwrap()]), "tools[1]: \"f\" is the name of another tool");
        let mut long = tools(1);
        long[0].description = Some("x".repeat(256 * 1024));
        assert!(message(&long).starts_with("tools must have at most 262144 bytes of definitions, got 2621"));
    }

    #[test]
    fn a_tool_without_parameters_takes_an_empty_object() {
        let tool = tool("f").unwrap();
        assert_eq!(tool.schema(), r#"{"type":"object","properties":{}}"#);
        let function = json!({"name": "f", "parameters": {"type": "object", "properties": {}}});
        assert_eq!(tool.for_template(), json!({"type": "function", "function": function}));
        let list = Some([("type".to_owned(), json!("array"))].into_iter().collect());
        let error = Tool::checked("tools[0]", Some("f".to_owned()), None, ("input_schema", list), None).unwrap_err();
        assert_eq!(error.message(), "tools[0].input_schema.type must be \"object\", got \"array\"");
    }
}
