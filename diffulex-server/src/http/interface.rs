//! Bodies of the interfaces beside OpenAI's chat: their own fields, and the fields that every interface shares with chat.
//!
//! In: JSON, read as the interface's own struct. Out: the internal request ([`GenerationBody`]), by chat's names of the fields,
//! which [`super::error::ApiError::with_names`] turns back into the client's. Never here: what an interface's own fields mean.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{ContentField, ContentPart};
use super::message::MessageField;
use super::other_fields::{IgnoredFieldLog, OtherFields, Screened};
use super::request::GenerationBody;
use axum::http::StatusCode;

/// Fields that mean on every interface what they mean in chat.
const SHARED: [&str; 27] = [
    "cache_salt",
    "decoding",
    "denoise",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "max_nfe",
    "max_repetition_run",
    "min_p",
    "min_tokens",
    "model",
    "presence_penalty",
    "repetition_penalty",
    "request_id",
    "seed",
    "snapshot",
    "stage_params",
    "stage_sampling",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_mode",
    "temperature",
    "top_k",
    "top_p",
    "truncate_prompt_tokens",
    "user",
];

/// A body with an interface's own fields `T`.
pub(super) struct InterfaceBody<T> {
    /// The interface's own fields.
    pub(super) own: T,
    /// Fields of the internal request.
    shared: Map<String, Value>,
    others: OtherFields,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for InterfaceBody<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let mut others = OtherFields::keeping(&SHARED);
        let own = T::deserialize(Screened { input, others: &mut others })?;
        Ok(Self { own, shared: others.take_kept(), others })
    }
}

impl<T: JsonSchema> JsonSchema for InterfaceBody<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        let shared = GenerationBody::json_schema(generator);
        let shared = shared.get("properties").and_then(Value::as_object).into_iter().flatten();
        let shared = shared.filter(|(name, _)| SHARED.contains(&name.as_str()));
        if let Some(Value::Object(fields)) = schema.get_mut("properties") {
            for (name, field) in shared {
                fields.entry(name).or_insert_with(|| field.clone());
            }
        }
        schema
    }
}

impl<T> InterfaceBody<T> {
    /// A field of the internal request, if it is set.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.shared.get(name).filter(|value| !value.is_null())
    }

    /// Sets a field of the internal request.
    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.shared.insert(name.to_owned(), value.into());
    }

    /// Takes over the shared fields of an object inside this one, whose other fields are judged as this one's are.
    pub(super) fn merge<U>(&mut self, inner: InterfaceBody<U>, log: &IgnoredFieldLog) -> Result<U, ApiError> {
        inner.others.check(log)?;
        for (name, value) in inner.shared {
            self.shared.entry(name).or_insert(value);
        }
        Ok(inner.own)
    }

    /// The internal request, and the interface's own fields.
    pub(super) fn into_request(self) -> Result<(T, GenerationBody), ApiError> {
        let read = serde_path_to_error::deserialize::<_, GenerationBody>(Value::Object(self.shared));
        let mut request = read.map_err(|error| {
            let field = error.path().to_string();
            let message = format!("{field}: the body is not a valid request: {}", error.inner());
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", message).with_param(&field)
        })?;
        request.others = self.others.and(request.others);
        Ok((self.own, request))
    }
}

/// Text of a field that may be a text or a list of parts: those of `kinds`, joined. Others are refused by their place.
pub(super) fn text_of(field: &str, content: ContentField, kinds: &[&str]) -> Result<String, ApiError> {
    let parts = match content {
        ContentField::Text(text) => return Ok(text),
        ContentField::List(parts) => parts,
    };
    let texts = parts.into_iter().enumerate().map(|(index, ContentPart { kind, text })| match text {
        Some(text) if kinds.contains(&kind.as_str()) => Ok(text),
        None if kinds.contains(&kind.as_str()) => {
            let param = format!("{field}[{index}].text");
            Err(ApiError::invalid(&param, format!("{param} is required")))
        }
        _ => {
            let param = format!("{field}[{index}].type");
            let known = kinds.join(", ");
            Err(ApiError::invalid(&param, format!("{param}: {kind:?} is not supported; this server takes {known}")))
        }
    });
    texts.collect()
}

/// A message of the internal request.
pub(super) fn message(role: &str, text: String) -> MessageField {
    MessageField { role: role.to_owned(), content: Some(ContentField::Text(text)), tool_calls: None }
}

/// Refuses a field that is known and not supported.
pub(super) fn unsupported<T>(field: &str, why: &str) -> Result<T, ApiError> {
    Err(ApiError::invalid(field, format!("{field} is not supported by this server{why}")))
}
