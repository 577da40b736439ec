//! Fields of a request that no route reads: one that would change the answer is refused by its name, any other passes with
//! a warning in the log.
//!
//! In: the fields of a body that its struct does not declare. [`REFUSED`] is the only list of names. Values of other
//! fields are skipped as they are read, so they take no memory. Never here: fields that are supported.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::refusals::start_of;

/// Values of a refused field that pass, because they ask for the server's own behaviour.
#[derive(Clone, Copy)]
enum Passes {
    /// `null`, `false`, 0 and what is empty.
    Empty,
    /// Those, and 1.
    EmptyOrOne,
    /// `null` and `true`.
    True,
    /// Empty values, `none` and `auto`.
    NoTool,
    /// Empty values and `{"type": "text"}`.
    TextFormat,
    /// Empty values and lists of `text`.
    TextOnly,
    /// Empty values; another is a list of items of this modality.
    Items(&'static str),
    /// Empty values; another is an object about this modality.
    Object(&'static str),
    /// Empty values; another is a number above 0 that limits inputs of this modality.
    Limit(&'static str),
}

impl Passes {
    /// The modality that a field with another value asks for.
    fn modality(self) -> Option<&'static str> {
        match self {
            Self::Items(modality) | Self::Object(modality) | Self::Limit(modality) => Some(modality),
            Self::TextOnly => Some("another modality"),
            _ => None,
        }
    }
}

/// Fields of OpenAI, vLLM, SGLang and Hugging Face that would change the answer or its form.
const REFUSED: [(&str, Passes); 81] = [
    ("add_generation_prompt", Passes::True),
    ("add_special_tokens", Passes::Empty),
    ("allowed_token_ids", Passes::Empty),
    ("audio", Passes::Object("audio")),
    ("audios", Passes::Items("audio")),
    ("bad_words", Passes::Empty),
    ("best_of", Passes::EmptyOrOne),
    ("chat_template", Passes::Empty),
    ("chat_template_kwargs", Passes::Empty),
    ("context_id", Passes::Empty),
    ("continue_final_message", Passes::Empty),
    ("diffusing", Passes::Empty),
    ("documents", Passes::Empty),
    ("dry_multiplier", Passes::Empty),
    ("dynatemp_range", Passes::Empty),
    ("ebnf", Passes::Empty),
    ("echo", Passes::Empty),
    ("enable_thinking", Passes::Empty),
    ("force_words_ids", Passes::Empty),
    ("function_call", Passes::NoTool),
    ("functions", Passes::Empty),
    ("grammar", Passes::Empty),
    ("guided_choice", Passes::Empty),
    ("guided_decoding_backend", Passes::Empty),
    ("guided_grammar", Passes::Empty),
    ("guided_json", Passes::Empty),
    ("guided_regex", Passes::Empty),
    ("images", Passes::Items("image")),
    ("include_stop_str_in_output", Passes::Empty),
    ("json_schema", Passes::Empty),
    ("kv_transfer_params", Passes::Empty),
    ("length_penalty", Passes::EmptyOrOne),
    ("logits_processors", Passes::Empty),
    ("max_length", Passes::Empty),
    ("max_new_tokens", Passes::Empty),
    ("min_length", Passes::Empty),
    ("min_new_tokens", Passes::Empty),
    ("mirostat", Passes::Empty),
    ("mirostat_mode", Passes::Empty),
    ("mm_processor_kwargs", Passes::Empty),
    ("modalities", Passes::TextOnly),
    ("n_predict", Passes::Empty),
    ("n_probs", Passes::Empty),
    ("no_repeat_ngram_size", Passes::Empty),
    ("num_beams", Passes::EmptyOrOne),
    ("prediction", Passes::Empty),
    ("prompt_embeds", Passes::Empty),
    ("prompt_logprobs", Passes::Empty),
    ("reasoning", Passes::Empty),
    ("regex", Passes::Empty),
    ("repeat_penalty", Passes::EmptyOrOne),
    ("response_format", Passes::TextFormat),
    ("return_logprob", Passes::Empty),
    ("return_token_ids", Passes::Empty),
    ("return_tokens_as_token_ids", Passes::Empty),
    ("sampling_params", Passes::Empty),
    ("session_params", Passes::Empty),
    ("skip_special_tokens", Passes::True),
    ("spaces_between_special_tokens", Passes::True),
    ("stop_regex", Passes::Empty),
    ("stop_sequences", Passes::Empty),
    ("structural_tag", Passes::Empty),
    ("structured_outputs", Passes::Empty),
    ("thinking", Passes::Empty),
    ("tool_choice", Passes::NoTool),
    ("tools", Passes::Empty),
    ("top_a", Passes::Empty),
    ("typical_p", Passes::EmptyOrOne),
    ("use_beam_search", Passes::Empty),
    ("verbosity", Passes::Empty),
    ("video", Passes::Items("video")),
    ("video_fps", Passes::Limit("video")),
    ("video_max_frames", Passes::Limit("video")),
    ("video_max_pixels", Passes::Limit("video")),
    ("video_min_pixels", Passes::Limit("video")),
    ("video_total_pixels", Passes::Limit("video")),
    ("videos", Passes::Items("video")),
    ("vllm_xargs", Passes::Empty),
    ("web_search_options", Passes::Empty),
    ("xtc_probability", Passes::Empty),
    ("xtc_threshold", Passes::Empty),
];

/// Beginnings of names whose fields are refused in the same way: parts of models that this server has none of, and the
/// limits of their inputs.
const REFUSED_BEGINNINGS: [&str; 3] = ["stage_", "talker_", "video_"];
/// Fields that other interfaces of this server read: a client that sends one to an interface without it means something.
const OF_OTHER_INTERFACES: [(&str, Passes); 14] = [
    ("input", Passes::Empty),
    ("instructions", Passes::Empty),
    ("logprobs", Passes::Empty),
    ("max_completion_tokens", Passes::Empty),
    ("max_output_tokens", Passes::Empty),
    ("max_tokens", Passes::Empty),
    ("messages", Passes::Empty),
    ("n", Passes::EmptyOrOne),
    ("options", Passes::Empty),
    ("previous_response_id", Passes::Empty),
    ("prompt", Passes::Empty),
    ("raw", Passes::Empty),
    ("suffix", Passes::Empty),
    ("system", Passes::Empty),
];

/// Names of ignored fields that are logged, per request and in all. Chosen by us: more than any real client has, and a
/// client that makes up names fills no log.
const MAX_NAMES: usize = 64;

/// The fields of a body that its struct does not declare.
#[derive(Debug, Default)]
pub(super) struct OtherFields {
    /// The first that is refused, with the error.
    refused: Option<ApiError>,
    /// Names of the others, cut; at most [`MAX_NAMES`].
    ignored: Vec<String>,
    /// Names of those that are kept, in `kept`, for another struct; of an interface that has them.
    keeps: &'static [&'static str],
    /// The struct is of an interface that does not have every field of chat.
    refuses_foreign: bool,
    kept: Map<String, Value>,
}

impl OtherFields {
    /// Keeps fields of these names; also refuses those that only other interfaces read.
    pub(super) fn keeping(names: &'static [&'static str]) -> Self {
        Self { keeps: names, refuses_foreign: true, ..Self::default() }
    }

    /// Keeps fields of these names.
    pub(super) fn also_keeping(names: &'static [&'static str]) -> Self {
        Self { keeps: names, ..Self::default() }
    }

    /// Counts fields that were kept as ignored ones, unless they say nothing.
    pub(super) fn ignore(&mut self, kept: Map<String, Value>) {
        self.ignored.extend(kept.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name));
    }

    /// Those of two bodies that make one request.
    pub(super) fn and(mut self, mut more: Self) -> Self {
        self.refused = self.refused.or(more.refused);
        self.ignored.append(&mut more.ignored);
        self
    }

    /// The fields that were kept.
    pub(super) fn take_kept(&mut self) -> Map<String, Value> {
        std::mem::take(&mut self.kept)
    }

    /// Refuses a field that would change the answer; warns of the others.
    pub(super) fn check(&self, log: &IgnoredFieldLog) -> Result<(), ApiError> {
        if let Some(error) = &self.refused {
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
        let foreign = if self.refuses_foreign { &OF_OTHER_INTERFACES[..] } else { &[] };
        match REFUSED.iter().chain(foreign).find(|(refused, _)| *refused == name) {
            Some((refused, passes)) => {
                let value = map.next_value()?;
                if !passes.lets_through(&value) {
                    self.refused.get_or_insert_with(|| passes.refusal(refused, &value));
                }
            }
            None if REFUSED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) => {
                let value = map.next_value()?;
                if !is_empty(&value) {
                    self.refused.get_or_insert_with(|| Passes::Empty.refusal(start_of(name), &value));
                }
            }
            None => {
                map.next_value::<IgnoredAny>()?;
                if self.ignored.len() < MAX_NAMES {
                    self.ignored.push(start_of(name).to_owned());
                }
            }
        }
        Ok(())
    }
}

impl Passes {
    fn lets_through(self, value: &Value) -> bool {
        match self {
            Self::True => value.is_null() || *value == Value::Bool(true),
            Self::Empty | Self::Items(_) | Self::Object(_) | Self::Limit(_) => is_empty(value),
            Self::EmptyOrOne => is_empty(value) || value.as_f64() == Some(1.0),
            Self::NoTool => is_empty(value) || value == "none" || value == "auto",
            Self::TextFormat => is_empty(value) || value.get("type").is_some_and(|kind| kind == "text"),
            Self::TextOnly => {
                is_empty(value) || value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text"))
            }
        }
    }
}

impl Passes {
    /// The error of the field `name` with `value`, which does not pass.
    fn refusal(self, name: &str, value: &Value) -> ApiError {
        self.error(name, value).quoted()
    }

    fn error(self, name: &str, value: &Value) -> ApiError {
        let shape = match self {
            Self::Items(_) if !value.is_array() => Some("a list"),
            Self::Object(_) if !value.is_object() => Some("an object"),
            Self::Limit(_) if value.as_f64().is_none_or(|limit| limit <= 0.0) => Some("a number above 0"),
            Self::TextOnly if !value.is_array() => Some("a list"),
            _ => None,
        };
        if let Some(shape) = shape {
            return ApiError::invalid(name, format!("{name} must be {shape}"));
        }
        match self.modality() {
            Some(modality) => ApiError::unsupported_modality(name, modality),
            None => ApiError::invalid(name, format!("{name} is not supported by this server")),
        }
    }
}

/// True for `null`, `false`, 0 and empty values: they change nothing.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}

/// Names of ignored fields that have had their line in the log.
#[derive(Debug, Default)]
pub(super) struct IgnoredFieldLog(Mutex<HashSet<String>>);

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
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < MAX_NAMES && !logged.contains(name) && logged.insert(name.to_owned())
    }
}

/// A deserializer of a struct's fields that hands all others to `others`.
pub(super) struct Screened<'a, D> {
    pub(super) input: D,
    pub(super) others: &'a mut OtherFields,
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
    fn every_refused_field_is_listed_once_and_in_order() {
        assert!(REFUSED.is_sorted_by(|(a, _), (b, _)| a < b));
    }

    #[test]
    fn a_name_is_logged_once_and_so_many_at_most() {
        let log = IgnoredFieldLog::default();
        assert!(log.is_new("store"));
        assert!(!log.is_new("store"));
        let n_more = (0..1000).filter(|n| log.is_new(&format!("x{n}"))).count();
        assert_eq!(n_more, MAX_NAMES - 1);
    }
}
