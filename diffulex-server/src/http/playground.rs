//! `GET /`: the page that shows the denoising live, compiled in.
//!
//! Never here: the page itself, which lies in `web/`.

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::App;

/// `(path, content type, content)`.
const ASSETS: [(&str, &str, &[u8]); 5] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../web/index.html")),
    ("/playground.css", "text/css; charset=utf-8", include_bytes!("../web/playground.css")),
    ("/playground.js", "text/javascript; charset=utf-8", include_bytes!("../web/playground.js")),
    ("/favicon.svg", "image/svg+xml", include_bytes!("../web/favicon.svg")),
    ("/favicon.ico", "image/svg+xml", include_bytes!("../web/favicon.svg")),
];

/// The page may load its own files and nothing else.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's routes.
pub(super) fn routes() -> Router<App> {
    ASSETS.iter().fold(Router::new(), |router, (path, content_type, content)| {
        router.route(path, get(async move || asset(content_type, content)))
    })
}

/// True for what a browser loads before it can send a key.
pub(super) fn is_asset(path: &str) -> bool {
    ASSETS.iter().any(|(known, _, _)| *known == path)
}

fn asset(content_type: &'static str, content: &'static [u8]) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, content).into_response()
}
