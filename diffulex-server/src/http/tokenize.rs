//! `POST /tokenize`, `/detokenize`: the model's tokenizer for clients that count.
//!
//! Never here: generation.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use diffulex_protocol::{Prompt, ServingInput};
use serde::Deserialize;
use serde_json::json;

use super::body::{self, Dialect};
use super::error::ApiError;
use super::request::GenerationBody;
use super::{App, asked_model};
use crate::frontend::check_ids;

/// Text or messages to ids; vLLM's reply.
pub(super) async fn tokenize(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let mut body: GenerationBody = body::json(request, app.options.body, Dialect::Native).await?;
    asked_model(&app, body.model.take())?;
    let input = if body.messages.is_some() {
        ServingInput::Chat { messages: body.take_messages()? }
    } else {
        match body.take_prompt()? {
            Prompt::Text(text) => ServingInput::text(text),
            Prompt::Ids(_) => return Err(ApiError::invalid("prompt", "prompt must be text to be tokenised")),
        }
    };
    let tokens = app.frontend.tokenise(input).await?;
    let max_model_len = app.frontend.card().map(|card| card.max_model_len);
    Ok(Json(json!({"count": tokens.len(), "max_model_len": max_model_len, "tokens": tokens})).into_response())
}

#[derive(Deserialize)]
struct DetokenizeBody {
    tokens: Vec<u32>,
}

/// Ids to text; vLLM's reply.
pub(super) async fn detokenize(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let body: DetokenizeBody = body::json(request, app.options.body, Dialect::Native).await?;
    if let Some(card) = app.frontend.card() {
        check_ids("tokens", &body.tokens, &card)?;
    }
    Ok(Json(json!({"prompt": app.frontend.text().decode(&body.tokens)})).into_response())
}
