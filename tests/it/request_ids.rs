//! Ids of requests: where they come from, where they are seen, and whose they are.

use serde_json::{Value, json};

use crate::harness::{Answer, Server, golden_model, long_stream, read_some, wait_until};

const PROMPT: &str = r#"{"prompt": [5], "max_tokens": 1}"#;

/// Posts `body` with these header lines beside the usual ones.
fn post(server: &Server, path: &str, lines: &str, body: &str) -> Answer {
    server.send(&format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{lines}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ))
}

fn tagged(id: &str) -> String {
    format!("x-request-id: {id}\r\n")
}

fn id_of(answer: &Answer) -> &str {
    answer.header("x-request-id").expect("every answer has an id")
}

/// Hexadecimal digits behind `prefix`, which are all of the rest.
fn n_digits(id: &str, prefix: &str) -> usize {
    let digits = id.strip_prefix(prefix).unwrap_or_else(|| panic!("{id} begins with no {prefix}"));
    assert!(digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    digits.len()
}

#[test]
fn the_id_of_the_head_is_the_requests_id_and_in_its_log_line() {
    let model = golden_model();
    let server = Server::logged("info", &["--model", model.to_str().unwrap()]);
    let answer = post(&server, "/generate", &tagged("findme-1"), PROMPT);
    assert_eq!((answer.json()["id"].as_str(), id_of(&answer)), (Some("findme-1"), "findme-1"));
    let chat = r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "n": 2}"#;
    let answer = post(&server, "/v1/chat/completions", &tagged("findme-2"), chat);
    assert_eq!((answer.json()["id"].as_str(), id_of(&answer)), (Some("chatcmpl-findme-2"), "findme-2"));
    let wrong = r#"{"prompt": [5], "max_tokens": 1, "temperature": 9}"#;
    let refused = post(&server, "/generate", &tagged("findme-3"), wrong);
    assert_eq!((refused.status, id_of(&refused)), (400, "findme-3"));
    let lost = post(&server, "/nobody", &tagged("findme-4"), "{}");
    assert_eq!((lost.status, id_of(&lost)), (404, "findme-4"));
    let embedded = post(&server, "/v1/embeddings", &tagged("findme-5"), r#"{"input": ["a", "b"]}"#);
    assert_eq!((embedded.status, id_of(&embedded)), (200, "findme-5"));
    let ollama = r#"{"model": "sdar", "prompt": "hi", "stream": false, "options": {"num_predict": 1}}"#;
    let generated = post(&server, "/api/generate", &tagged("findme-8"), ollama);
    assert_eq!((generated.status, id_of(&generated)), (200, "findme-8"), "{}", generated.body);
    assert!([embedded, generated].iter().all(|answer| answer.json().get("id").is_none()));
    for (path, prefix, body) in [
        ("/v1/completions", "cmpl-", PROMPT),
        ("/v1/responses", "resp_", r#"{"input": "hi", "max_output_tokens": 1}"#),
        ("/v1/messages", "msg_", r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}"#),
    ] {
        let answer = post(&server, path, &tagged("findme-6"), body);
        assert_eq!((&answer.json()["id"], id_of(&answer)), (&json!(format!("{prefix}findme-6")), "findme-6"));
    }
    let mut left = server.connect();
    let long = long_stream("denoise").to_string();
    let head =
        "POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-request-id: findme-7\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{long}", long.len());
    std::io::Write::write_all(&mut left, request.as_bytes()).unwrap();
    read_some(&mut left);
    drop(left);
    let lines = [
        (1, "answered"),
        (2, "answered"),
        (3, "refused"),
        (4, "refused"),
        (5, "answered"),
        (6, "answered"),
        (7, "cancelled"),
    ];
    for (id, word) in lines {
        let (id, word) = (format!("id=findme-{id} "), format!(" {word} "));
        wait_until(&id, || server.log().lines().any(|line| line.contains(&id) && line.contains(&word)));
    }
}

#[test]
fn a_request_that_fails_has_its_id_in_the_log_and_in_the_answer() {
    let model = golden_model();
    let limits = ["--model", model.to_str().unwrap(), "--request-timeout-seconds", "0.05"];
    let server = Server::logged("info", &limits);
    let mut body = long_stream("block_append");
    body["stream"] = json!(false);
    let failed = post(&server, "/generate", &tagged("findme"), &body.to_string());
    assert_eq!((failed.status, id_of(&failed)), (504, "findme"), "{}", failed.body);
    let is_line = |line: &str| line.contains("id=findme ") && line.contains(" failed ");
    wait_until("the line of the failed request", || server.log().lines().any(is_line));
}

#[test]
fn the_head_of_an_answer_has_the_id_that_the_request_has() {
    let server = Server::start(&[]);
    // The body's own wins.
    let body = r#"{"prompt": [5], "max_tokens": 1, "request_id": "of-body"}"#;
    for lines in ["", "x-request-id: of-head\r\n"] {
        let answer = post(&server, "/generate", lines, body);
        assert_eq!((answer.json()["id"].as_str(), id_of(&answer)), (Some("of-body"), "of-body"));
    }
    // Made where there is none, or none that a line of a log can hold.
    let long = tagged(&"x".repeat(129));
    for lines in
        ["", "x-request-id: a b\r\n", "x-request-id: a\"b\r\n", "x-request-id: \r\n", "x-request-id: \u{e9}\r\n", &long]
    {
        let answer = post(&server, "/generate", lines, PROMPT);
        let body = answer.json();
        let id = body["id"].as_str().unwrap();
        assert_eq!(n_digits(id, "diffulex-"), 32, "{lines:?}: {id}");
        assert_eq!(id_of(&answer), id, "{lines:?}");
    }
    let refused = post(&server, "/generate", "", r#"{"prompt": []}"#);
    assert_eq!((refused.status, n_digits(id_of(&refused), "diffulex-")), (400, 32));
    let embedded = post(&server, "/v1/embeddings", &tagged("of-head"), r#"{"input": "a", "request_id": "of-body"}"#);
    assert_eq!((embedded.status, id_of(&embedded)), (200, "of-body"));
    // A stream's head, and the ids of a list.
    let streamed = post(&server, "/generate", &tagged("s1"), r#"{"prompt": [5], "max_tokens": 1, "stream": true}"#);
    assert_eq!((streamed.frames()[0]["id"].as_str(), id_of(&streamed)), (Some("s1"), "s1"));
    let health = server.get("/health");
    assert!(id_of(&health).starts_with("diffulex-"));
}

#[test]
fn a_profile_is_searched_by_the_id_of_the_head() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--profile-dir", folder.path().to_str().unwrap()]);
    assert_eq!(server.post("/start_request_profile", &json!({"run_id": "r"})).status, 200);
    for _ in 0..2 {
        assert_eq!(post(&server, "/generate", &tagged("findme"), PROMPT).status, 200);
    }
    let stopped = server.post("/stop_request_profile", &json!({})).json();
    for path in stopped["paths"].as_array().unwrap() {
        let lines = std::fs::read_to_string(path.as_str().unwrap()).unwrap();
        let ids: std::collections::BTreeSet<String> = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["request_id"].as_str().unwrap().to_owned())
            .filter(|id| id.starts_with("findme."))
            .collect();
        // Each has one of its own.
        assert_eq!(ids.len(), 2, "{path}: {ids:?}");
    }
}

#[test]
fn an_id_that_a_proxy_repeats_is_no_conflict() {
    let server = Server::start(&[]);
    let long = long_stream("block_append").to_string();
    let mut first = server.connect();
    let head = "POST /generate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
    std::io::Write::write_all(
        &mut first,
        format!("{head}x-request-id: again\r\ncontent-length: {}\r\n\r\n{long}", long.len()).as_bytes(),
    )
    .unwrap();
    let begun = String::from_utf8_lossy(&read_some(&mut first)).into_owned();
    assert!(begun.contains("\"id\": \"again\"") && begun.contains("x-request-id: again\r\n"), "{begun}");
    let second = post(&server, "/generate", &tagged("again"), PROMPT);
    assert_eq!(second.status, 200, "{}", second.body);
    let body = second.json();
    let id = body["id"].as_str().unwrap();
    assert_eq!((n_digits(id, "again-"), id_of(&second)), (16, id));
    // An id of a body is the caller's choice, and means one request.
    let third = post(&server, "/generate", "", r#"{"prompt": [5], "max_tokens": 1, "request_id": "again"}"#);
    assert_eq!(third.status, 409, "{}", third.body);
    assert_eq!(server.post("/abort_request", &json!({"rid": "again"})).status, 200);
}

#[test]
fn choice_0_has_the_id_and_each_other_one_its_number_behind_it() {
    let server = Server::start(&[]);
    let mut stream = server.open(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "hello"}], "n": 2, "max_tokens": 1900, "ignore_eos": true,
                "stream": true, "request_id": "many"}),
    );
    read_some(&mut stream);
    for (id, status) in [("many", 409), ("many-1", 409), ("many-0", 200), ("many-2", 200)] {
        let same = server.post("/generate", &json!({"prompt": [5], "max_tokens": 1, "request_id": id}));
        assert_eq!(same.status, status, "{id} {}", same.body);
    }
    for (id, status) in [("many-0", 404), ("many-2", 404), ("many-1", 200)] {
        assert_eq!(server.post("/abort_request", &json!({"rid": id})).status, status, "{id}");
    }
}

#[test]
fn a_request_is_its_callers_alone() {
    let open = Server::start(&[]);
    let keyed = Server::start(&["--api-key", "first,second"]);
    for (server, others) in [(&keyed, &["second"][..]), (&open, &["second", ""][..])] {
        let key = |key: &str| if key.is_empty() { String::new() } else { format!("authorization: Bearer {key}\r\n") };
        let call = |owner: &str, path: &str, body: &Value| post(server, path, &key(owner), &body.to_string());
        let mut body = long_stream("block_append");
        body["request_id"] = json!("mine");
        let text = body.to_string();
        let mut stream = server.connect();
        let head = format!(
            "POST /generate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{}\
             content-length: {}\r\n\r\n{text}",
            key("first"),
            text.len()
        );
        std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
        read_some(&mut stream);
        for other in others {
            // As for an id that there is not, and without a word of it.
            let aborted = call(other, "/abort_request", &json!({"rid": "mine"}));
            let unknown = call(other, "/abort_request", &json!({"rid": "mint"}));
            assert_eq!(aborted.status, 404, "{}", aborted.body);
            assert_eq!(aborted.json()["error"]["code"], "request_not_found");
            assert_eq!(aborted.body.replace("mine", "mint"), unknown.body);
            let same = call(other, "/generate", &json!({"prompt": [5], "max_tokens": 1, "request_id": "mine"}));
            assert_eq!((same.status, same.json()["id"].as_str()), (200, Some("mine")), "{}", same.body);
            // `user` is no proof of anything.
            let user = json!({"prompt": [5], "max_tokens": 1, "request_id": "mine", "user": "first"});
            assert_eq!(call(other, "/generate", &user).status, 200);
        }
        let again = call("first", "/generate", &json!({"prompt": [5], "max_tokens": 1, "request_id": "mine"}));
        assert_eq!(again.status, 409, "{}", again.body);
        assert_eq!(call("first", "/abort_request", &json!({"rid": "mine"})).status, 200);
    }
}

#[test]
fn an_id_that_looks_like_one_of_an_interface_is_found_as_it_is() {
    let server = Server::start(&[]);
    let mut body = long_stream("block_append");
    body["request_id"] = json!("cmpl-7");
    let mut stream = server.open("/generate", &body);
    read_some(&mut stream);
    assert_eq!(server.post("/abort_request", &json!({"rid": "cmpl-7"})).status, 200);
}
