//! `GET /`: the page that shows the denoising live, compiled in.
//!
//! Never here: the page itself, which lies in `web/`.

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::App;

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// `(path, content type, content)`.
const ASSETS: [(&str, &str, &[u8]); 16] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../web/index.html")),
    ("/playground.css", "text/css; charset=utf-8", include_bytes!("../web/playground.css")),
    ("/playground.js", JAVASCRIPT, include_bytes!("../web/playground.js")),
    ("/playground/answer.css", "text/css; charset=utf-8", include_bytes!("../web/playground/answer.css")),
    ("/playground/answer.js", JAVASCRIPT, include_bytes!("../web/playground/answer.js")),
    ("/playground/canvas.js", JAVASCRIPT, include_bytes!("../web/playground/canvas.js")),
    ("/playground/chats.js", JAVASCRIPT, include_bytes!("../web/playground/chats.js")),
    ("/playground/conversation.js", JAVASCRIPT, include_bytes!("../web/playground/conversation.js")),
    ("/playground/dom.js", JAVASCRIPT, include_bytes!("../web/playground/dom.js")),
    ("/playground/markdown.js", JAVASCRIPT, include_bytes!("../web/playground/markdown.js")),
    ("/playground/model.js", JAVASCRIPT, include_bytes!("../web/playground/model.js")),
    ("/playground/recording.js", JAVASCRIPT, include_bytes!("../web/playground/recording.js")),
    ("/playground/server.js", JAVASCRIPT, include_bytes!("../web/playground/server.js")),
    ("/playground/settings.js", JAVASCRIPT, include_bytes!("../web/playground/settings.js")),
    ("/favicon.svg", "image/svg+xml", include_bytes!("../web/favicon.svg")),
    ("/favicon.ico", "image/svg+xml", include_bytes!("../web/favicon.svg")),
];

/// The page may load its own files and nothing else, and no text becomes HTML or a script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

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
