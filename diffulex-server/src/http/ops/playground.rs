//! `GET /`: the page that shows the denoising live, compiled in.
//!
//! Never here: the page itself, which lies in `web/`.

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::http::entry::Entry;
use crate::http::routes::Routes;

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// `(path, content type, content)`.
const ASSETS: [(&str, &str, &[u8]); 16] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../../web/index.html")),
    ("/playground.css", "text/css; charset=utf-8", include_bytes!("../../web/playground.css")),
    ("/playground.js", JAVASCRIPT, include_bytes!("../../web/playground.js")),
    ("/playground/answer.css", "text/css; charset=utf-8", include_bytes!("../../web/playground/answer.css")),
    ("/playground/answer.js", JAVASCRIPT, include_bytes!("../../web/playground/answer.js")),
    ("/playground/canvas.js", JAVASCRIPT, include_bytes!("../../web/playground/canvas.js")),
    ("/playground/chats.js", JAVASCRIPT, include_bytes!("../../web/playground/chats.js")),
    ("/playground/conversation.js", JAVASCRIPT, include_bytes!("../../web/playground/conversation.js")),
    ("/playground/dom.js", JAVASCRIPT, include_bytes!("../../web/playground/dom.js")),
    ("/playground/markdown.js", JAVASCRIPT, include_bytes!("../../web/playground/markdown.js")),
    ("/playground/model.js", JAVASCRIPT, include_bytes!("../../web/playground/model.js")),
    ("/playground/recording.js", JAVASCRIPT, include_bytes!("../../web/playground/recording.js")),
    ("/playground/server.js", JAVASCRIPT, include_bytes!("../../web/playground/server.js")),
    ("/playground/settings.js", JAVASCRIPT, include_bytes!("../../web/playground/settings.js")),
    ("/favicon.svg", "image/svg+xml", include_bytes!("../../web/favicon.svg")),
    ("/favicon.ico", "image/svg+xml", include_bytes!("../../web/favicon.svg")),
];

/// The page may load its own files and nothing else, and no text becomes HTML or a script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

/// The page's routes.
/// A browser loads them before it can send a key.
pub(in crate::http) fn routes(routes: Routes) -> Routes {
    ASSETS.iter().fold(routes, |routes, (path, content_type, content)| {
        let entry = Entry::of("A file of the playground").answering(&[content_type]).open();
        routes.get(path, async move || asset(content_type, content), entry)
    })
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
