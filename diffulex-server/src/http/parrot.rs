//! Parrot's engine API: its flat routes, by its names of fields, over contexts.
//!
//! A client of Parrot's engines names a context by an id of its own; a primitive on an unknown one makes it, from its parent if it has
//! one. Never here: the rules of contexts, what a controller does with engines.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use diffulex_protocol::{Prompt, StreamMode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::App;
use super::answer::{self, Spacing};
use super::body::{self, Dialect, Read};
use super::contexts::{self, TextBody, fill_with, parent_id};
use super::error::ApiError;
use super::native::{self, AnswerForm, end_token};
use super::other_fields::OtherFields;
use super::request::{GenerationBody, Order, Reading};
use super::routes::{BYTES, Entry, Routes};
use super::sse::{self, Framer, Frames, StreamForm};
use crate::frontend::{ContextError, ContextName, ContextOwner, NewContext, StreamEvent, Submission};
use crate::parrot_engine::EngineRuntimeInfo;
use crate::traces::RequestTrace;

/// Fields of a primitive that no other request has.
const FIELDS: [&str; 7] =
    ["context_id", "parent_context_id", "session_id", "task_id", "end_flag", "sampling_config", "sampling_configs"];

/// How `/generate` and `/generate_stream` are read.
const READING: Reading = Reading::of("/generate").denoising();

/// The routes, without `/generate`, which is also the native one.
pub(super) fn routes(routes: Routes) -> Routes {
    let answers = contexts::answers;
    let ping_entry = || answers(Entry::of("Whether the engine is there").taking::<PingBody>().or_nothing());
    routes
        .post("/fill", fill, answers(Entry::of("Adds text to a context of Parrot's").taking::<FillBody>().traced()))
        .post(
            "/generate_stream",
            generate_stream,
            answers(Entry::generation::<GenerateBody>("Token ids, as Parrot's engines stream them"))
                .answering(&[BYTES]),
        )
        .post("/free_context", free_context, answers(Entry::of("Frees a context of Parrot's").taking::<FreeBody>()))
        .post("/ping", ping, ping_entry())
        .post("/ping_engine", ping, ping_entry())
        .post("/register_engine", register_engine, answers(Entry::of("Registers an engine").taking::<RegisterBody>()))
        .post(
            "/engine_heartbeat",
            engine_heartbeat,
            answers(Entry::of("A registered engine is alive").taking::<HeartbeatBody>()),
        )
}

/// Names that every primitive has. `session_id`, `task_id` and `end_flag` are read and change nothing here.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ParrotPrimitive")]
struct Primitive {
    context_id: i64,
    #[serde(default = "none")]
    parent_context_id: i64,
}

fn none() -> i64 {
    -1
}

impl Primitive {
    /// The context, which is made if there is none.
    fn bind(&self, app: &App, owner: ContextOwner) -> Result<ContextName, ApiError> {
        let missing = || ApiError::invalid("context_id", "context_id must be the id of a context, got -1");
        let id = parent_id("context_id", self.context_id)?.ok_or_else(missing)?;
        let parent = parent_id("parent_context_id", self.parent_context_id)?;
        let name = ContextName { owner, id };
        match app.frontend.context(name) {
            Ok(_) => Ok(name),
            Err(ContextError::Unknown(_) | ContextError::Gone { .. }) => {
                let new = NewContext { id: Some(id), parent, ..NewContext::default() };
                match app.frontend.create_context(owner, new) {
                    // Another primitive was faster.
                    Ok(_) | Err(ContextError::Exists(_)) => Ok(name),
                    Err(error) => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ParrotFillBody")]
struct FillBody {
    #[serde(flatten)]
    primitive: Primitive,
    #[serde(flatten)]
    text: TextBody,
}

/// Adds text to a context.
async fn fill(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let owner = contexts::owner(&app, request.headers());
    let prepare = |_: &App, FillBody { primitive, text }: FillBody| {
        let missing = || ApiError::invalid("token_ids", "token_ids, text or messages is required");
        Ok((primitive, text.input()?.ok_or_else(missing)?))
    };
    let Read { value: (primitive, input), held, trace } = body::json(&app, request, Dialect::Native, prepare).await?;
    let name = primitive.bind(&app, owner)?;
    let filled = fill_with(&app, name, input, trace).await?;
    drop(held);
    Ok(answer::json(&filled))
}

/// A body of `/generate`: the native one, or Parrot's.
pub(super) struct GenerateBody {
    body: GenerationBody,
    /// Fields of a primitive, if there is a `context_id`.
    primitive: Option<Map<String, Value>>,
}

impl JsonSchema for GenerateBody {
    fn schema_name() -> Cow<'static, str> {
        "GenerateBody".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        GenerationBody::json_schema(generator)
    }
}

impl<'de> Deserialize<'de> for GenerateBody {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let mut body = GenerationBody::read(input, OtherFields::also_keeping(&FIELDS))?;
        let kept = body.others.take_kept();
        if kept.get("context_id").is_none_or(Value::is_null) {
            body.others.ignore(kept);
            return Ok(Self { body, primitive: None });
        }
        Ok(Self { body, primitive: Some(kept) })
    }
}

/// A request of `/generate`.
pub(super) enum Asked {
    /// On a prompt.
    Plain(Order),
    /// On a context.
    OnContext(OnContext),
}

/// A request that Parrot's client makes of a context.
pub(super) struct OnContext {
    primitive: Primitive,
    order: Order,
}

/// Parrot's sampling, with its names and defaults. `best_of` and `length_penalty` have no meaning here and are not read.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct SamplingConfig {
    temperature: Option<f32>,
    top_p: Option<f32>,
    max_gen_length: u32,
    ignore_tokenizer_eos: bool,
    stop_token_ids: Vec<u32>,
    stop_str: Option<String>,
    presence_penalty: f32,
    frequency_penalty: f32,
    n: u32,
    logit_bias: Option<BTreeMap<u32, f32>>,
    /// 0 is none.
    repetition_penalty: f32,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self {
            temperature: None,
            top_p: None,
            max_gen_length: 512,
            ignore_tokenizer_eos: false,
            stop_token_ids: Vec::new(),
            stop_str: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            n: 1,
            logit_bias: None,
            repetition_penalty: 0.0,
        }
    }
}

impl SamplingConfig {
    /// Sets the fields of `body`.
    fn apply(self, body: &mut GenerationBody) {
        body.temperature = self.temperature.or(body.temperature);
        body.top_p = self.top_p.or(body.top_p);
        body.max_tokens = Some(self.max_gen_length);
        body.ignore_eos = Some(self.ignore_tokenizer_eos);
        body.stop_token_ids = Some(self.stop_token_ids);
        body.set_stop(self.stop_str);
        body.presence_penalty = Some(self.presence_penalty);
        body.frequency_penalty = Some(self.frequency_penalty);
        body.repetition_penalty = Some(self.repetition_penalty).filter(|penalty| *penalty != 0.0);
        body.logit_bias = self.logit_bias;
        body.n = Some(self.n);
    }
}

impl GenerateBody {
    /// The order that it is.
    pub(super) fn order(self, app: &App) -> Result<Asked, ApiError> {
        let Self { mut body, primitive } = self;
        let Some(mut primitive) = primitive else { return Ok(Asked::Plain(Order::of(app, body, &READING)?)) };
        let config = [primitive.remove("sampling_config"), primitive.remove("sampling_configs")];
        let config = config.into_iter().flatten().find(|config| !config.is_null());
        let wrong = |field: &str, error: &dyn std::fmt::Display| ApiError::invalid(field, format!("{field}: {error}"));
        if let Some(config) = config {
            let config: SamplingConfig = serde_path_to_error::deserialize(config)
                .map_err(|error| wrong(&format!("sampling_config.{}", error.path()), error.inner()))?;
            config.apply(&mut body);
        }
        let primitive: Primitive = serde_path_to_error::deserialize(Value::Object(primitive))
            .map_err(|error| wrong(&error.path().to_string(), error.inner()))?;
        body.prompt.get_or_insert_with(|| Prompt::Ids(Vec::new()).into());
        Ok(Asked::OnContext(OnContext { primitive, order: Order::of(app, body, &READING)? }))
    }
}

/// Goes on from a context, with the answer in the native form and in Parrot's fields.
pub(super) async fn generate_on_context(
    app: App,
    owner: ContextOwner,
    OnContext { primitive, order }: OnContext,
    trace: Option<RequestTrace>,
) -> Result<Response, ApiError> {
    let name = primitive.bind(&app, owner)?;
    let Order { model, submission, denoise, .. } = order;
    let is_stream = submission.stream;
    let form = AnswerForm::new(model, denoise).on_context(&app, name).for_parrot();
    let submission = Submission { trace, ..submission };
    let stream = app.frontend.extend_context(name, submission, false).await?;
    native::respond(app, vec![stream], is_stream, form).await
}

/// The same as a stream: token ids of four bytes each, the most significant first, as Parrot's client reads them; server-sent
/// events for those who accept only these.
async fn generate_stream(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let owner = contexts::owner(&app, request.headers());
    let accepted = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let wants_events = accepted.is_some_and(|accepted| accepted.contains("text/event-stream"));
    let prepare = |app: &App, body: GenerateBody| match body.order(app)? {
        Asked::OnContext(asked) => Ok(asked),
        Asked::Plain(_) => Err(ApiError::invalid("context_id", "context_id is required")),
    };
    let Read { value: OnContext { primitive, mut order }, held, trace } =
        body::json(&app, request, Dialect::Native, prepare).await?;
    drop(held);
    order.submission.stream = true;
    if wants_events {
        return generate_on_context(app, owner, OnContext { primitive, order }, trace).await;
    }
    let name = primitive.bind(&app, owner)?;
    order.submission.stream_mode = StreamMode::BlockAppend;
    order.submission.trace = trace;
    let stream = app.frontend.extend_context(name, order.submission, false).await?;
    sse::respond(vec![stream], TokenFramer, Spacing::Compact, app.telemetry.clone()).await
}

/// Token ids of four bytes.
struct TokenFramer;

impl Framer for TokenFramer {
    const FORM: StreamForm = StreamForm::Ids;

    fn event(&mut self, _choice_idx: usize, event: StreamEvent, frames: &mut Frames) -> Result<(), ApiError> {
        match event {
            StreamEvent::Delta(delta) => frames.push_ids(&delta.token_ids),
            StreamEvent::Snapshot(_) => {}
            StreamEvent::Reply(reply) => frames.push_ids(end_token(&reply).as_slice()),
            StreamEvent::Error(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// There is no form for an error: the stream ends.
    fn fail(&mut self, error: &ApiError, _frames: &mut Frames) {
        tracing::warn!(code = error.code(), message = error.message(), "a stream of token ids ended early");
    }

    /// Nothing: every byte would be a part of an id.
    fn keep_alive(&self) -> axum::body::Bytes {
        axum::body::Bytes::new()
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ParrotFreeBody")]
struct FreeBody {
    context_id: i64,
}

/// Frees a context; one that is unknown has no tokens.
async fn free_context(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let owner = contexts::owner(&app, request.headers());
    let FreeBody { context_id } = body::plain_json(&app, request, Dialect::Native).await?;
    let id = parent_id("context_id", context_id)?;
    let freed = id.map(|id| app.frontend.free_context(ContextName { owner, id })).transpose();
    let context_len = match freed {
        Ok(view) => view.map_or(0, |view| view.context_len),
        Err(ContextError::Unknown(_) | ContextError::Gone { .. }) => 0,
        Err(error) => return Err(error.into()),
    };
    Ok(answer::json(&json!({"context_len": context_len})))
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ParrotPingBody")]
struct PingBody {
    engine_id: Option<i64>,
}

/// Whether an engine is alive, and its state: this server's own, or one that registered here.
async fn ping(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let PingBody { engine_id } = body::optional_json(&app, request, Dialect::Native).await?;
    let id = engine_id.map(|id| parent_id("engine_id", id)).transpose()?.flatten().filter(|id| *id > 0);
    let Some(id) = id else {
        let gauges = app.frontend.gauges();
        let info = EngineRuntimeInfo::of(&gauges);
        return Ok(answer::json(&json!({"pong": gauges.worker_up, "runtime_info": info})));
    };
    let engines = app.engines();
    let (is_alive, info) = engines.ping(id, Instant::now()).ok_or_else(|| unknown_engine(StatusCode::NOT_FOUND, id))?;
    Ok(answer::json(&json!({"pong": is_alive, "runtime_info": info})))
}

fn unknown_engine(status: StatusCode, id: u64) -> ApiError {
    ApiError::new(status, "engine_not_found", format!("no engine {id} is registered; register it again"))
        .with_param("engine_id")
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ParrotRegisterBody")]
struct RegisterBody {
    engine_config: EngineConfigBody,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ParrotEngineConfigBody")]
struct EngineConfigBody {
    engine_name: String,
}

/// Longest name of an engine. Chosen by us, as an adapter's.
const MAX_ENGINE_NAME: usize = 255;

async fn register_engine(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let RegisterBody { engine_config } = body::plain_json(&app, request, Dialect::Native).await?;
    let name = engine_config.engine_name;
    if name.len() > MAX_ENGINE_NAME {
        let field = "engine_config.engine_name";
        return Err(ApiError::invalid(
            field,
            format!("{field}: expected at most {MAX_ENGINE_NAME} bytes, got {}", name.len()),
        ));
    }
    let id = app.engines().register(name, Instant::now());
    Ok(answer::json(&json!({"engine_id": id})))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ParrotHeartbeatBody")]
struct HeartbeatBody {
    engine_id: u64,
    engine_name: String,
    #[serde(default)]
    runtime_info: EngineRuntimeInfo,
}

async fn engine_heartbeat(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let HeartbeatBody { engine_id, engine_name, runtime_info } =
        body::plain_json(&app, request, Dialect::Native).await?;
    if !app.engines().heartbeat(engine_id, &engine_name, runtime_info, Instant::now()) {
        return Err(unknown_engine(StatusCode::GONE, engine_id));
    }
    Ok(answer::json(&json!({})))
}
