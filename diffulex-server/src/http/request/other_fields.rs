//! Fields of a request that no struct declares: refused by name, harmless, or unknown, which passes with a warning in the log.
//!
//! In: the fields of a body that its struct does not declare. [`Listed`] has the verdicts on names of other servers and of
//! other routes; names of `decoding` come from the strategies' own declarations. Values of unknown fields are skipped as they are
//! read, so they take no memory. Never here: fields that are supported, lists of names.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Mutex;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::http::access::refusals::start_of;
use crate::http::answer::error::ApiError;
use crate::http::request::field_lists::{Listed, Verdict, forbids_tools, is_empty, unsupported};
use crate::os::locks::lock;

/// Beginnings of names whose fields are refused in the same way: parts of models that this server has none of, and the
/// limits of their inputs.
const REFUSED_BEGINNINGS: [&str; 3] = ["stage_", "talker_", "video_"];

/// Names of ignored fields that are logged, per request and in all. Chosen by us: more than any real client has, and a
/// client that makes up names fills no log.
const MAX_NAMES: usize = 64;

/// The fields of a body that its struct does not declare.
#[derive(Debug, Default)]
pub(in crate::http) struct OtherFields {
    /// The first that is refused, with the error.
    refused: Option<ApiError>,
    /// The first that offers tools, refused unless the request forbids to call any.
    refused_tools: Option<ApiError>,
    /// `tool_choice` forbids to call tools: those that are offered change no answer.
    calls_no_tool: bool,
    /// Names of the unknown ones, cut; at most [`MAX_NAMES`].
    ignored: Vec<String>,
    /// Names of those that are kept, in `kept`, for another struct; of an interface that has them.
    keeps: Cow<'static, [&'static str]>,
    /// The body asks for an answer: a field that only other routes have is refused.
    refuses_foreign: bool,
    kept: Map<String, Value>,
    /// Names of `decoding`, once there was an unlisted field.
    settings: Option<Vec<&'static str>>,
}

impl OtherFields {
    /// Of a body that asks for an answer. Keeps fields of these names.
    pub(in crate::http) fn keeping(names: Cow<'static, [&'static str]>) -> Self {
        Self { keeps: names, refuses_foreign: true, ..Self::default() }
    }

    /// Judges fields that were kept as if they had not been.
    pub(in crate::http) fn judge(&mut self, kept: Map<String, Value>) {
        for (name, value) in kept {
            if let Some(listed) = Listed::of(&name) {
                self.judge_listed(&listed, &value);
            }
        }
    }

    /// Those of two bodies that make one request.
    pub(in crate::http) fn and(mut self, mut more: Self) -> Self {
        self.refused = self.refused.or(more.refused);
        self.refused_tools = self.refused_tools.or(more.refused_tools);
        self.calls_no_tool |= more.calls_no_tool;
        self.ignored.append(&mut more.ignored);
        self
    }

    /// The fields that were kept.
    pub(in crate::http) fn take_kept(&mut self) -> Map<String, Value> {
        std::mem::take(&mut self.kept)
    }

    /// Refuses a field that would change the answer; warns of the unknown ones.
    pub(in crate::http) fn check(&self, log: &IgnoredFieldLog) -> Result<(), ApiError> {
        let refused_tools = self.refused_tools.as_ref().filter(|_| !self.calls_no_tool);
        if let Some(error) = self.refused.as_ref().or(refused_tools) {
            return Err(error.clone());
        }
        log.warn(&self.ignored);
        Ok(())
    }

    /// Takes the field `name`, whose value comes next in `map`.
    fn take<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        if self.keeps.contains(&name) {
            self.kept.insert(name.to_owned(), map.next_value()?);
            return Ok(());
        }
        match Listed::of(name) {
            Some(listed) if listed.verdict == Verdict::Harmless => {
                map.next_value::<IgnoredAny>()?;
                tracing::debug!(field = listed.name, reason = listed.note, "a field that changes nothing here");
            }
            Some(listed) if listed.verdict == Verdict::Refused || self.refuses_foreign => {
                let value = map.next_value()?;
                self.judge_listed(&listed, &value);
            }
            None if self.is_setting(name) => {
                if !map.next_value::<Value>()?.is_null() {
                    let message = format!("{name} belongs under \"decoding\": {{\"decoding\": {{\"{name}\": ...}}}}");
                    self.refuse(ApiError::invalid(name, message));
                }
            }
            None if REFUSED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) => {
                if !is_empty(&map.next_value()?) {
                    self.refuse(unsupported(start_of(name)));
                }
            }
            Some(_) | None => {
                map.next_value::<IgnoredAny>()?;
                if self.ignored.len() < MAX_NAMES {
                    self.ignored.push(start_of(name).to_owned());
                }
            }
        }
        Ok(())
    }

    fn judge_listed(&mut self, listed: &Listed, value: &Value) {
        if matches!(listed.name, "tool_choice" | "function_call") {
            self.calls_no_tool |= forbids_tools(value);
        }
        if listed.verdict == Verdict::Harmless || listed.lets_through(value) {
            return;
        }
        let error = listed.refusal(value);
        if matches!(listed.name, "tools" | "functions") {
            self.refused_tools.get_or_insert(error.quoted());
        } else {
            self.refuse(error);
        }
    }

    fn refuse(&mut self, error: ApiError) {
        self.refused.get_or_insert(error.quoted());
    }

    fn is_setting(&mut self, name: &str) -> bool {
        let names = || diffulex_engine::settings().iter().map(|setting| setting.name).collect();
        self.settings.get_or_insert_with(names).contains(&name)
    }
}

/// Names of ignored fields that have had their line in the log.
#[derive(Debug, Default)]
pub(in crate::http) struct IgnoredFieldLog(Mutex<HashSet<String>>);

impl IgnoredFieldLog {
    fn warn(&self, names: &[String]) {
        for name in names {
            if self.is_new(name) {
                // As a string, which log lines quote and escape.
                tracing::warn!(
                    field = name.as_str(),
                    "a request has a field that this server does not know; it is ignored"
                );
            }
        }
    }

    fn is_new(&self, name: &str) -> bool {
        let mut logged = lock(&self.0);
        logged.len() < MAX_NAMES && !logged.contains(name) && logged.insert(name.to_owned())
    }
}

/// A deserializer of a struct's fields that hands all others to `others`.
pub(in crate::http) struct Screened<'a, D> {
    pub(in crate::http) input: D,
    pub(in crate::http) others: &'a mut OtherFields,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Screened<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.input.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.input.deserialize_map(ScreenedVisitor { visitor, known, others: self.others })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct ScreenedVisitor<'a, V> {
    visitor: V,
    known: &'static [&'static str],
    others: &'a mut OtherFields,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for ScreenedVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(formatter)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(ScreenedMap { map, known: self.known, others: self.others })
    }
}

struct ScreenedMap<'a, A> {
    map: A,
    known: &'static [&'static str],
    others: &'a mut OtherFields,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for ScreenedMap<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let mut seed = Some(seed);
        loop {
            match self.map.next_key_seed(Key { seed: &mut seed, known: self.known })? {
                None => return Ok(None),
                Some(Ok(key)) => return Ok(Some(key)),
                Some(Err(name)) => self.others.take(&name, &mut self.map)?,
            }
        }
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Reads a key for `seed` if it is a known one; otherwise its name is the error.
struct Key<'a, K> {
    seed: &'a mut Option<K>,
    known: &'static [&'static str],
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<'_, K> {
    type Value = Result<K::Value, String>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_identifier(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for Key<'_, K> {
    type Value = Result<K::Value, String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        match self.seed.take_if(|_| self.known.contains(&name)) {
            Some(seed) => {
                let name: StrDeserializer<'_, E> = name.into_deserializer();
                seed.deserialize(name).map(Ok)
            }
            None => Ok(Err(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_logged_once_and_so_many_at_most() {
        let log = IgnoredFieldLog::default();
        assert!(log.is_new("store"));
        assert!(!log.is_new("store"));
        let n_more = (0..1000).filter(|n| log.is_new(&format!("x{n}"))).count();
        assert_eq!(n_more, MAX_NAMES - 1);
    }
}
