//! Qwen3-Coder's notation: `<function=NAME>`, for each argument `<parameter=KEY>` and its value as text, `</parameter>`, then `</function>`.
//!
//! Values have no types of their own: the tool's schema tells whether one is a text or JSON.

use serde_json::{Map, Value};

use super::cursor::{Cursor, Match};
use crate::http::tools::definitions::Tool;

/// Passes a call; its name and its arguments.
pub(super) fn call(cursor: &mut Cursor<'_>, tools: &[Tool]) -> Match<(String, Map<String, Value>)> {
    let name = match cursor.literal("<function=").and(|| cursor.up_to(">")) {
        Match::Yes(name) => name.trim(),
        Match::No => return Match::No,
        Match::Open => return Match::Open,
    };
    let properties = tools.iter().find(|tool| tool.name == name).and_then(|tool| tool.parameters.get("properties"));
    let mut arguments = Map::new();
    loop {
        match cursor.token("</function>") {
            Match::Yes(()) => return Match::Yes((name.to_owned(), arguments)),
            Match::Open => return Match::Open,
            Match::No => {}
        }
        let key = match cursor.literal("<parameter=").and(|| cursor.up_to(">")) {
            Match::Yes(key) => key.trim(),
            Match::No => return Match::No,
            Match::Open => return Match::Open,
        };
        let text = match cursor.up_to("</parameter>") {
            Match::Yes(text) => text,
            Match::No => return Match::No,
            Match::Open => return Match::Open,
        };
        // The line ends around a value belong to the notation.
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        arguments.insert(key.to_owned(), value(text, properties.and_then(|properties| properties.get(key))));
    }
}

/// A value by its schema: JSON where the schema takes no text, if it is JSON. What is not stays a text, which the client can judge.
fn value(text: &str, schema: Option<&Value>) -> Value {
    let mut types = Vec::new();
    schema.iter().for_each(|schema| add_types(schema, &mut types));
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

/// The types that a schema names, also in its alternatives.
fn add_types<'a>(schema: &'a Value, types: &mut Vec<&'a str>) {
    match schema.get("type") {
        Some(Value::String(name)) => types.push(name),
        Some(Value::Array(names)) => types.extend(names.iter().filter_map(Value::as_str)),
        _ => {}
    }
    let alternatives = ["anyOf", "oneOf"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array());
    alternatives.flatten().for_each(|schema| add_types(schema, types));
}
