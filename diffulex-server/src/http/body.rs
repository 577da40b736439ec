//! A request's body: read up to a limit, and JSON of the expected shape or an error that says what is wrong with it.
//!
//! Never here: what the fields mean.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use futures::StreamExt;
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// How long, and for how many bytes, the rest of a refused body is read away: a client that is still sending sees a
/// reset instead of the answer when the connection closes under it. Chosen by us.
const DISCARD_DEADLINE: Duration = Duration::from_secs(5);
const DISCARD_BYTES: usize = 256 * 1024 * 1024;

/// What a body may take.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Its size.
    pub max_bytes: usize,
    /// The time until it is complete.
    pub timeout: Duration,
}

/// What a body that does not parse is called: FastAPI's 422 on native routes, 400 where OpenAI's clients look.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dialect {
    /// `/generate` and its kin.
    Native,
    /// `/v1/*`.
    OpenAi,
}

/// Reads a whole body.
async fn read(request: Request, limits: BodyLimits) -> Result<Vec<u8>, ApiError> {
    let late = |_| {
        let message = format!("the body was not complete within {:?}", limits.timeout);
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    };
    tokio::time::timeout(limits.timeout, read_within(request, limits.max_bytes)).await.map_err(late)?
}

async fn read_within(request: Request, max_bytes: usize) -> Result<Vec<u8>, ApiError> {
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut chunks = request.into_body().into_data_stream();
    let mut bytes = Vec::with_capacity(declared.unwrap_or(0).min(max_bytes));
    let mut is_over = declared.is_some_and(|length| length > max_bytes);
    while !is_over {
        let Some(chunk) = chunks.next().await else { return Ok(bytes) };
        let chunk = chunk.map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, "incomplete_body", format!("the body broke off: {error}"))
        })?;
        is_over = bytes.len() + chunk.len() > max_bytes;
        if !is_over {
            bytes.extend_from_slice(&chunk);
        }
    }
    drop(bytes);
    let discard = async {
        let mut n_bytes = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            n_bytes += chunk.len();
            if n_bytes > DISCARD_BYTES {
                break;
            }
        }
    };
    // Over time or not, the answer is the same.
    let _ = tokio::time::timeout(DISCARD_DEADLINE, discard).await;
    let message = format!("the body is over the limit of {max_bytes} bytes (--max-body-bytes)");
    Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message))
}

/// A body as JSON of type `T`.
pub(super) async fn json<T: DeserializeOwned>(
    request: Request,
    limits: BodyLimits,
    dialect: Dialect,
) -> Result<T, ApiError> {
    check_content_type(request.headers())?;
    let bytes = read(request, limits).await?;
    parse(&bytes, dialect)
}

/// [`json`] where no body at all means the default.
pub(super) async fn json_or_default<T: DeserializeOwned + Default>(
    request: Request,
    limits: BodyLimits,
) -> Result<T, ApiError> {
    // Judged only where there is a body.
    let content_type = check_content_type(request.headers());
    let bytes = read(request, limits).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    content_type?;
    parse(&bytes, Dialect::Native)
}

fn parse<T: DeserializeOwned>(bytes: &[u8], dialect: Dialect) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let status = match dialect {
            Dialect::Native => StatusCode::UNPROCESSABLE_ENTITY,
            Dialect::OpenAi => StatusCode::BAD_REQUEST,
        };
        let mut message = format!("the body is not a valid request: {error}");
        if message.contains("hex escape") {
            message.push_str(" (half of a surrogate pair, such as \\ud800 alone, is no character)");
        }
        // Read once more for the field at fault, which is looked for only where there is one.
        let path = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_slice(bytes))
            .err()
            .filter(|error| error.inner().is_data())
            .map(|error| error.path().to_string())
            .filter(|path| path != ".");
        let Some(path) = path else { return ApiError::new(status, "invalid_body", message) };
        for (rust, json) in NAMES_OF_TYPES {
            message = message.replace(rust, json);
        }
        ApiError::new(status, "invalid_body", format!("{path}: {message}")).with_param(&path)
    })
}

/// What serde's messages call by Rust's names.
const NAMES_OF_TYPES: [(&str, &str); 4] = [
    ("expected u32", "expected an integer from 0 to 4294967295"),
    ("expected i64", "expected an integer of 64 bits"),
    ("expected f32", "expected a number"),
    ("expected f64", "expected a number"),
];

/// A missing type is taken for JSON, as every client that forgets it means JSON.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence.is_empty() || essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    let message = format!("expected content type application/json, got {text:?}");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}
