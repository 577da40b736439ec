//! `POST /v1/audio/speech`: OpenAI's text to speech, which no text model does. A valid body is passed on to the server of
//! `--speech-upstream`, or refused as not implemented where there is none.
//!
//! Never here: sound.

pub(in crate::http) mod upstream;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::http::answer::error::ApiError;
use crate::http::app::App;
use crate::http::request::body::{self, Dialect};

/// Content of the answers.
pub(in crate::http) const SOUND: &str = "audio/*";

/// OpenAI's formats.
const FORMATS: [&str; 6] = ["mp3", "opus", "aac", "flac", "wav", "pcm"];

/// OpenAI's range of `speed`.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// The fields of a body that can be wrong.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in crate::http) struct SpeechBody {
    /// The text that is spoken.
    input: String,
    /// Format of the audio.
    #[serde(default)]
    response_format: Option<String>,
    /// Speed of the speech, where 1 is normal.
    #[serde(default)]
    speed: Option<f64>,
}

/// The route.
pub(in crate::http) async fn speech(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let requester = body::requester(&request);
    let body: Value = body::plain_json(&app, request, Dialect::OpenAi).await?;
    check(&body)?;
    match &app.speech {
        Some(upstream) => upstream.pass_on(&app.frontend, requester, &headers, &body).await,
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
