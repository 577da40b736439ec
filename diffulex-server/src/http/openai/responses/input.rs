//! The body of `POST /v1/responses`: OpenAI's items and settings to the internal request.
//!
//! Never here: the answer.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::frontend::Submission;
use crate::http::answer::answer_form::AnswerForm;
use crate::http::answer::error::ApiError;
use crate::http::app::App;
use crate::http::request::field_lists::{checked_choice, is_empty};
use crate::http::request::fields::{ContentField, TextOr};
use crate::http::request::generation::{DEFAULT_EFFORT, NO_REASONING};
use crate::http::request::interface::{InterfaceBody, message, unsupported};
use crate::http::request::message::{MessageField, text_of};
use crate::http::request::numbers::whole;
use crate::http::request::route_options::RouteOptions;

/// Rules of the route.
const OPTIONS: RouteOptions = RouteOptions::of("/v1/responses").of_messages();

/// The field that the internal request calls otherwise.
pub(super) const NAMES: [(&str, &str); 2] = [("messages", "input"), ("max_tokens", "max_output_tokens")];

const ROLES: [&str; 4] = ["user", "assistant", "system", "developer"];

/// Kinds of parts that are text: of questions, of answers sent back.
const TEXT_PARTS: [&str; 3] = ["input_text", "output_text", "text"];

/// The entry of `include` that asks for log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Settings that an answer repeats.
pub(super) struct Settings {
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) metadata: Map<String, Value>,
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) top_logprobs: u32,
    pub(super) effort: Option<String>,
}

/// The interface's own fields.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, expecting = "a JSON object")]
pub(in crate::http) struct ResponsesFields {
    /// A text of the user, or items.
    input: Option<TextOr<Item>>,
    /// System message.
    instructions: Option<String>,
    /// Tokens of the answer at most.
    #[serde(deserialize_with = "whole")]
    max_output_tokens: Option<u32>,
    /// Form of the text: only plain text is supported.
    text: Option<TextSettings>,
    /// Returned with the answer.
    metadata: Option<Map<String, Value>>,
    /// Not supported: a value that asks for something is a 400.
    reasoning: Option<Reasoning>,
    /// Accepted; nothing is ever stored, which the answer says.
    #[serde(rename = "store")]
    _store: Option<bool>,
    /// Not supported: a value that asks for something is a 400.
    background: Option<bool>,
    /// Not supported: nothing is stored.
    previous_response_id: Option<String>,
    /// Not supported: nothing is stored.
    conversation: Option<Value>,
    /// Not supported: a value that asks for something is a 400.
    tools: Option<Vec<Value>>,
    /// Not supported: a value that asks for something is a 400.
    tool_choice: Option<Value>,
    /// Not supported: only disabled is accepted.
    truncation: Option<String>,
    /// With log-probabilities in `include`: alternatives per token.
    #[serde(deserialize_with = "whole")]
    top_logprobs: Option<u32>,
    /// `message.output_text.logprobs` adds log-probabilities.
    include: Option<Vec<String>>,
    /// Not supported: a value that asks for something is a 400.
    prompt: Option<Value>,
}

impl ResponsesFields {
    fn wants_logprobs(&self) -> bool {
        self.include.iter().flatten().any(|name| name == LOGPROBS)
    }
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, expecting = "an object")]
struct TextSettings {
    format: Option<TextFormat>,
    verbosity: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct TextFormat {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, expecting = "an object")]
struct Reasoning {
    effort: Option<String>,
}

/// An item of the conversation. A message may leave out its type.
#[derive(Deserialize, JsonSchema)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<ContentField>,
}

/// The request that `body` is, the form of its answer, and the settings that the answer repeats.
pub(super) fn parse(
    app: &App,
    mut body: InterfaceBody<ResponsesFields>,
) -> Result<(Submission, (AnswerForm, Settings)), ApiError> {
    check(&body.own)?;
    let mut messages = Vec::new();
    if let Some(instructions) = body.own.instructions.as_ref().filter(|text| !text.is_empty()) {
        messages.push(message("system", instructions.clone()));
    }
    match body.own.input.take() {
        None => return Err(ApiError::invalid("input", "input is required: a string or a list of items")),
        Some(TextOr::Text(text)) => messages.push(message("user", text)),
        Some(TextOr::List(items)) if items.is_empty() => {
            return Err(ApiError::invalid("input", "input must not be empty"));
        }
        Some(TextOr::List(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                messages.push(item.into_message(index)?);
            }
        }
    }
    if let Some(max_tokens) = body.own.max_output_tokens {
        body.set("max_tokens", max_tokens);
    }
    let top_logprobs = body.own.top_logprobs.unwrap_or_default();
    if body.own.wants_logprobs() {
        body.set("logprobs", true);
        body.set("top_logprobs", top_logprobs);
    }
    let (own, mut request) = body.into_request()?;
    request.messages = Some(messages);
    let (submission, form) = request.into_submission(app, &OPTIONS)?;
    let params = &submission.generate.sampling_params;
    let settings = Settings {
        instructions: own.instructions,
        max_output_tokens: own.max_output_tokens,
        metadata: own.metadata.unwrap_or_default(),
        temperature: params.temperature,
        top_p: params.top_p.unwrap_or(1.0),
        top_logprobs,
        effort: own.reasoning.and_then(|reasoning| reasoning.effort),
    };
    Ok((submission, (form, settings)))
}

/// Refuses what is known and not supported.
fn check(fields: &ResponsesFields) -> Result<(), ApiError> {
    if fields.background == Some(true) {
        return unsupported("background", "; a response is made while its client waits");
    }
    if let Some(id) = fields.previous_response_id.as_ref().filter(|id| !id.is_empty()) {
        // Nothing is stored, so every id is unknown.
        let message = format!("previous_response_id: there is no response {id:?}; this server stores none");
        let error = ApiError::new(StatusCode::NOT_FOUND, "previous_response_not_found", message);
        return Err(error.with_param("previous_response_id"));
    }
    let is_without_calls = checked_choice(fields.tool_choice.as_ref())?;
    if let Some(tool) = fields.tools.iter().flatten().next().filter(|_| !is_without_calls) {
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or_default();
        return unsupported("tools[0]", &format!(" (type {kind:?})"));
    }
    if let Some(format) =
        fields.text.as_ref().and_then(|text| text.format.as_ref()).filter(|format| format.kind != "text")
    {
        return unsupported("text.format", &format!(": type {:?}; it writes type \"text\"", format.kind));
    }
    if let Some(verbosity) = fields.text.as_ref().and_then(|text| text.verbosity.as_ref()).filter(|v| *v != "medium") {
        return unsupported("text.verbosity", &format!(": {verbosity:?}"));
    }
    let effort = fields.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    if let Some(effort) = effort.filter(|effort| *effort != DEFAULT_EFFORT && !NO_REASONING.contains(effort)) {
        let known = NO_REASONING.join(" and ");
        return unsupported("reasoning.effort", &format!(": {effort:?}; {known} are"));
    }
    if let Some(truncation) = fields.truncation.as_ref().filter(|truncation| *truncation != "disabled") {
        return unsupported("truncation", &format!(": {truncation:?}"));
    }
    if fields.top_logprobs.is_some_and(|n| n > 0) && !fields.wants_logprobs() {
        let message = format!("top_logprobs needs {LOGPROBS:?} in include");
        return Err(ApiError::invalid("top_logprobs", message));
    }
    for (name, value) in [("conversation", &fields.conversation), ("prompt", &fields.prompt)] {
        if value.as_ref().is_some_and(|value| !is_empty(value)) {
            return unsupported(name, "");
        }
    }
    Ok(())
}

impl Item {
    fn into_message(self, index: usize) -> Result<MessageField, ApiError> {
        if let Some(kind) = self.kind.filter(|kind| kind != "message") {
            let field = format!("input[{index}].type");
            return unsupported(&field, &format!(": {kind:?}; items are messages"));
        }
        let field = format!("input[{index}].role");
        let Some(role) = self.role else { return Err(ApiError::invalid(&field, format!("{field} is required"))) };
        if !ROLES.contains(&role.as_str()) {
            let known = ROLES.join(", ");
            return Err(ApiError::invalid(&field, format!("{field}: {role:?} is unknown; roles are {known}")));
        }
        let field = format!("input[{index}].content");
        let Some(content) = self.content else {
            return Err(ApiError::invalid(&field, format!("{field} is required")));
        };
        Ok(message(&role, text_of(&field, content, &TEXT_PARTS)?))
    }
}
