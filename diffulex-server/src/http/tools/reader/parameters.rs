//! Qwen3-Coder's notation: `<function=NAME>`, for each argument `<parameter=KEY>` and its value as text, `</parameter>`, then `</function>`.
//!
//! Values have no types of their own: the tool's schema tells whether one is a text or JSON.

use serde_json::{Map, Value};

use super::cursor::{Cursor, Miss};
use crate::http::tools::definitions::Tool;

/// Deepest nesting of alternatives and references. Chosen by us.
const MAX_DEPTH: usize = 8;

/// Passes a call; its name and its arguments.
pub(super) fn call(cursor: &mut Cursor<'_>, tools: &[Tool]) -> Result<(String, Map<String, Value>), Miss> {
    cursor.literal("<function=")?;
    let name = cursor.name_up_to('>')?;
    let tool = tools.iter().find(|tool| tool.name == name);
    let schema_of = |key: &str| tool?.parameters.get("properties")?.get(key);
    let definition_of =
        |name: &str| ["$defs", "definitions"].into_iter().find_map(|of| tool?.parameters.get(of)?.get(name));
    let mut arguments = Map::new();
    loop {
        cursor.skip_space();
        if cursor.takes("</function>")? {
            return Ok((name.to_owned(), arguments));
        }
        cursor.literal("<parameter=")?;
        let key = cursor.name_up_to('>')?;
        let text = cursor.up_to("</parameter>")?;
        // The line ends around a value belong to the notation.
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        let mut types = Vec::new();
        if let Some(schema) = schema_of(key) {
            add_types(schema, &definition_of, MAX_DEPTH, &mut types);
        }
        arguments.insert(key.to_owned(), value(text, &types));
    }
}

/// A value by the types of its schema: JSON where they have no text, if it is JSON. What is not stays a text, which the client can judge.
fn value(text: &str, types: &[&str]) -> Value {
    let is_null = types.contains(&"null") && text.trim() == "null";
    if is_null || !(types.is_empty() || types.contains(&"string")) {
        let json = serde_json::from_str(text).ok();
        // Python's words.
        let word = || match text.trim() {
            "True" => Some(Value::Bool(true)),
            "False" => Some(Value::Bool(false)),
            "None" => Some(Value::Null),
            _ => None,
        };
        if let Some(value) = json.or_else(word) {
            return value;
        }
    }
    text.into()
}

/// The types that a schema names: its own, those of its alternatives and parts, of the definition it refers to, and of its values.
fn add_types<'a>(
    schema: &'a Value,
    definition_of: &dyn Fn(&str) -> Option<&'a Value>,
    depth: usize,
    types: &mut Vec<&'a str>,
) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match schema.get("type") {
        Some(Value::String(name)) => types.push(name),
        Some(Value::Array(names)) => types.extend(names.iter().filter_map(Value::as_str)),
        _ => {}
    }
    let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"));
    types.extend(values.map(|value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }));
    let parts = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array()).flatten();
    let named = schema.get("$ref").and_then(Value::as_str).and_then(|path| definition_of(path.rsplit('/').next()?));
    parts.chain(named).for_each(|schema| add_types(schema, definition_of, depth, types));
}
