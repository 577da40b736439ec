//! `stage_sampling` and `stage_params`: what a request sets for single stages of serving, as multi-stage servers take it.
//!
//! The stages here are `tokenize`, `denoise` and `detokenize`. Sampling, and settings of the strategy, are of `denoise`; the
//! two others do what they always do, and take their options only with those values. Never here: what the values mean.

use std::collections::BTreeMap;

use diffulex_protocol::DecodingSettings;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::http::answer::error::ApiError;
use crate::http::request::mismatch;
use crate::http::request::numbers::{SeedField, whole};

/// Stages with options and without sampling: the options, with the only value that each can have.
const FIXED: [(&str, &[(&str, bool)]); 2] = [
    ("tokenize", &[("add_special_tokens", false), ("add_generation_prompt", true)]),
    ("detokenize", &[("skip_special_tokens", true), ("spaces_between_special_tokens", true)]),
];

/// The stage that samples.
const DENOISE: &str = "denoise";

/// Sampling by stage.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(in crate::http) struct StageSampling(BTreeMap<String, Map<String, Value>>);

/// Settings by stage.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(in crate::http) struct StageParams(BTreeMap<String, Map<String, Value>>);

/// Sampling and settings of the stage `denoise`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::http) struct DenoiseStage {
    pub(in crate::http) temperature: Option<f32>,
    pub(in crate::http) top_p: Option<f32>,
    #[serde(deserialize_with = "whole")]
    pub(in crate::http) top_k: Option<i64>,
    pub(in crate::http) min_p: Option<f32>,
    pub(in crate::http) repetition_penalty: Option<f32>,
    pub(in crate::http) presence_penalty: Option<f32>,
    pub(in crate::http) frequency_penalty: Option<f32>,
    #[serde(deserialize_with = "whole")]
    pub(in crate::http) seed: Option<SeedField>,
    #[serde(deserialize_with = "whole")]
    pub(in crate::http) max_nfe: Option<u32>,
    /// Every other name: a setting of the strategy.
    #[serde(flatten)]
    pub(in crate::http) decoding: DecodingSettings,
}

impl StageSampling {
    /// Sampling and settings of the stage `denoise` in both fields; an error for what no stage takes.
    pub(in crate::http) fn denoise(
        sampling: Option<Self>,
        params: Option<StageParams>,
    ) -> Result<Option<DenoiseStage>, ApiError> {
        let mut denoise = Map::new();
        for (stage, values) in sampling.map(|Self(stages)| stages).unwrap_or_default() {
            match stage.as_str() {
                DENOISE => denoise.extend(values),
                name if FIXED.iter().any(|(fixed, _)| *fixed == name) => {
                    if let Some(name) = values.keys().next() {
                        let param = format!("stage_sampling.{stage}.{name}");
                        return Err(ApiError::invalid(&param, format!("{param}: only {DENOISE} samples")));
                    }
                }
                _ => return Err(unknown("stage_sampling", &stage)),
            }
        }
        for (stage, values) in params.map(|StageParams(stages)| stages).unwrap_or_default() {
            match FIXED.iter().find(|(fixed, _)| *fixed == stage) {
                Some((_, options)) => check_options(&stage, options, &values)?,
                None if stage == DENOISE => denoise.extend(values),
                None => return Err(unknown("stage_params", &stage)),
            }
        }
        if denoise.is_empty() {
            return Ok(None);
        }
        let read = serde_path_to_error::deserialize(Value::Object(denoise));
        read.map(Some).map_err(|error| {
            let param = format!("stage_sampling.{DENOISE}.{}", error.path());
            ApiError::invalid(&param, mismatch::message(&param, &error.inner().to_string()))
        })
    }
}

fn unknown(field: &str, stage: &str) -> ApiError {
    let param = format!("{field}.{stage}");
    let message = format!("{param}: there is no such stage; stages are tokenize, denoise and detokenize");
    ApiError::invalid(&param, message)
}

/// Refuses options that a stage does not have, and values that it cannot have.
fn check_options(stage: &str, options: &[(&str, bool)], values: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, value) in values {
        let param = format!("stage_params.{stage}.{name}");
        let problem = match options.iter().find(|(option, _)| option == name) {
            Some((_, only)) if value.is_null() || *value == Value::Bool(*only) => continue,
            Some((_, only)) => format!("{param} must be {only}"),
            None => format!("{param}: {stage} has no such option"),
        };
        return Err(ApiError::invalid(&param, problem));
    }
    Ok(())
}
