//! What one request asks of decoding: sampling, limits and overrides of the strategy's settings.

use serde::{Deserialize, Serialize};

/// Sampling and limits of one request.
///
/// The first five fields are Diffulex's; the others are ours, and absent from the wire when unset. Ranges are checked by
/// [`SamplingParams::validate`], the one place that knows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// 0 is greedy; at most [`SamplingParams::MAX_TEMPERATURE`].
    pub temperature: f32,
    /// Exact number of tokens to commit, unless a stop comes first; at least 1.
    pub max_tokens: u32,
    /// Upper bound of forward passes that decode: denoise steps, and commits of their own.
    pub max_nfe: Option<u32>,
    /// Stop after this many equal tokens in a row at the end of the committed text.
    pub max_repetition_run: Option<u32>,
    /// Write on past end tokens.
    pub ignore_eos: bool,
    /// Keep the most likely tokens up to this total probability, in (0, 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Keep this many most likely tokens (ties kept); at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this share of the most likely one, in [0, 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Same seed, same text, whatever else runs. Where the client sends none, one is drawn; for what is greedy it is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Text that ends the answer and is not part of it; at most [`SamplingParams::MAX_STOPS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Token ids that end the answer, beside the model's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Report the probability each token had when it was committed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub logprobs: bool,
    /// What this request changes of the loaded strategy's settings.
    #[serde(skip_serializing_if = "DecodingOverrides::is_empty")]
    pub decoding: DecodingOverrides,
}

impl SamplingParams {
    /// The seed, or for a request without one what `draw` says. What is greedy has 0, so that it is the same every time,
    /// in canvases that begin as noise and in rules that draw positions, too.
    pub fn seed_or(&self, draw: impl FnOnce() -> u64) -> u64 {
        self.seed.unwrap_or_else(|| if self.temperature == 0.0 { 0 } else { draw() })
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            max_tokens: 512,
            max_nfe: None,
            max_repetition_run: None,
            ignore_eos: false,
            top_p: None,
            top_k: None,
            min_p: None,
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            logprobs: false,
            decoding: DecodingOverrides::default(),
        }
    }
}

/// Settings of a strategy: the server's, and over them a request's. A strategy refuses, by name, what it does not have.
/// The comments are the help of the flags, too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, deny_unknown_fields)]
pub struct DecodingOverrides {
    /// Accept rule: threshold, threshold_keep, gated_threshold, relative, static, dynamic, sequential, random, origin,
    /// maskgit_plus, topk_margin, entropy, factor, hierarchy, entropy_bound or leftmost_prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub accept_rule: Option<String>,
    /// Confidence above which a token is accepted, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "P"))]
    pub accept_threshold: Option<f32>,
    /// Share of a block that must be filled before the next one opens, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SHARE"))]
    pub add_block_threshold: Option<f32>,
    /// Share of a block that must be filled before the next one may be forced to progress, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SHARE"))]
    pub semi_complete_threshold: Option<f32>,
    /// Denoise steps of a block under the scheduled rules, 1 to the block size; of a canvas, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub denoising_steps: Option<u32>,
    /// Edit rule of block_edit: joint or remask.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub edit_rule: Option<String>,
    /// Confidence above which a written token is replaced by another, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "P"))]
    pub edit_threshold: Option<f32>,
    /// Forwards over a block without masks, at most, in which tokens may still be replaced; 0 to 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub max_post_edit_steps: Option<u32>,
    /// What is taken off the logit of the token that stands one position to the left, of the edit rule joint; 0
    /// (none) to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "LAMBDA"))]
    pub penalty_lambda: Option<f32>,
    /// Confidence below which a written token may be masked again, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "P"))]
    pub remask_threshold: Option<f32>,
    /// Entropy in nats that accepted tokens may sum up to before the last one, of the accept rule entropy_bound; 0 or
    /// more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NATS"))]
    pub entropy_bound: Option<f32>,
    /// What is multiplied with 1 / (n + 1) to say how unsure the n-th token may be, of the accept rule factor; above
    /// 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "FACTOR"))]
    pub factor: Option<f32>,
    /// What softens the choice of positions under maskgit_plus, topk_margin and entropy; 0 takes the best.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "TEMP"))]
    pub alg_temp: Option<f32>,
    /// Strength of classifier-free guidance, for which everything is forwarded twice; 0 (none) to 100. semi_ar
    /// only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SCALE"))]
    pub cfg_scale: Option<f32>,
    /// Which K/V are used again inside a block, although they go stale: none, prefix or dual; semi_ar only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub kv_reuse: Option<String>,
    /// Positions of a sub-block, a divisor of the block size; fast_dllm_v2 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub sub_block_size: Option<u32>,
    /// Forward one sub-block where the K/V of the others, as they were, will do; fast_dllm_v2 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL"))]
    pub block_cache: Option<bool>,
    /// What dmax puts in place of a token: dmax_topk or iter_smooth_topk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub token_merge_mode: Option<String>,
    /// How many of the likeliest tokens have a part in it, 1 to 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub token_merge_top_k: Option<u32>,
    /// Their weight beside the token's own under iter_smooth_topk, 0 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "WEIGHT"))]
    pub token_merge_weight: Option<f32>,
    /// Whether what is merged under dmax_topk is brought to the length of its parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL"))]
    pub token_merge_renormalize: Option<bool>,
    /// What the temperature of diffusion_gemma's canvases falls to, 0.01 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "T"))]
    pub t_min: Option<f32>,
    /// The temperature of diffusion_gemma's canvases at their first step, 0.01 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "T"))]
    pub t_max: Option<f32>,
    /// Steps a canvas of diffusion_gemma must have stayed the same before it is decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub stability_threshold: Option<u32>,
    /// Mean entropy in nats below which a canvas of diffusion_gemma may be decided; 0 or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NATS"))]
    pub confidence_threshold: Option<f32>,
}

impl DecodingOverrides {
    /// True when nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Most of `max_post_edit_steps`: tokens that replace one another in turn would never come to an end. Chosen by us: one
    /// for each position of the longest block.
    pub const MAX_POST_EDIT_STEPS: u32 = 64;

    /// Most of `cfg_scale`. Chosen by us: LLaDA's authors go up to 2, and with 100 only the tokens that the prompt speaks for
    /// the most are left; logits stay far from the end of 32-bit floats.
    pub const MAX_CFG_SCALE: f32 = 100.0;

    /// Least of `t_min` and `t_max`. Chosen by us: logits of DiffusionGemma are at most 30, so that a hundredth makes the
    /// likeliest token certain already; much less would divide by zero, as sums of the two are rounded.
    pub const MIN_CANVAS_TEMPERATURE: f32 = 0.01;

    /// Most of `penalty_lambda` and `token_merge_weight`. Chosen by us: a logit that is lowered by so much is never the
    /// largest, and a token that is outweighed so far takes no part; what is computed with them stays finite.
    pub const MAX_WEIGHT: f32 = 1e4;

    /// Checks every range that does not depend on the model; the error is `(field, message)`. What goes up to any number is
    /// only compared with others, so that none of them makes a step fail.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        within("decoding.accept_threshold", self.accept_threshold, 0.0, 1.0, false)?;
        within("decoding.add_block_threshold", self.add_block_threshold, 0.0, 1.0, false)?;
        within("decoding.semi_complete_threshold", self.semi_complete_threshold, 0.0, 1.0, false)?;
        within("decoding.edit_threshold", self.edit_threshold, 0.0, 1.0, false)?;
        within("decoding.penalty_lambda", self.penalty_lambda, 0.0, Self::MAX_WEIGHT, false)?;
        within("decoding.token_merge_weight", self.token_merge_weight, 0.0, Self::MAX_WEIGHT, false)?;
        within("decoding.remask_threshold", self.remask_threshold, 0.0, 1.0, false)?;
        within("decoding.entropy_bound", self.entropy_bound, 0.0, f32::MAX, false)?;
        within("decoding.factor", self.factor, 0.0, f32::MAX, true)?;
        within("decoding.alg_temp", self.alg_temp, 0.0, f32::MAX, false)?;
        within("decoding.cfg_scale", self.cfg_scale, 0.0, Self::MAX_CFG_SCALE, false)?;
        within("decoding.t_min", self.t_min, Self::MIN_CANVAS_TEMPERATURE, SamplingParams::MAX_TEMPERATURE, false)?;
        within("decoding.t_max", self.t_max, Self::MIN_CANVAS_TEMPERATURE, SamplingParams::MAX_TEMPERATURE, false)?;
        within("decoding.confidence_threshold", self.confidence_threshold, 0.0, f32::MAX, false)?;
        if let Some(steps) = self.max_post_edit_steps.filter(|steps| *steps > Self::MAX_POST_EDIT_STEPS) {
            let message = format!("max_post_edit_steps is at most {}, got {steps}", Self::MAX_POST_EDIT_STEPS);
            return Err(("decoding.max_post_edit_steps", message));
        }
        at_least_one("decoding.sub_block_size", self.sub_block_size)?;
        at_least_one("decoding.denoising_steps", self.denoising_steps)
    }
}

impl SamplingParams {
    /// OpenAI's upper bound of the temperature.
    pub const MAX_TEMPERATURE: f32 = 2.0;
    /// The upper bound of `stop` that `http-api` documents; chosen by us between OpenAI's 4 and vLLM's none.
    pub const MAX_STOPS: usize = 16;
    /// Longest stop string in bytes; chosen by us: text is held back by up to this much while it may still match.
    pub const MAX_STOP_BYTES: usize = 1024;

    /// Checks every range; the error is `(field, message)`.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        within("temperature", Some(self.temperature), 0.0, Self::MAX_TEMPERATURE, false)?;
        at_least_one("max_tokens", Some(self.max_tokens))?;
        at_least_one("max_nfe", self.max_nfe)?;
        at_least_one("max_repetition_run", self.max_repetition_run)?;
        within("top_p", self.top_p, 0.0, 1.0, true)?;
        at_least_one("top_k", self.top_k)?;
        within("min_p", self.min_p, 0.0, 1.0, false)?;
        if self.stop.len() > Self::MAX_STOPS {
            return Err(("stop", format!("stop takes at most {} strings, got {}", Self::MAX_STOPS, self.stop.len())));
        }
        if self.stop.iter().any(|stop| stop.is_empty()) {
            return Err(("stop", "stop strings must not be empty".to_owned()));
        }
        if let Some(long) = self.stop.iter().find(|stop| stop.len() > Self::MAX_STOP_BYTES) {
            return Err((
                "stop",
                format!("a stop string takes at most {} bytes, got {}", Self::MAX_STOP_BYTES, long.len()),
            ));
        }
        self.decoding.validate()
    }
}

fn within(
    name: &'static str,
    value: Option<f32>,
    low: f32,
    high: f32,
    low_is_open: bool,
) -> Result<(), (&'static str, String)> {
    let Some(value) = value else { return Ok(()) };
    let above = if low_is_open { value > low } else { value >= low };
    // Written so that NaN is refused.
    if above && value <= high {
        return Ok(());
    }
    let bracket = if low_is_open { "(" } else { "[" };
    // Debug, so that what is tiny or huge is not written out in forty digits.
    Err((name, format!("{name} must be in {bracket}{low}, {high}], got {value:?}")))
}

fn at_least_one(name: &'static str, value: Option<u32>) -> Result<(), (&'static str, String)> {
    match value {
        Some(0) => Err((name, format!("{name} must be at least 1, got 0"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert_eq!(SamplingParams::default().validate(), Ok(()));
    }

    #[test]
    fn every_range_error_names_its_field() {
        let base = SamplingParams::default;
        let wrong = [
            ("temperature", SamplingParams { temperature: -0.1, ..base() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..base() }),
            ("temperature", SamplingParams { temperature: 2.5, ..base() }),
            ("max_tokens", SamplingParams { max_tokens: 0, ..base() }),
            ("max_nfe", SamplingParams { max_nfe: Some(0), ..base() }),
            ("max_repetition_run", SamplingParams { max_repetition_run: Some(0), ..base() }),
            ("top_p", SamplingParams { top_p: Some(0.0), ..base() }),
            ("top_k", SamplingParams { top_k: Some(0), ..base() }),
            ("min_p", SamplingParams { min_p: Some(1.5), ..base() }),
            ("stop", SamplingParams { stop: vec![String::new()], ..base() }),
            ("stop", SamplingParams { stop: vec!["x".to_owned(); 17], ..base() }),
            (
                "decoding.accept_threshold",
                SamplingParams {
                    decoding: DecodingOverrides { accept_threshold: Some(2.0), ..Default::default() },
                    ..base()
                },
            ),
        ];
        for (field, params) in wrong {
            assert_eq!(params.validate().map_err(|(name, _)| name), Err(field), "{params:?}");
        }
    }
}
