//! The body of a generation request, in every dialect: one struct holds what `/generate`, chat and completions know.
//!
//! In: JSON. Out: an [`Order`] for the front end. [`OtherFields`] judges fields that this struct does not have. Never here:
//! the routes' replies.

use std::collections::BTreeMap;

use diffulex_protocol::{ChatMessage, DecodingSettings, ParamError, Prompt, SamplingParams, ServingInput, StreamMode};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::denoise_frames::{DenoiseField, DenoiseForm, SnapshotField};
use super::error::ApiError;
use super::fields::{LogprobsField, PromptField, SeedField, StopField, by_name};
use super::message::MessageField;
use super::other_fields::{IgnoredFieldLog, OtherFields, Screened};
use super::prompt_report::PromptReport;
use super::schemas;
use super::stages::{StageParams, StageSampling};
use super::streamed_usage::UsageChunks;
use super::{App, AskedModel, asked_model};
use crate::frontend::{Submission, Truncation};

/// Most choices of one request. Chosen by us: each is a whole request to the engine.
const MAX_CHOICES: u32 = 8;

/// Longest `request_id`. Chosen by us: room for two UUIDs.
const MAX_REQUEST_ID_BYTES: usize = 64;

/// Values of `reasoning_effort` that ask for no reasoning, which is all that these models do.
const NO_REASONING: [&str; 2] = ["none", "minimal"];

/// Everything a client may send to a generation route.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, remote = "Self", expecting = "a JSON object")]
#[schemars(rename = "GenerationBody")]
pub(super) struct GenerationBody {
    /// The model's name.
    pub(super) model: Option<String>,
    /// Text or ids (`/generate`, completions).
    pub(super) prompt: Option<PromptField>,
    /// Text or ids that follow the answer (`/generate`, completions).
    suffix: Option<PromptField>,
    /// The conversation (chat).
    pub(super) messages: Option<Vec<MessageField>>,
    /// Progress as server-sent events.
    stream: Option<bool>,
    /// Which progress.
    #[serde(deserialize_with = "by_name")]
    #[schemars(schema_with = "schemas::name_of::<StreamMode>")]
    stream_mode: Option<StreamMode>,
    /// OpenAI's options of a stream.
    stream_options: Option<StreamOptions>,
    /// How much a snapshot covers.
    #[serde(deserialize_with = "by_name")]
    #[schemars(schema_with = "schemas::name_of::<SnapshotField>")]
    snapshot: Option<SnapshotField>,
    /// The pace and detail of denoise frames.
    denoise: Option<DenoiseField>,
    /// The client's own tag.
    user: Option<String>,
    /// Answers wanted.
    #[schemars(range(min = 1, max = MAX_CHOICES))]
    pub(super) n: Option<u32>,
    /// `true` or completions' number of alternatives.
    logprobs: Option<LogprobsField>,

    /// With `logprobs`: alternatives per token.
    #[schemars(range(min = 0, max = SamplingParams::MAX_TOP_LOGPROBS))]
    top_logprobs: Option<u32>,
    /// The prompt before the answer (completions).
    echo: Option<bool>,
    /// Likeliest tokens to report at each place of the prompt, which is scored (chat, completions).
    prompt_logprobs: Option<i64>,
    /// The id that the client knows the request by.
    request_id: Option<String>,
    /// Tokens of the prompt that are kept, from its end.
    truncate_prompt_tokens: Option<i64>,
    /// Requests share cached prefixes only with those of the same salt.
    cache_salt: Option<String>,
    /// How hard to think.
    reasoning_effort: Option<String>,
    /// Sampling of single stages.
    stage_sampling: Option<StageSampling>,
    /// Settings of single stages.
    stage_params: Option<StageParams>,

    #[schemars(range(min = 1))]
    pub(super) max_tokens: Option<u32>,
    #[schemars(range(min = 1))]
    max_completion_tokens: Option<u32>,
    min_tokens: Option<u32>,
    #[schemars(range(min = -SamplingParams::MAX_PENALTY, max = SamplingParams::MAX_PENALTY))]
    pub(super) presence_penalty: Option<f32>,
    #[schemars(range(min = -SamplingParams::MAX_PENALTY, max = SamplingParams::MAX_PENALTY))]
    pub(super) frequency_penalty: Option<f32>,
    #[schemars(range(min = SamplingParams::REPETITION_PENALTIES.0, max = SamplingParams::REPETITION_PENALTIES.1))]
    pub(super) repetition_penalty: Option<f32>,
    pub(super) logit_bias: Option<BTreeMap<u32, f32>>,
    #[schemars(range(min = 0, max = SamplingParams::MAX_TEMPERATURE))]
    pub(super) temperature: Option<f32>,
    #[schemars(range(min = 0, max = 1))]
    pub(super) top_p: Option<f32>,
    top_k: Option<i64>,
    #[schemars(range(min = 0, max = 1))]
    min_p: Option<f32>,
    seed: Option<SeedField>,
    stop: Option<StopField>,
    pub(super) stop_token_ids: Option<Vec<u32>>,
    pub(super) ignore_eos: Option<bool>,
    #[schemars(range(min = 1))]
    max_nfe: Option<u32>,
    #[schemars(range(min = 1))]
    max_repetition_run: Option<u32>,
    #[schemars(with = "Option<BTreeMap<String, Value>>")]
    decoding: Option<DecodingSettings>,

    /// Everything else.
    #[serde(skip)]
    pub(super) others: OtherFields,
}

impl<'de> Deserialize<'de> for GenerationBody {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Self::read(input, OtherFields::default())
    }
}

/// How a generation route reads a body.
pub(super) struct Reading {
    /// The route's path.
    pub(super) route: &'static str,
    /// Messages are read, or a prompt.
    pub(super) is_chat: bool,
    /// The progress of streams that ask for none.
    pub(super) stream_mode: StreamMode,
    /// Several choices may be asked for, and, where prompts are read, several of those.
    pub(super) takes_choices: bool,
}

impl Reading {
    /// One prompt, answered once, in deltas.
    pub(super) const fn of(route: &'static str) -> Self {
        Self { route, is_chat: false, stream_mode: StreamMode::BlockAppend, takes_choices: false }
    }

    /// Messages.
    pub(super) const fn of_messages(self) -> Self {
        Self { is_chat: true, ..self }
    }

    /// Answered in snapshots unless asked otherwise.
    pub(super) const fn denoising(self) -> Self {
        Self { stream_mode: StreamMode::Denoise, ..self }
    }

    /// Answered several times.
    pub(super) const fn with_choices(self) -> Self {
        Self { takes_choices: true, ..self }
    }
}

/// A request to the front end, and how it is to be answered.
pub(super) struct Order {
    /// The model's name as the client wrote it.
    pub(super) model: String,
    pub(super) submission: Submission,
    /// The form of denoise frames.
    pub(super) denoise: DenoiseForm,
    /// Tokens' probabilities are wanted.
    pub(super) wants_logprobs: bool,
    /// Chunks of a stream with the usage.
    pub(super) usage_chunks: UsageChunks,
    /// The parts of the prompt that the answer reports.
    pub(super) prompt: PromptReport,
}

/// OpenAI's `stream_options`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct StreamOptions {
    /// A last chunk with the usage.
    include_usage: Option<bool>,
    /// With that, the usage so far on all others.
    continuous_usage_stats: Option<bool>,
}

impl Order {
    /// The order that `body` is on the route of `reading`.
    pub(super) fn of(app: &App, mut body: GenerationBody, reading: &Reading) -> Result<Self, ApiError> {
        let AskedModel { name: model, adapter } = asked_model(app, body.model.take())?;
        body.check_others(&app.ignored_fields)?;
        let n_choices = body.n_choices()?;
        if n_choices > 1 && !reading.takes_choices {
            return Err(ApiError::invalid("n", "n is 1 on this route; /v1/chat/completions takes more"));
        }
        body.apply_stages()?;
        let prompt = body.prompt_report(reading)?;
        let sampling_params = body.sampling_params(&app.options.sampling_defaults)?;
        let (inputs, suffix) = if reading.is_chat {
            (vec![ServingInput::Chat { messages: body.take_messages()? }], None)
        } else {
            let prompts = if reading.takes_choices { body.take_prompts()? } else { vec![body.take_prompt()?] };
            let inputs = prompts.into_iter().map(|prompt| ServingInput::Prompt { prompt }).collect();
            (inputs, body.take_suffix()?)
        };
        let denoise = DenoiseForm::of(body.snapshot, body.denoise)?;
        let submission = Submission {
            sampling_params,
            n_choices,
            stream: body.stream.unwrap_or(false),
            stream_mode: body.stream_mode.unwrap_or(reading.stream_mode),
            snapshot: denoise.span,
            max_fps: denoise.max_fps,
            suffix,
            fills_masks: !reading.is_chat,
            adapter,
            user: body.user.take(),
            request_id: body.take_request_id()?,
            truncation: body.truncation()?,
            cache_salt: body.take_cache_salt()?,
            keeps_prompt: prompt.needs_prompt(),
            ..Submission::of_inputs(reading.route, inputs)
        };
        let (wants_logprobs, usage_chunks) = (body.wants_logprobs(), body.usage_chunks());
        prompt.check_stream(submission.stream, wants_logprobs)?;
        Ok(Self { model, submission, denoise, wants_logprobs, usage_chunks, prompt })
    }
}

impl GenerationBody {
    /// Reads a body, the fields that it does not declare into `others`.
    pub(super) fn read<'de, D: Deserializer<'de>>(input: D, mut others: OtherFields) -> Result<Self, D::Error> {
        // The derived reading, which `remote` makes a function of the type.
        let body = Self::deserialize(Screened { input, others: &mut others })?;
        Ok(Self { others, ..body })
    }

    /// A body with nothing but a conversation.
    pub(super) fn of_messages(messages: Vec<MessageField>) -> Self {
        Self { messages: Some(messages), ..Self::default() }
    }

    /// Sampling and limits, every range checked; `defaults` are of what the request does not name.
    fn sampling_params(&mut self, defaults: &SamplingParams) -> Result<SamplingParams, ApiError> {
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            // OpenAI: max_completion_tokens is the newer name and wins.
            max_tokens: self.max_completion_tokens.or(self.max_tokens).unwrap_or(defaults.max_tokens),
            max_nfe: self.max_nfe,
            max_repetition_run: self.max_repetition_run,
            ignore_eos: self.ignore_eos.unwrap_or(defaults.ignore_eos),
            min_tokens: self.min_tokens.unwrap_or(defaults.min_tokens),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty),
            logit_bias: self.logit_bias.take().unwrap_or_default().into_iter().collect(),
            top_p: self.top_p.or(defaults.top_p),
            top_k: self.top_k.map_or(Ok(defaults.top_k), top_k)?,
            min_p: self.min_p.or(defaults.min_p),
            seed: self.seed.map(|seed| match seed {
                SeedField::Unsigned(seed) => seed,
                SeedField::Signed(seed) => seed.cast_unsigned(),
            }),
            stop: match self.stop.take() {
                None => Vec::new(),
                Some(StopField::One(stop)) => vec![stop],
                Some(StopField::Many(stops)) => stops,
            },
            stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
            logprobs: self.wants_logprobs(),
            top_logprobs: self.n_alternatives(),
            prompt_logprobs: self.prompt_alternatives()?,
            decoding: self.decoding.take().unwrap_or_default(),
        };
        let checked = if self.echo == Some(true) { params.validate() } else { params.validate_answer() };
        checked.map_err(|error| {
            // By the name that the client used.
            let field = match error.field {
                "max_tokens" if self.max_completion_tokens.is_some() => "max_completion_tokens",
                "top_logprobs" if self.top_logprobs.is_none() => "logprobs",
                field => field,
            };
            ApiError::invalid(field, ParamError { field, ..error }.to_string())
        })?;
        diffulex_engine::check_settings(&params.decoding)?;
        Ok(params)
    }

    /// Answers wanted, 1 to [`MAX_CHOICES`].
    fn n_choices(&self) -> Result<u32, ApiError> {
        match self.n.unwrap_or(1) {
            n @ 1..=MAX_CHOICES => Ok(n),
            n => Err(ApiError::invalid("n", format!("n must be between 1 and {MAX_CHOICES}, got {n}"))),
        }
    }

    /// True when tokens' probabilities are wanted.
    fn wants_logprobs(&self) -> bool {
        match self.logprobs {
            None | Some(LogprobsField::Flag(false)) => false,
            Some(LogprobsField::Flag(true) | LogprobsField::Count(_)) => true,
        }
    }

    /// Alternatives wanted per token: chat's field, or completions' number.
    fn n_alternatives(&self) -> u32 {
        match (self.top_logprobs, &self.logprobs) {
            (Some(n), _) => n,
            (None, Some(LogprobsField::Count(n))) => *n,
            (None, None | Some(LogprobsField::Flag(_))) => 0,
        }
    }

    /// Likeliest tokens that are reported at each place of the prompt: by its own field, or by an echo with `logprobs`.
    fn prompt_alternatives(&self) -> Result<Option<u32>, ApiError> {
        let listed = self.prompt_logprobs.map(u32::try_from).transpose().map_err(|_| {
            let (most, got) = (SamplingParams::MAX_TOP_LOGPROBS, self.prompt_logprobs.unwrap_or_default());
            ApiError::invalid("prompt_logprobs", format!("prompt_logprobs must be between 0 and {most}, got {got}"))
        })?;
        let echoed = (self.echo == Some(true) && self.wants_logprobs()).then(|| self.n_alternatives());
        Ok(listed.max(echoed))
    }

    /// The parts of the prompt that the answer reports, where the route of `reading` reports them.
    fn prompt_report(&self, reading: &Reading) -> Result<PromptReport, ApiError> {
        let echoes = self.echo == Some(true);
        if echoes && (reading.is_chat || !reading.takes_choices) {
            return Err(ApiError::invalid("echo", "echo is not supported on this route; /v1/completions has it"));
        }
        if self.prompt_logprobs.is_some() && !reading.takes_choices {
            let message =
                "prompt_logprobs is not supported on this route; /v1/completions and /v1/chat/completions have it";
            return Err(ApiError::invalid("prompt_logprobs", message));
        }
        Ok(PromptReport { echoes, listed: self.prompt_logprobs.map(|n| n as usize) })
    }

    /// Chunks of a stream with the usage.
    fn usage_chunks(&self) -> UsageChunks {
        let options = self.stream_options.as_ref();
        let is_on = |field: fn(&StreamOptions) -> Option<bool>| options.is_some_and(|all| field(all) == Some(true));
        match (is_on(|options| options.include_usage), is_on(|options| options.continuous_usage_stats)) {
            (false, _) => UsageChunks::Finish,
            (true, false) => UsageChunks::Own,
            (true, true) => UsageChunks::Every,
        }
    }

    /// The client's own id of the request.
    fn take_request_id(&mut self) -> Result<Option<String>, ApiError> {
        let Some(id) = self.request_id.take() else { return Ok(None) };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.bytes().all(is_plain) {
            return Ok(Some(id));
        }
        let message =
            format!("request_id must be 1 to {MAX_REQUEST_ID_BYTES} characters of A-Z, a-z, 0-9, _ and -, got {id:?}");
        Err(ApiError::invalid("request_id", message))
    }

    fn truncation(&self) -> Result<Option<Truncation>, ApiError> {
        match self.truncate_prompt_tokens {
            None => Ok(None),
            Some(-1) => Ok(Some(Truncation::ToFit)),
            Some(n) => match u32::try_from(n) {
                Ok(n) if n > 0 => Ok(Some(Truncation::To(n))),
                _ => {
                    let message = format!("truncate_prompt_tokens must be at least 1, or -1 for what fits, got {n}");
                    Err(ApiError::invalid("truncate_prompt_tokens", message))
                }
            },
        }
    }

    fn take_cache_salt(&mut self) -> Result<Option<String>, ApiError> {
        match self.cache_salt.take() {
            // As vLLM: an empty one would isolate nobody.
            Some(salt) if salt.is_empty() => {
                Err(ApiError::invalid("cache_salt", "cache_salt must be a string that is not empty"))
            }
            salt => Ok(salt),
        }
    }

    /// Sampling and settings of the stages, over those of the request.
    fn apply_stages(&mut self) -> Result<(), ApiError> {
        let (sampling, params) = (self.stage_sampling.take(), self.stage_params.take());
        let Some(denoise) = StageSampling::denoise(sampling, params)? else { return Ok(()) };
        self.temperature = denoise.temperature.or(self.temperature);
        self.top_p = denoise.top_p.or(self.top_p);
        self.top_k = denoise.top_k.or(self.top_k);
        self.min_p = denoise.min_p.or(self.min_p);
        self.repetition_penalty = denoise.repetition_penalty.or(self.repetition_penalty);
        self.presence_penalty = denoise.presence_penalty.or(self.presence_penalty);
        self.frequency_penalty = denoise.frequency_penalty.or(self.frequency_penalty);
        self.seed = denoise.seed.map(SeedField::Unsigned).or(self.seed);
        self.max_nfe = denoise.max_nfe.or(self.max_nfe);
        let decoding = self.decoding.get_or_insert_default();
        for (name, value) in denoise.decoding.iter() {
            decoding.set(name, value.clone());
        }
        Ok(())
    }

    /// A text to go on from, and what follows the answer.
    pub(super) fn set_text(&mut self, prompt: String, suffix: Option<String>) {
        self.prompt = Some(PromptField::Text(prompt));
        self.suffix = suffix.map(PromptField::Text);
    }

    /// A text that ends the answer, or none.
    pub(super) fn set_stop(&mut self, stop: Option<String>) {
        self.stop = stop.map(StopField::One);
    }

    /// The prompts; an error when there is none.
    fn take_prompts(&mut self) -> Result<Vec<Prompt>, ApiError> {
        let missing = || ApiError::invalid("prompt", "prompt is required: a string or a list of token ids");
        self.prompt.take().map(PromptField::into_prompts).ok_or_else(missing)
    }

    /// The prompt; an error when there is none, or more than one.
    pub(super) fn take_prompt(&mut self) -> Result<Prompt, ApiError> {
        one_prompt("prompt", self.take_prompts()?)
    }

    /// Text or ids that follow the answer; `None` if empty.
    fn take_suffix(&mut self) -> Result<Option<Prompt>, ApiError> {
        let suffix = self.suffix.take().map(|suffix| one_prompt("suffix", suffix.into_prompts())).transpose()?;
        Ok(suffix.filter(|suffix| match suffix {
            Prompt::Text(text) => !text.is_empty(),
            Prompt::Ids(ids) => !ids.is_empty(),
        }))
    }

    /// The conversation; an error when there is none.
    pub(super) fn take_messages(&mut self) -> Result<Vec<ChatMessage>, ApiError> {
        if self.take_suffix()?.is_some() {
            return Err(ApiError::invalid(
                "suffix",
                "suffix is not supported in a chat; /v1/completions and /generate take one",
            ));
        }
        let messages = self.messages.take().unwrap_or_default();
        if messages.is_empty() {
            return Err(ApiError::invalid("messages", "messages must not be empty"));
        }
        messages.into_iter().enumerate().map(|(index, message)| message.into_chat_message(index)).collect()
    }

    /// Refuses fields that are not supported and would change the answer.
    pub(super) fn check_others(&self, log: &IgnoredFieldLog) -> Result<(), ApiError> {
        self.others.check(log)?;
        match self.reasoning_effort.as_deref() {
            Some(effort) if !effort.is_empty() && !NO_REASONING.contains(&effort) => {
                let known = NO_REASONING.join(" and ");
                let message = format!("reasoning_effort: {effort:?} is not supported; {known} are");
                Err(ApiError::invalid("reasoning_effort", message))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The only one of `prompts`.
fn one_prompt(field: &str, prompts: Vec<Prompt>) -> Result<Prompt, ApiError> {
    let prompts = <[Prompt; 1]>::try_from(prompts);
    let [prompt] = prompts.map_err(|prompts| {
        ApiError::invalid(field, format!("{field}: expected one per request, got {}", prompts.len()))
    })?;
    Ok(prompt)
}

/// vLLM and sglang write -1 (and vLLM 0) for "all".
fn top_k(value: i64) -> Result<Option<u32>, ApiError> {
    match value {
        -1 | 0 => Ok(None),
        value => u32::try_from(value).map(Some).map_err(|_| {
            let message = format!("top_k must be between 1 and {}, or -1 for all, got {value}", u32::MAX);
            ApiError::invalid("top_k", message)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(json: &str) -> GenerationBody {
        serde_json::from_str(json).expect("a body")
    }

    fn refused_param(json: &str) -> Option<String> {
        let mut body = body(json);
        let checked = body.check_others(&IgnoredFieldLog::default());
        let error = checked
            .and_then(|()| body.apply_stages())
            .and_then(|()| body.sampling_params(&SamplingParams::default()).map(drop));
        let error = error.err()?;
        let value = serde_json::to_value(error.body()).expect("json");
        value["error"]["param"].as_str().map(str::to_owned)
    }

    #[test]
    fn an_empty_body_has_the_defaults() {
        let defaults = SamplingParams { temperature: 0.5, ..SamplingParams::default() };
        assert_eq!(body("{}").sampling_params(&defaults), Ok(defaults.clone()));
    }

    #[test]
    fn max_completion_tokens_wins() {
        let params =
            body(r#"{"max_tokens": 5, "max_completion_tokens": 7}"#).sampling_params(&SamplingParams::default());
        assert_eq!(params.map(|params| params.max_tokens), Ok(7));
    }

    #[test]
    fn unsupported_fields_are_named() {
        for (json, param) in [
            (r#"{"logit_bias": {"5": 101}}"#, "logit_bias"),
            (r#"{"grammar": "root ::= x"}"#, "grammar"),
            (r#"{"talker_temperature": 0.5}"#, "talker_temperature"),
            (r#"{"reasoning_effort": "high"}"#, "reasoning_effort"),
            (r#"{"stage_sampling": {"talker": {}}}"#, "stage_sampling.talker"),
            (r#"{"stage_sampling": {"denoise": {"nobody": 1}}}"#, "decoding.nobody"),
            (
                r#"{"stage_params": {"tokenize": {"add_special_tokens": true}}}"#,
                "stage_params.tokenize.add_special_tokens",
            ),
            (r#"{"tools": [{"type": "function"}]}"#, "tools"),
            (r#"{"presence_penalty": 2.5}"#, "presence_penalty"),
            (r#"{"response_format": {"type": "json_object"}}"#, "response_format"),
            (r#"{"modalities": ["text", "audio"]}"#, "modalities"),
            (r#"{"top_logprobs": 3}"#, "top_logprobs"),
            (r#"{"logprobs": 9}"#, "logprobs"),
            (r#"{"min_tokens": 600}"#, "min_tokens"),
            (r#"{"add_special_tokens": true}"#, "add_special_tokens"),
            (r#"{"prompt_embeds": "AAAA"}"#, "prompt_embeds"),
            (r#"{"max_new_tokens": 5}"#, "max_new_tokens"),
            (r#"{"skip_special_tokens": false}"#, "skip_special_tokens"),
            (r#"{"nobody_knows": 1, "best_of": 2}"#, "best_of"),
            (r#"{"temperature": 3}"#, "temperature"),
            (r#"{"top_k": -7}"#, "top_k"),
        ] {
            assert_eq!(refused_param(json).as_deref(), Some(param), "{json}");
        }
    }

    #[test]
    fn fields_that_ask_for_nothing_pass() {
        let json = r#"{"logit_bias": null, "tools": [], "presence_penalty": 0.0, "response_format": {"type": "text"},
                       "modalities": ["text"], "repetition_penalty": 1.0, "top_k": -1, "add_special_tokens": false, "skip_special_tokens": true,
                       "parallel_tool_calls": true, "reasoning_effort": "none", "stage_sampling": {"denoise": {}, "tokenize": {}},
                       "stage_params": {"tokenize": {"add_special_tokens": false}}, "mirostat": 0, "images": [], "service_tier": "auto", "store": true, "priority": 3,
                       "nobody_knows": {"x": [1e400]}}"#;
        assert_eq!(refused_param(json), None);
    }

    #[test]
    fn a_body_is_an_object() {
        let error = serde_json::from_str::<GenerationBody>("[1]").expect_err("a list");
        assert!(error.to_string().contains("expected a JSON object"), "{error}");
    }

    #[test]
    fn messages_may_be_text_parts_or_null() {
        let json = r#"{"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]},
                                    {"role": "assistant", "content": null}, {"role": "user", "content": "b"}]}"#;
        let messages = body(json).take_messages().expect("messages");
        let seen: Vec<_> = messages.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
        assert_eq!(seen, [("system", "a"), ("assistant", ""), ("user", "b")]);
    }

    #[test]
    fn other_modalities_are_refused() {
        let json = r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}"#;
        assert!(body(json).take_messages().is_err());
    }

    #[test]
    fn a_prompt_may_be_a_list_of_one() {
        assert_eq!(body(r#"{"prompt": ["a"]}"#).take_prompt(), Ok(Prompt::Text("a".into())));
        assert_eq!(body(r#"{"prompt": [[1, 2]]}"#).take_prompt(), Ok(Prompt::Ids(vec![1, 2])));
        assert!(body(r#"{"prompt": ["a", "b"]}"#).take_prompt().is_err());
    }
}
