//! JSON as it was written: members keep their order, and a key given twice is an error.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// Between two members or values. The spaces are those of Python's `json.dumps` and of chat templates' `tojson`, which is the JSON that models
/// have read most.
pub(crate) const COMMA: &str = ", ";

/// Between a key and its value.
pub(crate) const COLON: &str = ": ";

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The value of this member, if this is an object that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// How many values this is, with those inside.
    pub(crate) fn n_nodes(&self) -> usize {
        match self {
            Self::Array(values) => 1 + values.iter().map(Self::n_nodes).sum::<usize>(),
            Self::Object(members) => 1 + members.iter().map(|(_, value)| value.n_nodes()).sum::<usize>(),
            _ => 1,
        }
    }

    /// JSON on one line, members in their order.
    pub(crate) fn line(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(value) => out.push_str(&value.to_string()),
            Self::Text(value) => out.push_str(&quoted(value)),
            Self::Array(values) => {
                out.push('[');
                for (value_idx, value) in values.iter().enumerate() {
                    out.push_str(if value_idx == 0 { "" } else { COMMA });
                    value.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (member_idx, (key, value)) in members.iter().enumerate() {
                    out.push_str(if member_idx == 0 { "" } else { COMMA });
                    out.push_str(&quoted(key));
                    out.push_str(COLON);
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    /// Whether JSON Schema takes both for the same value: `1` and `1.0` are, and the order of members does not matter.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a == b || a.as_f64() == b.as_f64() && (a.is_f64() || b.is_f64()),
            (Self::Array(a), Self::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b)),
            (Self::Object(a), Self::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(key, value)| other.get(key).is_some_and(|twin| value.equals(twin)))
            }
            _ => self == other,
        }
    }
}

/// `text` as a JSON string with its quotes: only what must be escaped is.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|character| match escape(character) {
        Some(escaped) => out.push_str(&escaped),
        None => out.push(character),
    });
    out.push('"');
    out
}

/// How a character is written inside a JSON string, if not as itself (RFC 8259, section 7).
pub(crate) fn escape(character: char) -> Option<String> {
    Some(match character {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        '\0'..='\u{1f}' => format!("\\u{:04x}", u32::from(character)),
        _ => return None,
    })
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        Number::from_f64(value).map(Json::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element()? {
            values.push(value);
        }
        Ok(Json::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json, A::Error> {
        let mut object: Vec<(String, Json)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some((key, value)) = members.next_entry::<String, Json>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("the key {} is given twice", quoted(&key))));
            }
            object.push((key, value));
        }
        Ok(Json::Object(object))
    }
}
