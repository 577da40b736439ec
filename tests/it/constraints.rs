//! Constraints of answers: each interface's form comes to the worker as one, and what the worker says of it goes back to the client.

use std::io::Write;
use std::net::TcpStream;

use diffulex_protocol::{
    Constraint, ConstraintReport, ErrorCode, FinishReason, ServingError, ServingEvent, ServingReply,
};
use serde_json::{Value, json};

use crate::attach::{Place, StandIn, ready_of_a_worker};
use crate::harness::{Answer, Server, wait_until};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA_CHAT: &str = "/api/chat";
const OLLAMA_GENERATE: &str = "/api/generate";

/// A schema whose keys are not in the order of the alphabet, which a [`Value`] would bring them into.
const SCHEMA: &str = r#"{"type":"object","properties":{"b":{"type":"integer"},"a":{"enum":["x"]}}}"#;

/// A server with a worker that the test is.
struct Pair {
    server: Server,
    worker: StandIn,
    _place: Place,
}

impl Pair {
    fn start() -> Self {
        let ready = ready_of_a_worker();
        let place = Place::new();
        let server = Server::launch(&["--served-model-name", "tiny", "--connect", &place.url()]);
        let mut worker = StandIn::listen(&place);
        worker.greet(&ready);
        wait_until("service", || server.get("/ready").status == 200);
        Self { server, worker, _place: place }
    }

    /// Asks on `path`, with the field that `extra` is, and returns what the worker gets.
    fn ask(&self, path: &str, extra: &str) -> (TcpStream, String, Option<Constraint>) {
        let client = open(&self.server, path, &body(path, extra));
        let request = self.worker.request();
        (client, request.rid, request.constraint)
    }
}

/// The text of a body that the route answers, with the fields `extra`.
fn body(path: &str, extra: &str) -> String {
    let messages = r#""messages": [{"role": "user", "content": "hi"}]"#;
    let plain = match path {
        CHAT | MESSAGES => format!(r#"{messages}, "max_tokens": 9"#),
        RESPONSES => r#""input": "hi", "max_output_tokens": 9"#.to_owned(),
        OLLAMA_CHAT => format!(r#""model": "tiny", {messages}, "stream": false"#),
        OLLAMA_GENERATE => r#""model": "tiny", "prompt": "hi", "stream": false"#.to_owned(),
        _ => r#""prompt": "hi", "max_tokens": 9"#.to_owned(),
    };
    format!("{{{plain}, {extra}}}")
}

fn open(server: &Server, path: &str, body: &str) -> TcpStream {
    let mut socket = server.connect();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close", server.address);
    let head = format!("{head}\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
    socket.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    socket
}

fn reply(rid: &str, compile_ms: f64) -> ServingEvent {
    ServingEvent::Reply(Box::new(ServingReply {
        text: "{}".to_owned(),
        token_ids: vec![5, 6],
        constraint: Some(ConstraintReport { states: 7, compile_ms, forced: vec![1] }),
        ..ServingReply::new(rid, FinishReason::EosTokenGenerated)
    }))
}

/// Forms by route: the fields, the client's name of the form, the constraint that the worker gets.
fn forms() -> Vec<(&'static str, String, &'static str, Constraint)> {
    let schema = || Constraint::JsonSchema(SCHEMA.to_owned());
    let named =
        format!(r#"{{"type": "json_schema", "json_schema": {{"name": "x", "strict": false, "schema": {SCHEMA}}}}}"#);
    let flat = format!(r#"{{"type": "json_schema", "name": "x", "schema": {SCHEMA}}}"#);
    let choice = Constraint::Choice(vec!["yes".to_owned(), "no".to_owned()]);
    vec![
        (CHAT, format!(r#""response_format": {named}"#), "response_format", schema()),
        (COMPLETIONS, r#""guided_regex": "[ab]+""#.to_owned(), "guided_regex", Constraint::Regex("[ab]+".to_owned())),
        (
            "/generate",
            r#""structured_outputs": {"choice": ["yes", "no"]}"#.to_owned(),
            "structured_outputs.choice",
            choice,
        ),
        (RESPONSES, format!(r#""text": {{"format": {flat}}}"#), "text.format", schema()),
        (MESSAGES, format!(r#""output_config": {{"format": {flat}}}"#), "output_config.format", schema()),
        (MESSAGES, format!(r#""output_format": {flat}"#), "output_format", schema()),
        (OLLAMA_CHAT, format!(r#""format": {SCHEMA}"#), "format", schema()),
        (OLLAMA_GENERATE, r#""format": "json""#.to_owned(), "format", Constraint::JsonObject),
    ]
}

#[test]
fn the_form_of_each_interface_comes_to_the_worker_and_its_report_to_the_client() {
    let pair = Pair::start();
    for (path, extra, _, wanted) in forms() {
        let (client, rid, constraint) = pair.ask(path, &extra);
        assert_eq!(constraint, Some(wanted), "{path} {extra}");
        pair.worker.send(vec![reply(&rid, 1.5)]);
        let answer = Answer::read(client);
        assert_eq!(answer.status, 200, "{path} {}", answer.body);
        let report = json!({"states": 7, "compile_ms": 1.5, "forced": [1]});
        assert_eq!(answer.json()["diffulex"]["constraint"], report, "{path} {}", answer.body);
        assert!(answer.json()["constraint"].is_null(), "{path} {}", answer.body);
        if path == RESPONSES {
            assert_eq!(answer.json()["text"]["format"]["name"], "x");
            assert!(answer.body.contains(SCHEMA), "{}", answer.body);
        }
    }
    // Without one, nothing says so.
    let (client, rid, constraint) = pair.ask(CHAT, r#""response_format": {"type": "text"}"#);
    assert_eq!(constraint, None);
    let plain = ServingReply::new(rid, FinishReason::EosTokenGenerated);
    pair.worker.send(vec![ServingEvent::Reply(Box::new(plain))]);
    let answer = Answer::read(client);
    assert!(answer.status == 200 && answer.json()["diffulex"].get("constraint").is_none(), "{}", answer.body);
}

#[test]
fn a_stream_ends_with_the_report_and_constrained_requests_are_counted() {
    let pair = Pair::start();
    for (path, extra) in
        [(CHAT, r#""stream": true, "regex": "a""#), ("/generate", r#""stream": true, "ebnf": "root ::= \"a\"""#)]
    {
        let (client, rid, constraint) = pair.ask(path, extra);
        assert!(constraint.is_some(), "{path}");
        pair.worker.send(vec![reply(&rid, 0.0)]);
        let frames = Answer::read(client).frames();
        let last = frames.iter().rfind(|frame| frame["diffulex"].is_object()).expect("a last frame");
        assert_eq!(last["diffulex"]["constraint"]["states"], 7, "{path} {last}");
    }
    let (client, rid, _) = pair.ask(CHAT, r#""json_schema": {}"#);
    pair.worker.send(vec![reply(&rid, 250.0)]);
    assert_eq!(Answer::read(client).status, 200);
    assert_eq!(pair.server.metric("constrained_requests_total"), 3.0);
    // Two were compiled before.
    assert_eq!(pair.server.metric("constraint_compile_seconds_count"), 1.0);
    assert_eq!(pair.server.metric("constraint_compile_seconds_sum"), 0.25);
}

#[test]
fn an_error_of_the_worker_about_a_constraint_names_the_clients_field() {
    let pair = Pair::start();
    for (path, extra, field, _) in forms() {
        for (said, wanted) in [
            ("constraint: minimum of 5000 states", "minimum of 5000 states"),
            ("maxLength must be at most 256, got 300", "maxLength must be at most 256, got 300"),
        ] {
            let (client, rid, _) = pair.ask(path, &extra);
            let error = ServingError {
                param: Some("constraint".to_owned()),
                ..ServingError::new(rid, ErrorCode::InvalidRequest, said)
            };
            pair.worker.send(vec![ServingEvent::Error(error)]);
            let answer = Answer::read(client);
            assert_eq!(answer.status, 400, "{path} {}", answer.body);
            let error = answer.json()["error"].clone();
            let message = error["message"].as_str().or(error.as_str());
            assert_eq!(message, Some(format!("{field}: {wanted}").as_str()), "{path} {}", answer.body);
            if let Some(param) = error.get("param") {
                assert_eq!(*param, field, "{path}");
            }
        }
    }
    // After the headers of a stream, too.
    let (client, rid, _) = pair.ask(CHAT, r#""stream": true, "guided_choice": ["a"]"#);
    let error = ServingError {
        param: Some("constraint".to_owned()),
        ..ServingError::new(rid, ErrorCode::InvalidRequest, "constraint is too large")
    };
    pair.worker.send(vec![ServingEvent::Error(error)]);
    let answer = Answer::read(client);
    assert!(answer.body.contains("guided_choice is too large"), "{}", answer.body);
}

#[test]
fn a_constraint_that_does_not_apply_is_refused_by_name() {
    let server = Server::start(&["--served-model-name", "tiny"]);
    let cases: [(&str, Value, &str); 16] = [
        (CHAT, json!({"response_format": {"type": "json_object"}, "regex": "a"}), "regex"),
        (CHAT, json!({"regex": "a", "ignore_eos": true}), "ignore_eos"),
        (COMPLETIONS, json!({"regex": "a", "max_tokens": 0, "echo": true}), "regex"),
        (CHAT, json!({"response_format": {"type": "structural_tag"}}), "response_format.type"),
        (CHAT, json!({"structural_tag": {"a": 1}}), "structural_tag"),
        (CHAT, json!({"guided_whitespace_pattern": " "}), "guided_whitespace_pattern"),
        (CHAT, json!({"format": "json"}), "format"),
        (CHAT, json!({"output_format": {"type": "json_schema"}}), "output_format"),
        (RESPONSES, json!({"response_format": {"type": "json_object"}}), "response_format"),
        (RESPONSES, json!({"structured_outputs": {"regex": "a"}}), "structured_outputs"),
        (RESPONSES, json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (MESSAGES, json!({"response_format": {"type": "json_object"}}), "response_format"),
        (MESSAGES, json!({"output_format": {"type": "json_object"}}), "output_format.type"),
        (OLLAMA_CHAT, json!({"response_format": {"type": "json_object"}}), "response_format"),
        (OLLAMA_CHAT, json!({"format": 5}), "format"),
        ("/v1/embeddings", json!({"input": "a", "response_format": {"type": "json_object"}}), "response_format"),
    ];
    for (path, extra, field) in cases {
        let mut body: Value = serde_json::from_str(&body(path, r#""seed": 1"#)).unwrap();
        if path == "/v1/embeddings" {
            body = json!({});
        }
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path} {extra} {}", answer.body);
        let error = answer.json()["error"].clone();
        let message = error["message"].as_str().or(error.as_str()).unwrap().to_owned();
        let names_it = message.strip_prefix(field).is_some_and(|rest| rest.starts_with([' ', ':']));
        assert!(names_it, "{path} {extra}: {message}");
        assert_eq!(message.matches(field).count(), 1, "{message}");
    }
    let decision = json!({"input": "a", "questions": [{"type": "predicate", "instructions": "b"}], "regex": "a"});
    let answer = server.post("/v1/decisions", &decision);
    assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some("regex")), "{}", answer.body);
}
