//! `/v1/contexts`: texts that requests fill, extend, fork and free.
//!
//! In: bodies and the caller's key. Out: a context as JSON; for `generate` an answer in the form of `/generate`. Never here: the
//! rules of contexts, Parrot's forms.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use diffulex_protocol::{Prompt, ServingInput};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answer::{self, reply_of};
use super::body::{self, Dialect, Read};
use super::error::ApiError;
use super::guard;
use super::message::MessageField;
use super::native::{self, AnswerForm};
use super::request::{GenerationBody, Order, Reading};
use super::routes::{EVENT_STREAM, Entry, JSON, Routes};
use super::{App, asked_model};
use crate::frontend::{ContextError, ContextName, ContextOwner, ContextView, MAX_CONTEXT_TTL, NewContext, Submission};
use crate::traces::RequestTrace;

/// How the body of `generate` is read where it has a prompt.
const OF_PROMPT: Reading = Reading::of("/v1/contexts/generate").denoising();

/// The same where it has messages.
const OF_MESSAGES: Reading = Reading { is_chat: true, ..OF_PROMPT };

/// The routes.
pub(super) fn routes(routes: Routes) -> Routes {
    let create_entry = Entry::of("Makes a context").taking::<CreateBody>().traced();
    routes
        .post("/v1/contexts", create, answers(create_entry))
        .get("/v1/contexts", list, Entry::of("All contexts"))
        .get("/v1/contexts/{id}", one, answers(Entry::of("A context")))
        .delete("/v1/contexts/{id}", free, answers(Entry::of("Frees a context")))
        .post(
            "/v1/contexts/{id}/fill",
            fill,
            answers(Entry::of("Adds text to a context").taking::<FillBody>().traced()),
        )
        .post(
            "/v1/contexts/{id}/generate",
            generate,
            answers(Entry::generation::<GenerationBody>("Answers on a context")).answering(&[JSON, EVENT_STREAM]),
        )
        .post("/v1/contexts/{id}/fork", fork, answers(Entry::of("Copies a context").taking::<ForkBody>().or_nothing()))
}

/// With the answers of a native route on contexts.
pub(super) fn answers(entry: Entry) -> Entry {
    let of_contexts = [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::GONE, StatusCode::NOT_IMPLEMENTED];
    entry.native().of_engine().with(&of_contexts)
}

/// Text for a context, in one of three forms.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct TextBody {
    pub(super) text: Option<String>,
    pub(super) token_ids: Option<Vec<u32>>,
    messages: Option<Vec<MessageField>>,
}

impl TextBody {
    /// The text, if there is one; an error where there are several.
    pub(super) fn input(self) -> Result<Option<ServingInput>, ApiError> {
        let Self { text, token_ids, messages } = self;
        match (text, token_ids, messages) {
            (None, None, None) => Ok(None),
            (Some(text), None, None) => Ok(Some(ServingInput::text(text))),
            (None, Some(ids), None) => Ok(Some(ServingInput::ids(ids))),
            (None, None, Some(messages)) => {
                let messages = GenerationBody::of_messages(messages).take_messages()?;
                Ok(Some(ServingInput::Chat { messages }))
            }
            _ => {
                Err(ApiError::invalid("text", "text, token_ids and messages are three forms of one; send one of them"))
            }
        }
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ContextCreateBody")]
struct CreateBody {
    parent_context_id: Option<i64>,
    text: Option<String>,
    token_ids: Option<Vec<u32>>,
    messages: Option<Vec<MessageField>>,
    ttl_s: Option<f64>,
    model: Option<String>,
    cache_salt: Option<String>,
}

/// Makes a context, of a parent's text and a new one.
async fn create(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let owner = owner(&app, request.headers());
    let prepare = |app: &App, body: CreateBody| {
        let CreateBody { parent_context_id, text, token_ids, messages, ttl_s, model, cache_salt } = body;
        let parent = parent_context_id.map(|id| parent_id("parent_context_id", id)).transpose()?.flatten();
        if parent.is_some() && (model.is_some() || cache_salt.is_some()) {
            let field = if model.is_some() { "model" } else { "cache_salt" };
            return Err(ApiError::invalid(
                field,
                format!("{field} is the parent's; send it without parent_context_id"),
            ));
        }
        let adapter = asked_model(app, model)?.adapter;
        let new = NewContext { id: None, parent, adapter, cache_salt, ttl: ttl_s.map(ttl).transpose()? };
        Ok((new, TextBody { text, token_ids, messages }.input()?))
    };
    let Read { value: (new, input), held, trace } = body::json(&app, request, Dialect::Native, prepare).await?;
    let view = app.frontend.create_context(owner, new)?;
    let Some(input) = input else { return Ok(answer::json(&view)) };
    let name = ContextName { owner, id: view.context_id };
    let filled = fill_with(&app, name, input, trace).await;
    drop(held);
    if filled.is_err() {
        // Nobody knows its id. An error means that it is gone already.
        let _ = app.frontend.free_context(name);
    }
    Ok(answer::json(&filled?))
}

/// All contexts of the caller.
async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    #[derive(Serialize)]
    struct List {
        object: &'static str,
        data: Vec<ContextView>,
    }
    answer::json(&List { object: "list", data: app.frontend.contexts(owner(&app, &headers)) })
}

async fn one(State(app): State<App>, Path(id): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    Ok(answer::json(&app.frontend.context(name(&app, &id, &headers)?)?))
}

async fn free(State(app): State<App>, Path(id): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    Ok(answer::json(&app.frontend.free_context(name(&app, &id, &headers)?)?))
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ContextFillBody")]
struct FillBody {
    text: Option<String>,
    token_ids: Option<Vec<u32>>,
    messages: Option<Vec<MessageField>>,
}

/// Adds text to a context.
async fn fill(State(app): State<App>, Path(id): Path<String>, request: Request) -> Result<Response, ApiError> {
    let name = name(&app, &id, request.headers())?;
    let prepare = |_: &App, FillBody { text, token_ids, messages }: FillBody| {
        let missing = || ApiError::invalid("text", "text, token_ids or messages is required");
        TextBody { text, token_ids, messages }.input()?.ok_or_else(missing)
    };
    let Read { value: input, held, trace } = body::json(&app, request, Dialect::Native, prepare).await?;
    let filled = fill_with(&app, name, input, trace).await?;
    drop(held);
    Ok(answer::json(&filled))
}

/// A context that was filled.
#[derive(Serialize)]
pub(super) struct Filled {
    /// Tokens that were added.
    pub(super) filled_len: usize,
    #[serde(flatten)]
    pub(super) context: ContextView,
}

/// Adds `input` to a context, and waits until it is encoded.
pub(super) async fn fill_with(
    app: &App,
    name: ContextName,
    input: ServingInput,
    trace: Option<RequestTrace>,
) -> Result<Filled, ApiError> {
    let before = app.frontend.context(name)?.context_len;
    let submission = Submission { trace, ..Submission::new("/v1/contexts/fill", input) };
    let stream = app.frontend.extend_context(name, submission, true).await?;
    reply_of(stream).await?;
    let context = app.frontend.context(name)?;
    Ok(Filled { filled_len: context.context_len - before, context })
}

/// Goes on from a context; the answer becomes a part of it.
async fn generate(State(app): State<App>, Path(id): Path<String>, request: Request) -> Result<Response, ApiError> {
    let name = name(&app, &id, request.headers())?;
    let Read { value: order, held, trace } = body::json(&app, request, Dialect::Native, order).await?;
    let Order { model, mut submission, denoise, .. } = order;
    let form = AnswerForm::new(model, denoise).on_context(&app, name);
    let is_stream = submission.stream;
    submission.fills_masks = false;
    submission.trace = trace;
    let stream = app.frontend.extend_context(name, submission, false).await?;
    drop(held);
    native::respond(app, vec![stream], is_stream, form).await
}

/// The order of a body, whose prompt may be missing.
fn order(app: &App, mut body: GenerationBody) -> Result<Order, ApiError> {
    if body.messages.is_some() {
        return Order::of(app, body, &OF_MESSAGES);
    }
    body.prompt.get_or_insert_with(|| Prompt::Ids(Vec::new()).into());
    Order::of(app, body, &OF_PROMPT)
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ContextForkBody")]
struct ForkBody {
    ttl_s: Option<f64>,
}

/// Makes a context of the same text. One that is in use is forked as it was before.
async fn fork(State(app): State<App>, Path(id): Path<String>, request: Request) -> Result<Response, ApiError> {
    let ContextName { owner, id } = name(&app, &id, request.headers())?;
    let ForkBody { ttl_s } = body::optional_json(&app, request, Dialect::Native).await?;
    let new = NewContext { parent: Some(id), ttl: ttl_s.map(ttl).transpose()?, ..NewContext::default() };
    let created = app.frontend.create_context(owner, new).map_err(|error| match error {
        // Here it is no parent but the context of the path.
        ContextError::UnknownParent(id) => ContextError::Unknown(id),
        other => other,
    })?;
    Ok(answer::json(&created))
}

/// Whose contexts a caller may use.
pub(super) fn owner(app: &App, headers: &HeaderMap) -> ContextOwner {
    app.frontend.context_owner(guard::given_key(headers))
}

fn name(app: &App, id: &str, headers: &HeaderMap) -> Result<ContextName, ApiError> {
    let unknown = |_| {
        let message = format!("there is no context {id:?}");
        ApiError::new(axum::http::StatusCode::NOT_FOUND, "context_not_found", message).with_param("context_id")
    };
    Ok(ContextName { owner: owner(app, headers), id: id.parse().map_err(unknown)? })
}

/// The id of a context that a body names in `field`; -1 is none, as Parrot writes it.
pub(super) fn parent_id(field: &str, id: i64) -> Result<Option<u64>, ApiError> {
    match id {
        -1 => Ok(None),
        id => u64::try_from(id).map(Some).map_err(|_| {
            ApiError::invalid(field, format!("{field} must be the id of a context, or -1 for none, got {id}"))
        }),
    }
}

fn ttl(seconds: f64) -> Result<Duration, ApiError> {
    Duration::try_from_secs_f64(seconds).ok().filter(|ttl| !ttl.is_zero() && *ttl <= MAX_CONTEXT_TTL).ok_or_else(|| {
        let most = MAX_CONTEXT_TTL.as_secs();
        ApiError::invalid("ttl_s", format!("ttl_s must be above 0 and at most {most}, got {seconds}"))
    })
}
