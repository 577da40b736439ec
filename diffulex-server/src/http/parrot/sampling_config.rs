//! Parrot's `SamplingConfig`: its names and defaults, as fields of a request here.
//!
//! In: the object of a primitive. Out: fields of a [`GenerationBody`]. What has no meaning here is refused by its name. Never here: the
//! rest of a primitive.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::http::answer::error::ApiError;
use crate::http::request::fields::StopField;
use crate::http::request::generation::GenerationBody;

/// Names of the fields.
const FIELDS: [&str; 13] = [
    "temperature",
    "top_p",
    "max_gen_length",
    "ignore_tokenizer_eos",
    "stop_token_ids",
    "stop_str",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "best_of",
    "logit_bias",
    "repetition_penalty",
    "length_penalty",
];

/// The fields, with Parrot's defaults.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(super) struct SamplingConfig {
    temperature: f32,
    top_p: f32,
    max_gen_length: u32,
    ignore_tokenizer_eos: bool,
    stop_token_ids: Vec<u32>,
    stop_str: Option<String>,
    presence_penalty: f32,
    frequency_penalty: f32,
    n: u32,
    best_of: u32,
    logit_bias: Option<BTreeMap<u32, f32>>,
    /// 0 is none.
    repetition_penalty: f32,
    /// Of beam search, which there is none of: 0 is none, and so is 1, by which lengths are left as they are.
    length_penalty: f32,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            max_gen_length: 512,
            ignore_tokenizer_eos: false,
            stop_token_ids: Vec::new(),
            stop_str: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            n: 1,
            best_of: 1,
            logit_bias: None,
            repetition_penalty: 0.0,
            length_penalty: 0.0,
        }
    }
}

impl SamplingConfig {
    /// Reads the object `value`.
    pub(super) fn read(mut value: Value) -> Result<Self, ApiError> {
        let refused = |field: &str, what: String| {
            let field = format!("sampling_config.{field}");
            Err(ApiError::invalid(&field, format!("{field}{what}")))
        };
        let Some(fields) = value.as_object_mut() else {
            return Err(ApiError::invalid("sampling_config", "sampling_config must be an object"));
        };
        if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            return refused(unknown, " is not a field of Parrot's SamplingConfig".to_owned());
        }
        // A null says nothing.
        fields.retain(|_, value| !value.is_null());
        let config: Self = match serde_path_to_error::deserialize(value) {
            Ok(config) => config,
            Err(error) => return refused(&error.path().to_string(), format!(": {}", error.inner())),
        };
        let Self { best_of, length_penalty, .. } = config;
        if best_of != 1 {
            return refused("best_of", format!(" must be 1, got {best_of}: one answer is written, and returned"));
        }
        if length_penalty != 0.0 && length_penalty != 1.0 {
            return refused(
                "length_penalty",
                format!(" must be 0 or 1, got {length_penalty:?}: there is no beam search"),
            );
        }
        Ok(config)
    }

    /// Sets the fields of `body`, which must not have them already. What Parrot has no field for is off, whatever the checkpoint
    /// says, unless the body has it.
    pub(super) fn apply(self, body: &mut GenerationBody) -> Result<(), ApiError> {
        let given = [
            ("temperature", body.temperature.is_some()),
            ("top_p", body.top_p.is_some()),
            ("max_tokens", body.max_tokens.is_some()),
            ("max_completion_tokens", body.max_completion_tokens.is_some()),
            ("ignore_eos", body.ignore_eos.is_some()),
            ("stop_token_ids", body.stop_token_ids.is_some()),
            ("stop", body.stop.is_some()),
            ("presence_penalty", body.presence_penalty.is_some()),
            ("frequency_penalty", body.frequency_penalty.is_some()),
            ("repetition_penalty", body.repetition_penalty.is_some()),
            ("logit_bias", body.logit_bias.is_some()),
            ("n", body.n.is_some()),
        ];
        if let Some((field, _)) = given.iter().find(|(_, is_given)| *is_given) {
            let message = format!("{field}: sampling_config has a field for it; send one of them");
            return Err(ApiError::invalid(field, message));
        }
        body.temperature = Some(self.temperature);
        body.top_p = Some(self.top_p);
        body.max_tokens = Some(self.max_gen_length);
        body.ignore_eos = Some(self.ignore_tokenizer_eos);
        body.stop_token_ids = Some(self.stop_token_ids);
        body.stop = self.stop_str.map(StopField::One);
        body.presence_penalty = Some(self.presence_penalty);
        body.frequency_penalty = Some(self.frequency_penalty);
        body.repetition_penalty = Some(if self.repetition_penalty == 0.0 { 1.0 } else { self.repetition_penalty });
        body.logit_bias = self.logit_bias;
        body.n = Some(self.n);
        body.top_k = body.top_k.or(Some(-1));
        body.min_p = body.min_p.or(Some(0.0));
        Ok(())
    }
}
