//! HTTP: the routes, and the service around them.
//!
//! In: a [`Frontend`] and [`HttpOptions`]. Out: a service ([`service()`]) that binds nothing and starts nothing, and the loop
//! that serves it on a listener ([`connection::serve`]). Routes know the front end only. Never here: links, workers.

mod admin;
mod answer;
mod body;
mod budget;
mod chat;
mod completions;
pub mod connection;
mod contexts;
mod denoise_frames;
mod embeddings;
mod error;
mod fields;
mod generate;
mod guard;
mod health;
mod interface;
mod lifespan;
mod message;
mod messages;
mod models;
mod native;
mod ollama;
mod openapi;
mod other_fields;
mod parrot;
mod playground;
mod profile;
mod prompt_report;
mod refusals;
mod request;
mod responses;
mod routes;
mod schemas;
mod service;
mod speech;
mod sse;
mod stages;
mod streamed_usage;
mod tokenize;
mod traced;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::Request;
use axum::http::header::InvalidHeaderValue;
use axum::http::{HeaderValue, StatusCode};

use diffulex_protocol::SamplingParams;

use crate::frontend::Frontend;
use crate::parrot_engine::EngineRegistry;
use crate::telemetry::Telemetry;
use crate::traces::Traces;
use admin::{AbortBody, LoadAdapterBody, UnloadAdapterBody};
pub use body::BodyLimits;
use budget::BodyBudget;
use embeddings::EmbeddingsFields;
use error::ApiError;
use interface::InterfaceBody;
pub use lifespan::{HttpApp, create_app};
use messages::input::MessagesFields;
use openapi::Documents;
use other_fields::IgnoredFieldLog;
use request::GenerationBody;
use responses::input::ResponsesFields;
use routes::{EVENT_STREAM, Entry, JSON, Routes};
pub use service::HttpService;
use speech::{SpeechBody, SpeechUpstream};
use tokenize::{DetokenizeBody, TokenizeBody};

/// Settings of the routes.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The model's public name.
    pub model_name: String,
    /// Other names it answers to.
    pub model_aliases: Vec<String>,
    /// Where its files are.
    pub model_place: String,
    /// Sampling and limits of requests that name none.
    pub sampling_defaults: SamplingParams,
    /// Unix time in seconds at which the server started.
    pub started_at: u64,
    /// Asked of every request but probes and the page, when set.
    pub api_key: Option<String>,
    /// Pages of this origin may call; `*` is every origin.
    pub cors_origin: Option<String>,
    /// Names that the server is called by beside its addresses; `*` is every name.
    pub allowed_hosts: Vec<String>,
    /// Other machines reach the server.
    pub is_exposed: bool,
    /// The routes that begin and end profiles are there.
    pub serves_profiles: bool,
    /// Limits of a request's body.
    pub body: BodyLimits,
    /// The server that requests for speech are passed on to.
    pub speech_upstream: Option<String>,
    /// Where traces of requests go; `None` makes none.
    pub traces: Option<Traces>,
}

impl HttpOptions {
    /// True for the model's name and its aliases.
    pub fn is_served(&self, name: &str) -> bool {
        self.model_name == name || self.model_aliases.iter().any(|alias| alias == name)
    }
}

/// State of every route. A request clones it some ten times, so clones share one.
#[derive(Clone)]
pub struct App(Arc<AppState>);

/// Fields of [`App`].
pub struct AppState {
    frontend: Frontend,
    telemetry: Arc<Telemetry>,
    options: HttpOptions,
    bodies: BodyBudget,
    speech: Option<SpeechUpstream>,
    ignored_fields: IgnoredFieldLog,
    engines: Mutex<EngineRegistry>,
    /// Paths that ask for no key.
    open_paths: BTreeSet<&'static str>,
    documents: Documents,
}

impl AppState {
    /// The engines that registered here.
    fn engines(&self) -> MutexGuard<'_, EngineRegistry> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

/// An origin of `--cors-origin` that no header can hold.
#[derive(Debug, thiserror::Error)]
#[error("--cors-origin {origin:?}: {error}")]
pub struct CorsOriginError {
    /// As it was given.
    pub origin: String,
    /// Why not.
    pub error: InvalidHeaderValue,
}

/// Options that no service can be made of.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// See [`CorsOriginError`].
    #[error(transparent)]
    CorsOrigin(#[from] CorsOriginError),
    /// The client for `--speech-upstream` could not be made.
    #[error("--speech-upstream: {0}")]
    SpeechUpstream(#[from] reqwest::Error),
}

/// Every route. Binds nothing and starts nothing.
pub fn service(
    frontend: Frontend,
    telemetry: Arc<Telemetry>,
    options: HttpOptions,
) -> Result<HttpService, ServiceError> {
    if let Some(origin) = &options.cors_origin {
        HeaderValue::from_str(origin).map_err(|error| CorsOriginError { origin: origin.clone(), error })?;
    }
    let bodies = BodyBudget::new(options.body.max_bytes);
    let speech = options.speech_upstream.as_deref().map(SpeechUpstream::new).transpose()?;
    let (router, table) = table(options.serves_profiles, options.traces.clone()).into_parts();
    let app = App(Arc::new(AppState {
        frontend,
        telemetry,
        bodies,
        speech,
        ignored_fields: IgnoredFieldLog::default(),
        engines: Mutex::default(),
        open_paths: table.iter().filter(|route| route.entry.is_open).map(|route| route.path).collect(),
        documents: Documents::of(&table, options.api_key.is_some()),
        options,
    }));
    let router = router.fallback(unknown_route).method_not_allowed_fallback(wrong_method);
    Ok(HttpService::new(router.with_state(app.clone()), app))
}

/// The table of routes.
fn table(has_profiles: bool, traces: Option<Traces>) -> Routes {
    let not_found = [StatusCode::NOT_FOUND];
    let streaming = |entry: Entry| entry.answering(&[JSON, EVENT_STREAM]);
    let routes = Routes::traced_by(traces)
        .post(
            "/generate",
            generate::generate,
            streaming(contexts::answers(Entry::generation::<parrot::GenerateBody>("Completes a prompt, or a context"))),
        )
        .post(
            "/v1/chat/completions",
            chat::chat_completions,
            streaming(Entry::generation::<GenerationBody>("OpenAI's chat").requiring(&["messages"])),
        )
        .post(
            "/v1/completions",
            completions::completions,
            streaming(Entry::generation::<GenerationBody>("OpenAI's completions").requiring(&["prompt"])),
        )
        .post(
            "/v1/embeddings",
            embeddings::embeddings,
            Entry::generation::<InterfaceBody<EmbeddingsFields>>("OpenAI's embeddings").requiring(&["input"]),
        )
        .post(
            "/v1/audio/speech",
            speech::speech,
            Entry::of("Passes speech on to --speech-upstream, whose answer may have any other status, too")
                .taking::<SpeechBody>()
                .with(&[StatusCode::NOT_IMPLEMENTED, StatusCode::BAD_GATEWAY]),
        )
        .post(
            "/v1/responses",
            responses::responses,
            streaming(Entry::generation::<InterfaceBody<ResponsesFields>>("OpenAI's responses").requiring(&["input"])),
        )
        .post(
            "/v1/messages",
            messages::messages,
            streaming(
                Entry::generation::<InterfaceBody<MessagesFields>>("Anthropic's messages")
                    .requiring(&["messages", "max_tokens"]),
            ),
        )
        .post(
            "/v1/messages/count_tokens",
            messages::count_tokens,
            Entry::of("Counts the tokens of a conversation")
                .taking::<InterfaceBody<MessagesFields>>()
                .requiring(&["messages"])
                .with(&not_found),
        )
        .get("/v1/models", models::list, Entry::of("The model and its adapters"))
        .get("/v1/models/{*id}", models::one, Entry::of("The model or an adapter").with(&not_found))
        .get("/version", models::version, Entry::of("The server's version"))
        .post(
            "/tokenize",
            tokenize::tokenize,
            Entry::of("Text or messages to token ids").taking::<TokenizeBody>().native().with(&not_found),
        )
        .post("/detokenize", tokenize::detokenize, Entry::of("Token ids to text").taking::<DetokenizeBody>().native());
    let info = Entry::of("Special tokens and the chat template");
    let routes = operations(routes).get("/tokenizer_info", tokenize::info, info);
    let routes = parrot::routes(contexts::routes(routes));
    let routes = if has_profiles { profile::routes(routes) } else { routes };
    playground::routes(ollama::routes(routes))
        .get("/openapi.json", openapi::openapi, Entry::of("This document").open())
        .get("/docs", openapi::docs, Entry::of("This document as a page").answering(&[openapi::HTML]).open())
}

/// Adds the routes of who runs the server.
fn operations(routes: Routes) -> Routes {
    let unavailable = [StatusCode::SERVICE_UNAVAILABLE];
    let health = Entry::of("Health, 503 if the engine is dead or stuck").with(&unavailable).open().reporting();
    let ready = Entry::of("200 while requests are accepted").with(&unavailable).open().reporting();
    let abort = Entry::of("Ends a request").taking::<AbortBody>().native().with(&[StatusCode::NOT_FOUND]);
    let load = Entry::of("Loads an adapter").taking::<LoadAdapterBody>().of_engine();
    let unload = Entry::of("Unloads an adapter").taking::<UnloadAdapterBody>().of_engine();
    routes
        .get("/health", health::health, health)
        .get("/ready", health::ready, ready)
        .get("/health_generate", health::health_generate, Entry::of("Generates one token").of_engine())
        .get("/metrics", health::metrics, Entry::of("Metrics for Prometheus").answering(&[health::METRICS]))
        .post("/abort_request", admin::abort_request, abort)
        .post("/flush_cache", admin::flush_cache, Entry::of("Empties the prefix cache").with(&unavailable))
        .post("/v1/load_lora_adapter", admin::load_adapter, load)
        .post("/v1/unload_lora_adapter", admin::unload_adapter, unload.with(&[StatusCode::NOT_FOUND]))
}

/// The model or adapter that a request names.
struct AskedModel {
    /// As the client wrote it, for the reply.
    name: String,
    /// Where it is an adapter.
    adapter: Option<String>,
}

fn asked_model(app: &App, asked: Option<String>) -> Result<AskedModel, ApiError> {
    match asked {
        None => Ok(AskedModel { name: app.options.model_name.clone(), adapter: None }),
        Some(name) if app.options.is_served(&name) => Ok(AskedModel { name, adapter: None }),
        Some(name) if app.frontend.has_adapter(&name) => Ok(AskedModel { adapter: Some(name.clone()), name }),
        Some(name) => Err(unknown_model(app, &name)),
    }
}

fn unknown_model(app: &App, name: &str) -> ApiError {
    let adapters = app.frontend.adapters();
    let served: Vec<&str> =
        std::iter::once(app.options.model_name.as_str()).chain(adapters.keys().map(String::as_str)).collect();
    ApiError::unknown_model(name, &served.join(", "))
}

async fn unknown_route(request: Request) -> ApiError {
    let message = format!("there is no {} {}", request.method(), request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, "route_not_found", message)
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} does not accept {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
