//! Decoding settings in a checkpoint's `generation_config.json`.

use diffulex_strategies::{AnyStrategy, Value};
use serde::Deserialize;

/// Decoding settings of `generation_config.json`, named as in transformers' DiffusionGemma: only its checkpoints have any.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CheckpointSettings {
    max_denoising_steps: Option<u32>,
    sampler_config: Option<SamplerConfig>,
    t_min: Option<f32>,
    t_max: Option<f32>,
    stability_threshold: Option<u32>,
    confidence_threshold: Option<f32>,
}

/// Its sampler: a class of transformers by name, and what it is made with.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct SamplerConfig {
    #[serde(rename = "_cls_name")]
    class: Option<String>,
    entropy_bound: Option<f32>,
}

impl CheckpointSettings {
    /// `base` with the settings of the file.
    pub(super) fn applied(&self, base: &AnyStrategy) -> Result<AnyStrategy, String> {
        const SAMPLER: &str = "EntropyBoundSamplerConfig";
        let here = |message: String| format!("generation_config.json: {message}");
        let sampler = self.sampler_config.clone().unwrap_or_default();
        if let Some(class) = sampler.class.filter(|class| class != SAMPLER) {
            return Err(here(format!("the sampler {class} is not known; {SAMPLER} is")));
        }
        let number = |number: Option<f32>| number.map(|number| Value::Number(f64::from(number)));
        let count = |count: Option<u32>| count.map(|count| Value::Integer(i64::from(count)));
        let settings = [
            ("denoising_steps", count(self.max_denoising_steps)),
            ("entropy_bound", number(sampler.entropy_bound)),
            ("t_min", number(self.t_min)),
            ("t_max", number(self.t_max)),
            ("stability_threshold", count(self.stability_threshold)),
            ("confidence_threshold", number(self.confidence_threshold)),
        ];
        let said = settings.into_iter().filter_map(|(name, value)| Some((name, value?)));
        base.with(said).map_err(|error| here(error.to_string()))
    }
}
