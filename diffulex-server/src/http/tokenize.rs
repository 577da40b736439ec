//! `POST /tokenize`, `/detokenize`: the model's tokenizer for clients that count.
//!
//! Never here: generation.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use diffulex_engine::check_ids;
use diffulex_protocol::{Prompt, ServingInput};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answer;
use super::body::{self, Dialect, Read};
use super::error::ApiError;
use super::request::GenerationBody;
use super::{App, asked_model};

/// Text or messages to ids; vLLM's reply.
pub(super) async fn tokenize(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let Read { value: (field, input), held } = body::json(&app, request, Dialect::Native, text).await?;
    let tokens = app.frontend.tokenise(field, input).await?;
    drop(held);
    let max_model_len = app.frontend.card().map(|card| card.max_model_len);
    Ok(answer::json(&Tokens { count: tokens.len(), max_model_len, tokens }))
}

/// The input to tokenise, and the name of its field.
fn text(app: &App, mut body: GenerationBody) -> Result<(&'static str, ServingInput), ApiError> {
    asked_model(app, body.model.take())?;
    body.check_others(&app.ignored_fields)?;
    if body.messages.is_some() {
        return Ok(("messages", ServingInput::Chat { messages: body.take_messages()? }));
    }
    match body.take_prompt()? {
        Prompt::Text(text) => Ok(("prompt", ServingInput::text(text))),
        Prompt::Ids(_) => Err(ApiError::invalid("prompt", "prompt must be text to be tokenised")),
    }
}

#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: Option<u32>,
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct DetokenizeBody {
    tokens: Vec<u32>,
}

/// Ids to text; vLLM's reply.
pub(super) async fn detokenize(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let decode = |app: &App, body: DetokenizeBody| {
        if let Some(card) = app.frontend.card() {
            check_ids("tokens", &body.tokens, card.vocab_size)?;
        }
        Ok(app.frontend.text().decode(&body.tokens))
    };
    let text = body::json(&app, request, Dialect::Native, decode).await?.value;
    Ok(Json(json!({"prompt": text})).into_response())
}
