//! The server as a library: the loop around an engine, the routes with hooks, a client that leaves.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use diffulex_protocol::{ChatMessage, SamplingParams, ServingInput, StreamMode};
use diffulex_server::config::ServerConfig;
use diffulex_server::engine_loop::EngineLoop;
use diffulex_server::frontend::{AnswerError, ClientDisconnected, StreamEvent, SubmitError};
use diffulex_server::http::connection::ConnectionOptions;
use diffulex_server::http::{self, BodyLimits, HttpOptions};
use diffulex_server::telemetry::Telemetry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::engine_loop::{ANSWER, HANG, fixture_with};
use crate::harness::{Answer, DEADLINE, golden_model, wait_until};

/// The example of docs/embedding.md.
#[path = "../../diffulex-server/examples/embed.rs"]
#[allow(dead_code, reason = "its `main` is for the command line")]
mod example;

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens, ..SamplingParams::default() }
}

#[tokio::test]
async fn the_example_prints_steps_and_the_same_answer_twice() {
    let mut out = Vec::new();
    example::answer("12 + 30 =?".to_owned(), None, &mut out).await.unwrap();
    let text = String::from_utf8(out).unwrap();
    let answer = text.lines().last().unwrap();
    assert!(answer.contains("42"), "{text}");
    assert!(text.contains(&format!("\n\n{answer}\n(")), "the streamed answer, then the other: {text}");
    assert!(text.starts_with("diffulex-demo: \""), "{text}");
}

#[tokio::test]
async fn a_model_is_served_from_its_path() {
    let engine = EngineLoop::from_path(Some(&golden_model()), &ServerConfig::default()).await.unwrap();
    assert!(engine.is_running());
    assert_eq!(engine.model_id(), "sdar");
    let ids = ServingInput::ids(vec![5, 6, 7]);
    let reply = engine.generate(ids.clone(), greedy(16)).await.unwrap();
    let mut stream = engine.generate_stream(ids, greedy(16), StreamMode::BlockAppend).await.unwrap();
    let mut streamed = String::new();
    while let Some(event) = stream.next_event().await {
        match event {
            StreamEvent::Delta(delta) => streamed.push_str(&delta.text),
            StreamEvent::Reply(last) => assert_eq!(last.text, reply.text),
            StreamEvent::Snapshot(_) | StreamEvent::Error(_) => panic!("{event:?}"),
        }
    }
    assert_eq!(streamed, reply.text);
    let user = ChatMessage { role: "user".to_owned(), content: "hello".to_owned() };
    assert!(engine.render_chat_prompt(&[user]).unwrap().contains("hello"));
    engine.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn what_cannot_be_served_is_an_error_of_its_own_kind() {
    let Err(error) = EngineLoop::from_path(Some(Path::new("/nowhere")), &ServerConfig::default()).await else {
        panic!("there is no model");
    };
    assert!(error.to_string().contains("/nowhere"), "{error}");
    let fixture = fixture_with(|_| {}).await;
    for params in [greedy(0), SamplingParams { temperature: f32::NAN, ..greedy(1) }] {
        let refused = fixture.engine.generate(ServingInput::ids(vec![ANSWER]), params).await;
        assert!(matches!(refused, Err(AnswerError::Refused(SubmitError::Request(_)))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_client_that_is_gone_ends_its_request() {
    let fixture = fixture_with(|_| {}).await;
    let n_asked = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&n_asked);
    let ids = ServingInput::ids(vec![HANG]);
    let stream = fixture.engine.generate_stream(ids, greedy(8), StreamMode::BlockAppend).await.unwrap();
    let rid = stream.rid().to_owned();
    // There the first time, gone the second.
    let mut watched = stream.watch(move || asked.fetch_add(1, Ordering::SeqCst) > 0);
    let event = timeout(DEADLINE, watched.next_event()).await.expect("asked");
    assert!(matches!(event, Some(Err(ClientDisconnected))), "{event:?}");
    assert!(watched.next_event().await.is_none(), "nothing follows");
    assert_eq!(n_asked.load(Ordering::SeqCst), 2);
    wait_until("the abort", || fixture.has_aborted(&rid));
    assert_eq!(fixture.engine.frontend().gauges().in_flight, 0);

    let answered =
        fixture.engine.generate_stream(ServingInput::ids(vec![ANSWER]), greedy(8), StreamMode::Denoise).await;
    let reply = answered.unwrap().watch(|| panic!("an answer was ready")).reply().await.unwrap();
    assert_eq!(reply.text, "ab");
}

fn http_options() -> HttpOptions {
    HttpOptions {
        model_name: "script".to_owned(),
        model_aliases: Vec::new(),
        model_place: String::new(),
        sampling_defaults: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        started_at: 0,
        api_key: None,
        cors_origin: None,
        allowed_hosts: Vec::new(),
        is_exposed: false,
        serves_profiles: true,
        body: BodyLimits { max_bytes: 1 << 20, timeout: DEADLINE },
        speech_upstream: None,
        traces: None,
    }
}

async fn answer(address: SocketAddr, method: &str, path: &str) -> Answer {
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await.unwrap();
    Answer::parse(&bytes)
}

#[tokio::test]
async fn an_app_answers_in_the_router_of_another_program() {
    let fixture = fixture_with(|_| {}).await;
    let app = http::create_app(fixture.engine.frontend().clone(), Arc::new(Telemetry::default()), http_options());
    let router = Router::new().route("/mine", get(async || "mine")).fallback_service(app.unwrap().into_router());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async { axum::serve(listener, router).await });
    assert_eq!(answer(address, "GET", "/mine").await.body, "mine");
    assert_eq!(answer(address, "GET", "/ready").await.status, 200);
    let refused = answer(address, "GET", "/generate").await;
    assert_eq!(refused.status, 405);
    assert!(refused.body.contains("method_not_allowed"), "{}", refused.body);
    assert!(refused.header("x-request-id").is_some());
    serving.abort();
}

#[tokio::test]
async fn an_app_runs_its_hooks_and_has_no_profile_routes() {
    let fixture = fixture_with(|_| {}).await;
    let log: Arc<Mutex<Vec<&str>>> = Arc::default();
    let note = |what: &'static str| {
        let log = Arc::clone(&log);
        move || async move { log.lock().unwrap().push(what) }
    };
    let app = http::create_app(fixture.engine.frontend().clone(), Arc::new(Telemetry::default()), http_options())
        .unwrap()
        .on_start(note("first"))
        .on_start(note("second"))
        .on_stop(note("last"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let options = ConnectionOptions {
        max_connections: 8,
        header_timeout: DEADLINE,
        write_timeout: DEADLINE,
        drain_timeout: DEADLINE,
    };
    let serving = tokio::spawn(app.serve(listener, options, stopped));
    for (method, path, status) in
        [("GET", "/ready", 200), ("POST", "/start_profile", 404), ("POST", "/stop_profile", 404)]
    {
        assert_eq!(answer(address, method, path).await.status, status, "{path}");
    }
    assert_eq!(*log.lock().unwrap(), ["first", "second"]);
    stop.send(true).unwrap();
    serving.await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["first", "second", "last"]);
}
