//! Ollama's routes under `/api/`: chat, completion, embeddings, and what is served.
//!
//! Streams are lines of JSON. Never here: the registry (`pull`, `create`, `copy`, `delete`, `push`), which is a 501: this server
//! serves the model that it was started with.

mod catalog;
mod embedding;
mod generation;

use axum::extract::Request;
use axum::http::StatusCode;

use super::App;
use super::error::ApiError;
use super::interface::InterfaceBody;
use super::routes::{Entry, JSON, LINES, Routes};
use catalog::ShowBody;
use embedding::{EmbedFields, EmbeddingsFields};
use generation::OllamaFields;

/// The version of Ollama whose API this is. Clients ask for at least 0.6.4 (editors) and 0.35.0 (`/api/ps`' context length).
const VERSION: &str = "0.35.0";

/// The tag that a name without one stands for.
const DEFAULT_TAG: &str = ":latest";

/// Every route under `/api/`.
pub(super) fn routes(routes: Routes) -> Routes {
    let answers = |entry: Entry| entry.answering(&[LINES, JSON]);
    let routes = routes
        .post(
            "/api/chat",
            generation::chat,
            answers(Entry::generation::<InterfaceBody<OllamaFields>>("Ollama's chat").requiring(&["model"])),
        )
        .post(
            "/api/generate",
            generation::generate,
            answers(Entry::generation::<InterfaceBody<OllamaFields>>("Ollama's completion").requiring(&["model"])),
        )
        .post(
            "/api/embed",
            embedding::embed,
            Entry::generation::<InterfaceBody<EmbedFields>>("Ollama's embeddings").requiring(&["model"]),
        )
        .post(
            "/api/embeddings",
            embedding::embeddings,
            Entry::generation::<InterfaceBody<EmbeddingsFields>>("Ollama's older embeddings").requiring(&["model"]),
        )
        .get("/api/tags", catalog::tags, Entry::of("The model and its adapters, as Ollama lists them"))
        .post(
            "/api/show",
            catalog::show,
            Entry::of("A model, as Ollama shows it").taking::<ShowBody>().with(&[StatusCode::NOT_FOUND]),
        )
        .get("/api/ps", catalog::running, Entry::of("Loaded models, as Ollama lists them"))
        .get("/api/version", catalog::version, Entry::of("The version of Ollama's API"));
    let registry = ["/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/{digest}"];
    registry.iter().fold(routes, |routes, path| {
        let entry = Entry::of("Not supported: this server serves the model that it was started with");
        routes.any(path, no_registry, entry.never_ok().with(&[StatusCode::NOT_IMPLEMENTED]))
    })
}

async fn no_registry(request: Request) -> ApiError {
    let message =
        format!("{} is not supported: this server serves the model that it was started with", request.uri().path());
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
}

/// The name of a model as the other interfaces know it.
fn untagged<'a>(app: &App, name: &'a str) -> &'a str {
    let is_known = app.options.is_served(name) || app.frontend.has_adapter(name);
    if is_known { name } else { name.strip_suffix(DEFAULT_TAG).unwrap_or(name) }
}

/// The name of a model as Ollama's clients know it.
fn tagged(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { format!("{name}{DEFAULT_TAG}") }
}

/// Unix time in seconds as Ollama writes times: RFC 3339, in UTC.
fn timestamp(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    // Years begin in March, so that the day that leap years add is the last one (Howard Hinnant, "chrono-compatible low-level
    // date algorithms", civil_from_days).
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_of_the_calendar() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_795_392_000, "2026-11-23T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(timestamp(seconds), written);
        }
    }

    #[test]
    fn a_name_has_one_tag() {
        assert_eq!((tagged("m"), tagged("m:7b")), ("m:latest".to_owned(), "m:7b".to_owned()));
    }
}
