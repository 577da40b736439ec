//! JSON whose objects keep the order of their keys: the properties of an answer are in the order of its schema.
//!
//! Never here: what a value means.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Number;

/// A value. Printed, it is JSON without spaces.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Flag(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// An object: its keys and values, in order.
    #[serde(serialize_with = "as_map")]
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The value of `key`, unless that is `null` or this is no object. Of several, the last, as serde_json reads them.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        let (_, value) = members.iter().rfind(|(name, _)| name == key)?;
        (*value != Self::Null).then_some(value)
    }

    /// Sets the value of `key` of an object.
    pub(crate) fn set(&mut self, key: &str, value: Self) {
        if let Self::Object(members) = self {
            members.retain(|(name, _)| name != key);
            members.push((key.to_owned(), value));
        }
    }

    /// The string that it is.
    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        formatter.write_str(&text)
    }
}

fn as_map<S: Serializer>(members: &[(String, Json)], output: S) -> Result<S::Ok, S::Error> {
    output.collect_map(members.iter().map(|(key, value)| (key, value)))
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(JsonVisitor)
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

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Json, E> {
        Ok(Json::Flag(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Json, E> {
        Number::from_f64(number).map(Json::Number).ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_values_are_printed_as_they_were() {
        let text = r#"{"z":{"b":[1,-2,0.5,18446744073709551615],"a":null},"y":"\u00e9\"","x":true,"w":{}}"#;
        let json: Json = serde_json::from_str(text).expect("JSON");
        assert_eq!(json.to_string(), text.replace("\\u00e9", "é"));
        assert_eq!(json.get("z").and_then(|z| z.get("a")), None);
        assert_eq!(json.get("y").and_then(Json::as_str), Some("é\""));
        assert_eq!(json.get("w"), Some(&Json::Object(Vec::new())));
    }

    #[test]
    fn of_two_equal_keys_the_last_counts_and_one_that_is_set_is_the_only_one() {
        let mut json: Json = serde_json::from_str(r#"{"a":1,"b":2,"a":"x"}"#).expect("JSON");
        assert_eq!(json.get("a").and_then(Json::as_str), Some("x"));
        json.set("a", Json::Flag(true));
        assert_eq!(json.to_string(), r#"{"b":2,"a":true}"#);
    }
}
