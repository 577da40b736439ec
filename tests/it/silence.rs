//! An engine that says nothing: comments, and the ends of probes and commands, on a clock that passes without waiting.
//!
//! The clock stops once the engine runs, and jumps to the next timer whenever nothing else is left to do.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use axum::routing::RouterIntoService;
use diffulex_protocol::AdapterSource;
use diffulex_server::frontend::{EventStream, ProfileError, ProfileOrder, SubmitError};
use diffulex_server::http;
use futures::StreamExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::embedding::http_options;
use crate::engine_loop::{Fixture, STUCK, fixture_with};

const COMMENT: &str = ": keep-alive\n\n";

/// An engine that is in the step of a request and does not come back.
struct Silent {
    fixture: Fixture,
    service: TowerToHyperService<RouterIntoService<Body>>,
    /// What keeps the engine.
    _stuck: EventStream,
    _profiles: tempfile::TempDir,
}

impl Silent {
    async fn start() -> Self {
        let profiles = tempfile::tempdir().unwrap();
        let folder = profiles.path().to_owned();
        // By this clock the engine is silent for longer than any.
        let forever = Duration::from_secs(1_000_000);
        let fixture = fixture_with(|options| {
            options.profile_dir = Some(folder);
            options.heartbeat_timeout = forever;
        })
        .await;
        let frontend = fixture.engine.frontend();
        let app = http::create_app(frontend.clone(), Arc::clone(frontend.telemetry()), http_options()).unwrap();
        let service = TowerToHyperService::new(app.into_router().into_service());
        let stuck = fixture.submit(STUCK).await.unwrap();
        tokio::time::pause();
        Self { fixture, service, _stuck: stuck, _profiles: profiles }
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Response {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("content-type", "application/json").body(Body::from(body.to_string()));
        self.service.call(request.unwrap()).await.unwrap()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.fixture.let_go();
    }
}

/// Whole seconds since then.
fn seconds(since: Instant) -> u64 {
    since.elapsed().as_secs()
}

async fn code(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
    (status, serde_json::from_slice::<Value>(&bytes).unwrap()["error"]["code"].clone())
}

#[tokio::test]
async fn a_stream_has_its_headers_after_15_s_of_silence_and_a_comment_every_15_s() {
    let silent = Silent::start().await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let line = r#""done":false}"#;
    for (path, body, word) in [
        ("/generate", json!({"prompt": [5]}), COMMENT),
        ("/v1/chat/completions", json!({"messages": messages}), COMMENT),
        ("/v1/completions", json!({"prompt": [5]}), COMMENT),
        ("/v1/responses", json!({"input": "hi"}), COMMENT),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 4}), COMMENT),
        ("/api/chat", json!({"model": "script", "messages": messages}), line),
        ("/api/generate", json!({"model": "script", "prompt": "hi"}), line),
    ] {
        let mut body = body;
        body["stream"] = json!(true);
        let asked = Instant::now();
        let response = silent.call("POST", path, &body).await;
        assert_eq!((response.status().as_u16(), seconds(asked)), (200, 15), "{path}");
        let mut chunks = response.into_body().into_data_stream();
        let mut n_words = 0;
        // Some forms begin with frames that need no engine.
        while n_words < 3 {
            let sent = Instant::now();
            let chunk = chunks.next().await.unwrap().unwrap();
            let chunk = std::str::from_utf8(&chunk).unwrap().to_owned();
            if seconds(sent) == 0 {
                assert!(n_words == 0 && chunk.contains("data: "), "{path}: {chunk:?}");
                continue;
            }
            assert_eq!(seconds(sent), 15, "{path}: {chunk:?}");
            assert!(chunk.trim_end().ends_with(word.trim_end()) && !chunk.contains("hi"), "{path}: {chunk:?}");
            n_words += 1;
        }
    }
}

#[tokio::test]
async fn a_probe_ends_after_20_s() {
    let silent = Silent::start().await;
    let asked = Instant::now();
    let response = silent.call("GET", "/health_generate", &json!({})).await;
    assert_eq!((code(response).await, seconds(asked)), ((503, json!("timeout")), 20));
}

#[tokio::test]
async fn a_command_about_an_adapter_or_a_profile_ends_after_120_s() {
    let silent = Silent::start().await;
    let asked = Instant::now();
    let response =
        silent.call("POST", "/v1/load_lora_adapter", &json!({"lora_name": "a", "lora_path": "/nowhere"})).await;
    assert_eq!((code(response).await, seconds(asked)), ((504, json!("timeout")), 120));
    let frontend = silent.fixture.engine.frontend();
    let source = AdapterSource { name: "b".to_owned(), path: "/nowhere".to_owned() };
    assert!(matches!(frontend.load_adapter(source).await, Err(SubmitError::NoAnswer { .. })));
    let asked = Instant::now();
    let order = ProfileOrder { run_id: None, event_dir: None, trace_path_template: None, has_trace: false };
    let refused = frontend.start_profile(order).await;
    assert!(matches!(refused, Err(ProfileError::Worker(SubmitError::NoAnswer { .. }))), "{refused:?}");
    assert_eq!(seconds(asked), 120);
}
