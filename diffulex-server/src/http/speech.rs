//! `POST /v1/audio/speech`: OpenAI's text to speech, which no text model does. A valid body is passed on to the server of
//! `--speech-upstream`, or refused as not implemented where there is none.
//!
//! Never here: sound.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::App;
use super::body::{self, Dialect};
use super::error::ApiError;
use crate::outbound;

/// OpenAI's formats.
const FORMATS: [&str; 6] = ["mp3", "opus", "aac", "flac", "wav", "pcm"];

/// OpenAI's range of `speed`.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// Longest wait for a connection to the upstream. Chosen by us: it is near, or it is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Another server that speaks.
#[derive(Clone, Debug)]
pub(super) struct SpeechUpstream {
    client: reqwest::Client,
    url: String,
}

impl SpeechUpstream {
    /// The server at `base`, such as `http://127.0.0.1:8880`.
    pub(super) fn new(base: &str) -> Result<Self, reqwest::Error> {
        let client = outbound::client().connect_timeout(CONNECT_TIMEOUT).build()?;
        Ok(Self { client, url: format!("{}/v1/audio/speech", base.trim_end_matches('/')) })
    }

    /// Its answer to `body`, as it comes.
    async fn pass_on(&self, body: &Value) -> Result<Response, ApiError> {
        let answer = self.client.post(&self.url).json(body).send().await.map_err(|error| {
            // The client is not told where the upstream is.
            tracing::warn!(%error, "the speech upstream did not answer");
            ApiError::new(StatusCode::BAD_GATEWAY, "upstream_failed", "the speech server does not answer")
        })?;
        let status = answer.status();
        let kind = answer.headers().get(header::CONTENT_TYPE).cloned();
        let mut response = (status, Body::from_stream(answer.bytes_stream())).into_response();
        if let Some(kind) = kind {
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
        }
        Ok(response)
    }
}

/// The fields of a body that can be wrong.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct SpeechBody {
    input: String,
    #[serde(default)]
    response_format: Option<String>,
    #[serde(default)]
    speed: Option<f64>,
}

/// The route.
pub(super) async fn speech(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let body: Value = body::plain_json(&app, request, Dialect::OpenAi).await?;
    check(&body)?;
    match &app.speech {
        Some(upstream) => upstream.pass_on(&body).await,
        None => {
            let message = "speech is not supported: this model writes text only; --speech-upstream passes it on";
            Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "unsupported_modality", message))
        }
    }
}

fn check(body: &Value) -> Result<(), ApiError> {
    let SpeechBody { input, response_format, speed } = serde_path_to_error::deserialize(body).map_err(|error| {
        let field = match error.path().to_string() {
            path if path == "." => "input".to_owned(),
            path => path,
        };
        ApiError::invalid(&field, format!("{field}: {}", error.inner()))
    })?;
    if input.is_empty() {
        return Err(ApiError::invalid("input", "input must not be empty"));
    }
    if let Some(format) = response_format.filter(|format| !FORMATS.contains(&format.as_str())) {
        let message = format!("response_format: {format:?} is unknown; formats are {}", FORMATS.join(", "));
        return Err(ApiError::invalid("response_format", message));
    }
    match speed.filter(|speed| !SPEEDS.contains(speed)) {
        Some(speed) => {
            let message = format!("speed must be in [{}, {}], got {speed:?}", SPEEDS.start(), SPEEDS.end());
            Err(ApiError::invalid("speed", message))
        }
        None => Ok(()),
    }
}
