//! `GET /v1/models`, `/v1/models/{id}`, `/version`: what is served.
//!
//! Never here: what a client may send.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use diffulex_protocol::ModelCard;
use serde::Serialize;
use serde_json::json;

use super::App;
use super::error::ApiError;

#[derive(Serialize)]
struct ModelList {
    object: &'static str,
    data: [Model; 1],
}

#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: String,
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
        max_model_len: card.as_ref().map(|card| card.max_model_len),
        diffulex: card.map(|card| Details {
            mask_token: card.mask_token_id.and_then(|id| app.frontend.text().token(id)),
            card: (*card).clone(),
            max_requests_in_flight: app.frontend.max_in_flight(),
        }),
    }
}

/// The list of one.
pub(super) async fn list(State(app): State<App>) -> Response {
    Json(ModelList { object: "list", data: [model(&app)] }).into_response()
}

/// One by name or alias.
pub(super) async fn one(State(app): State<App>, Path(id): Path<String>) -> Result<Response, ApiError> {
    if !app.options.is_served(&id) {
        return Err(ApiError::unknown_model(&id, &app.options.model_name));
    }
    Ok(Json(model(&app)).into_response())
}

/// The build.
pub(super) async fn version() -> Response {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "protocol_version": diffulex_protocol::PROTOCOL_VERSION}))
        .into_response()
}
