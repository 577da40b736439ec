//! `GET /v1/models`, `/v1/models/{id}`, `/version`: what is served.
//!
//! Never here: what a client may send.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use diffulex_protocol::{ModelCard, SamplingParams};
use serde::Serialize;
use serde_json::json;

use super::error::ApiError;
use super::{App, unknown_model};

#[derive(Serialize)]
struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: String,
    /// The model an adapter changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    max_model_len: Option<u32>,
    /// Absent while the model loads for the first time.
    diffulex: Option<Details>,
}

#[derive(Serialize)]
struct Details {
    #[serde(flatten)]
    card: ModelCard,
    /// The mask token as text.
    mask_token: Option<String>,
    /// The temperature of a request that names none.
    default_temperature: f32,
    /// All sampling and limits of such a request, as far as they are set.
    default_sampling_params: SamplingParams,
    /// Longest queue and batch together.
    max_requests_in_flight: usize,
}

fn model(app: &App) -> Model {
    let card = app.frontend.card();
    Model {
        id: app.options.model_name.clone(),
        object: "model",
        created: app.options.started_at,
        owned_by: "diffulex",
        root: app.options.model_place.clone(),
        parent: None,
        max_model_len: card.as_ref().map(|card| card.max_model_len),
        diffulex: card.map(|card| Details {
            mask_token: card.mask_token_id.and_then(|id| app.frontend.text().token(id)),
            card: (*card).clone(),
            default_temperature: app.options.sampling_defaults.temperature,
            default_sampling_params: app.options.sampling_defaults.clone(),
            max_requests_in_flight: app.frontend.max_in_flight(),
        }),
    }
}

/// The model with an adapter, as vLLM lists it.
fn adapted(app: &App, name: String, folder: String) -> Model {
    let base = model(app);
    Model { id: name, root: folder, parent: Some(base.id.clone()), ..base }
}

/// The model, then its adapters by name.
pub(super) async fn list(State(app): State<App>) -> Response {
    let adapters = app.frontend.adapters().into_iter().map(|(name, folder)| adapted(&app, name, folder));
    Json(ModelList { object: "list", data: std::iter::once(model(&app)).chain(adapters).collect() }).into_response()
}

/// One by name or alias.
pub(super) async fn one(State(app): State<App>, id: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    // No model has a name that is not UTF-8.
    let Ok(Path(id)) = id else { return Err(unknown_model(&app, "\u{fffd}")) };
    if app.options.is_served(&id) {
        return Ok(Json(model(&app)).into_response());
    }
    match app.frontend.adapters().remove(&id) {
        Some(folder) => Ok(Json(adapted(&app, id, folder)).into_response()),
        None => Err(unknown_model(&app, &id)),
    }
}

/// The build.
pub(super) async fn version() -> Response {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "protocol_version": diffulex_protocol::PROTOCOL_VERSION}))
        .into_response()
}
