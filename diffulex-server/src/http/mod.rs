//! HTTP: the routes, and the layers before all of them.
//!
//! In: a [`Frontend`] and [`HttpOptions`]. Out: a router ([`router`]) that binds nothing and starts nothing, and the loop
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
mod other_fields;
mod parrot;
mod playground;
mod profile;
mod prompt_report;
mod refusals;
mod request;
mod responses;
mod speech;
mod sse;
mod stages;
mod streamed_usage;
mod tokenize;

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::InvalidHeaderValue;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};

use diffulex_protocol::SamplingParams;

use crate::frontend::Frontend;
use crate::parrot_engine::EngineRegistry;
use crate::telemetry::Telemetry;
pub use body::BodyLimits;
use budget::BodyBudget;
use error::ApiError;
pub use lifespan::{HttpApp, create_app};
use other_fields::IgnoredFieldLog;
use speech::SpeechUpstream;

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

/// Options that no router can be made of.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// See [`CorsOriginError`].
    #[error(transparent)]
    CorsOrigin(#[from] CorsOriginError),
    /// The client for `--speech-upstream` could not be made.
    #[error("--speech-upstream: {0}")]
    SpeechUpstream(#[from] reqwest::Error),
}

/// Every route. Binds nothing and starts nothing.
pub fn router(frontend: Frontend, telemetry: Arc<Telemetry>, options: HttpOptions) -> Result<Router, RouterError> {
    let cors = options.cors_origin.as_deref().map(cors_layer).transpose()?;
    let bodies = BodyBudget::new(options.body.max_bytes);
    let speech = options.speech_upstream.as_deref().map(SpeechUpstream::new).transpose()?;
    let (ignored_fields, engines) = (IgnoredFieldLog::default(), Mutex::default());
    let app = App(Arc::new(AppState { frontend, telemetry, options, bodies, speech, ignored_fields, engines }));
    let profile = if app.options.serves_profiles { profile::routes() } else { Router::new() };
    let router = Router::new()
        .route("/generate", post(generate::generate))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/audio/speech", post(speech::speech))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/messages", post(messages::messages))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/version", get(models::version))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/tokenizer_info", get(tokenize::info))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/health_generate", get(health::health_generate))
        .route("/metrics", get(health::metrics))
        .route("/abort_request", post(admin::abort_request))
        .route("/flush_cache", post(admin::flush_cache))
        .route("/v1/load_lora_adapter", post(admin::load_adapter))
        .route("/v1/unload_lora_adapter", post(admin::unload_adapter))
        .merge(profile)
        .merge(contexts::routes())
        .merge(parrot::routes())
        .merge(ollama::routes())
        .merge(playground::routes())
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method);
    // Tuples, outermost first: each call of `layer` costs every request allocations.
    let admission = middleware::from_fn_with_state(app.clone(), admit);
    let router = match cors {
        Some(cors) => router.layer((cors, admission)),
        None => router.layer((middleware::from_fn(guard::let_local_pages_read), admission)),
    };
    Ok(router.with_state(app).layer((
        // Every request has an id, and so every answer.
        SetRequestIdLayer::x_request_id(MakeRequestUuid),
        PropagateRequestIdLayer::x_request_id(),
        // Around all others, so that it writes and counts their errors.
        middleware::from_fn_with_state(Arc::default(), refusals::report),
        middleware::map_request(async |request: Request| body::read_away_rest(request)),
    )))
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

/// Admits calls: all to probes and the page; to the other routes those with the key or, if there is no key, those that are not
/// from a page of another origin.
async fn admit(State(app): State<App>, request: Request, next: Next) -> Result<Response, ApiError> {
    let path = request.uri().path();
    let is_open = matches!(path, "/health" | "/ready") || playground::is_asset(path);
    if !is_open {
        match &app.options.api_key {
            Some(key) => guard::check_key(request.headers(), key)?,
            None => guard::check_caller(&request, &app.options)?,
        }
    }
    Ok(next.run(request).await)
}

fn cors_layer(origin: &str) -> Result<CorsLayer, CorsOriginError> {
    let allowed = match origin {
        "*" => AllowOrigin::any(),
        origin => AllowOrigin::exact(
            HeaderValue::from_str(origin).map_err(|error| CorsOriginError { origin: origin.to_owned(), error })?,
        ),
    };
    // Headers are named one by one: a star does not cover `Authorization` (Fetch, 4.9).
    Ok(CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods(Any)
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any))
}
