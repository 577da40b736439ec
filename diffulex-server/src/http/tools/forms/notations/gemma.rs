//! `call:NAME{key:<|"|>text<|"|>,n:3}`: Gemma 4. Keys have no marks, texts have one before and behind.

use diffulex_engine::ToolCall;
use serde_json::{Map, Value};

/// The mark around a text.
pub(in crate::http::tools) const QUOTE: &str = "<|\"|>";

pub(in crate::http::tools::forms) const EXAMPLE: &str = "call:NAME{KEY:<|\"|>TEXT<|\"|>,KEY:NUMBER}";

pub(in crate::http::tools::forms) fn call(call: &ToolCall) -> String {
    format!("call:{}{}", call.name, object(&call.arguments))
}

fn object(members: &Map<String, Value>) -> String {
    let members = members.iter().map(|(key, member)| format!("{key}:{}", value(member)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

fn value(written: &Value) -> String {
    match written {
        Value::String(text) => format!("{QUOTE}{text}{QUOTE}"),
        Value::Array(values) => format!("[{}]", values.iter().map(value).collect::<Vec<_>>().join(",")),
        Value::Object(members) => object(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => written.to_string(),
    }
}
