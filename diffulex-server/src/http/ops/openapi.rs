//! `GET /openapi.json`: the table of routes as an OpenAPI document, and `GET /docs`, the same for people.
//!
//! Never here: how either is made.

pub(in crate::http) mod documents;
mod page;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::http::app::App;
use crate::http::entry::JSON;

pub(in crate::http) const HTML: &str = "text/html; charset=utf-8";

/// The page shows text and has a style of its own.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The document.
pub(in crate::http) async fn openapi(State(app): State<App>) -> Response {
    ([(header::CONTENT_TYPE, JSON)], app.documents.openapi.clone()).into_response()
}

/// The page.
pub(in crate::http) async fn docs(State(app): State<App>) -> Response {
    let headers = [(header::CONTENT_TYPE, HTML), (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY)];
    (headers, app.documents.page.clone()).into_response()
}
