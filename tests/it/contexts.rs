//! `/v1/contexts`: texts that are filled, extended, forked and freed, and what is refused.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, DEADLINE, Server, golden_model, idle, kill, long_stream, read_some, wait_until};
use crate::infilling::{llada_model, with_tokenizer};

fn tiny() -> Server {
    Server::start(&["--page-size", "8"])
}

fn ids(n: u32, from: u32) -> Vec<u32> {
    (from..from + n).collect()
}

fn create(server: &Server, body: Value) -> Value {
    let answer = server.post("/v1/contexts", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn at(context: &Value, what: &str) -> String {
    format!("/v1/contexts/{}{what}", context["context_id"])
}

/// A call with a key, of a thread of its own.
fn call(address: &str, key: &str, method: &str, path: &str, body: &Value) -> Answer {
    let body = body.to_string();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    Answer::read(socket)
}

fn delete(server: &Server, path: &str) -> Answer {
    server.send(&format!("DELETE {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.address))
}

fn params(extra: Value) -> Value {
    let mut body = json!({"max_tokens": 9, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn error(answer: &Answer) -> (u16, String, Option<String>) {
    let code = answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
    (answer.status, code, answer.error_param())
}

#[test]
fn an_answer_on_a_context_is_that_of_the_whole_text_and_becomes_a_part_of_it() {
    let server = tiny();
    let context = create(&server, json!({"token_ids": ids(13, 5)}));
    assert_eq!((&context["filled_len"], &context["context_len"]), (&json!(13), &json!(13)));
    assert_eq!((&context["committed_len"], &context["tail_len"]), (&json!(8), &json!(5)));
    let filled = server.post(&at(&context, "/fill"), &json!({"token_ids": ids(6, 90)})).json();
    assert_eq!(
        (&filled["filled_len"], &filled["context_len"], &filled["committed_len"]),
        (&json!(6), &json!(19), &json!(16))
    );
    let whole: Vec<u32> = [ids(13, 5), ids(6, 90), ids(2, 40)].concat();
    let want = server.post("/generate", &params(json!({"prompt": whole}))).json();
    let got = server.post(&at(&context, "/generate"), &params(json!({"prompt": ids(2, 40)}))).json();
    assert_eq!((&got["token_ids"], &got["text"]), (&want["token_ids"], &want["text"]));
    assert_eq!((&got["context"]["context_len"], &got["context"]["rebuilt"]), (&json!(30), &json!(false)));
    assert_eq!(got["usage"]["prompt_tokens"], 21);
    // What was written is a part of it, and no prompt is needed.
    let mut whole = whole;
    whole.extend(got["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32));
    for mode in ["denoise", "block_append"] {
        let body = params(json!({"stream": true, "stream_mode": mode}));
        let fork = server.post(&at(&context, "/fork"), &json!({})).json();
        assert_eq!((&fork["context_len"], &fork["parent_context_id"]), (&json!(30), &context["context_id"]));
        let frames = server.post(&at(&fork, "/generate"), &body).frames();
        let last = frames.last().unwrap();
        let want = server.post("/generate", &params(json!({"prompt": whole}))).json();
        assert_eq!((&last["event"], &last["token_ids"]), (&json!("final"), &want["token_ids"]), "{mode}");
        assert_eq!(last["context"]["context_len"], 39, "{mode}");
    }
    assert_eq!(server.get(&at(&context, "")).json()["context_len"], 30);
    assert_eq!(server.get("/v1/contexts").json()["data"].as_array().unwrap().len(), 3);
    let freed = delete(&server, &at(&context, ""));
    assert_eq!((freed.status, &freed.json()["context_len"]), (200, &json!(30)));
    assert_eq!(error(&server.get(&at(&context, ""))).0, 410);
}

#[test]
fn a_context_is_its_owners_alone() {
    let server = tiny();
    let made = call(&server.address, "alice", "POST", "/v1/contexts", &json!({"token_ids": ids(9, 5)})).json();
    let path = at(&made, "");
    assert_eq!(call(&server.address, "alice", "GET", &path, &json!({})).status, 200);
    for (method, what) in [("GET", ""), ("DELETE", ""), ("POST", "/fill"), ("POST", "/generate"), ("POST", "/fork")] {
        let body = if what == "/fill" { json!({"token_ids": [1]}) } else { json!({}) };
        let answer = call(&server.address, "bob", method, &at(&made, what), &body);
        let want = (404, "context_not_found".to_owned(), Some("context_id".to_owned()));
        assert_eq!(error(&answer), want, "{method} {what}: {}", answer.body);
    }
    let child = json!({"parent_context_id": made["context_id"]});
    let answer = call(&server.address, "bob", "POST", "/v1/contexts", &child);
    assert_eq!(error(&answer), (404, "context_not_found".to_owned(), Some("parent_context_id".to_owned())));
    assert_eq!(call(&server.address, "bob", "GET", "/v1/contexts", &json!({})).json()["data"], json!([]));
    assert_eq!(call(&server.address, "alice", "POST", "/v1/contexts", &child).status, 200);
}

#[test]
fn what_a_context_cannot_take_is_refused_by_name() {
    let server = Server::start(&["--max-contexts", "2", "--max-contexts-per-caller", "2", "--max-model-len", "64"]);
    let context = create(&server, json!({"token_ids": ids(5, 5)}));
    let code = |path: &str, body: Value| error(&server.post(path, &body));
    let refused = |status: u16, code: &str, param: &str| (status, code.to_owned(), Some(param.to_owned()));
    let generate = at(&context, "/generate");
    assert_eq!(code("/v1/contexts/7/fork", json!({})), refused(404, "context_not_found", "context_id"));
    assert_eq!(code("/v1/contexts/x/fork", json!({})), refused(404, "context_not_found", "context_id"));
    let unknown = json!({"parent_context_id": 7});
    assert_eq!(code("/v1/contexts", unknown), refused(404, "context_not_found", "parent_context_id"));
    assert_eq!(
        code("/v1/contexts", json!({"parent_context_id": -2})),
        refused(400, "invalid_request", "parent_context_id")
    );
    for (body, param) in [
        (json!({"n": 2}), "n"),
        (json!({"suffix": "b"}), "suffix"),
        (json!({"truncate_prompt_tokens": 3}), "truncate_prompt_tokens"),
        (json!({"cache_salt": "other"}), "cache_salt"),
        (json!({"prompt": [1_000_000]}), "prompt"),
        (json!({"max_tokens": 0}), "max_tokens"),
    ] {
        assert_eq!(code(&generate, body), refused(400, "invalid_request", param));
    }
    for (body, param) in
        [(json!({"text": "a", "token_ids": [1]}), "text"), (json!({}), "text"), (json!({"messages": []}), "messages")]
    {
        assert_eq!(code(&at(&context, "/fill"), body), refused(400, "invalid_request", param));
    }
    for ttl in [0.0, -1.0, 86401.0] {
        assert_eq!(code("/v1/contexts", json!({"ttl_s": ttl})), refused(400, "invalid_request", "ttl_s"));
    }
    let long = json!({"token_ids": ids(59, 5)});
    assert_eq!(code(&at(&context, "/fill"), long.clone()), refused(400, "context_length_exceeded", "prompt"));
    assert_eq!(code(&generate, json!({"prompt": ids(59, 5)})), refused(400, "context_length_exceeded", "prompt"));
    // None of it was added, nor is what a refused creation made.
    let too_long = json!({"token_ids": ids(64, 5)});
    assert_eq!(code("/v1/contexts", too_long), refused(400, "context_length_exceeded", "prompt"));
    assert_eq!(server.get(&at(&context, "")).json()["context_len"], 5);
    let second = create(&server, json!({}));
    assert_eq!(code("/v1/contexts", json!({})), refused(429, "too_many_contexts", "context_id"));
    assert_eq!(code(&at(&second, "/generate"), json!({})), refused(400, "invalid_request", "prompt"));
    assert_eq!(delete(&server, &at(&second, "")).status, 200);
    assert_eq!(code(&at(&second, "/fork"), json!({})), refused(410, "context_gone", "context_id"));
    // The shortest life.
    let short = create(&server, json!({"ttl_s": 0.001}));
    wait_until("an expired context", || server.get(&at(&short, "")).status == 410);
    assert!(server.get(&at(&short, "")).body.contains("expired"));
}

#[test]
fn a_context_takes_one_request_at_a_time_and_an_aborted_one_adds_nothing() {
    let server = tiny();
    let context = create(&server, json!({"token_ids": ids(9, 5)}));
    let mut socket = server.open(&at(&context, "/generate"), &long_stream("block_append"));
    read_some(&mut socket);
    for (path, body) in [("/fill", json!({"token_ids": [1]})), ("/generate", json!({}))] {
        let answer = server.post(&at(&context, path), &body);
        assert_eq!(error(&answer), (409, "context_busy".to_owned(), Some("context_id".to_owned())));
    }
    assert_eq!(error(&delete(&server, &at(&context, ""))).0, 409);
    assert_eq!(server.get(&at(&context, "")).json()["busy"], true);
    let fork = server.post(&at(&context, "/fork"), &json!({})).json();
    assert_eq!((&fork["context_len"], &fork["busy"]), (&json!(9), &json!(false)));
    drop(socket);
    wait_until("a context that is not busy", || server.get(&at(&context, "")).json()["busy"] == false);
    assert_eq!(server.get(&at(&context, "")).json()["context_len"], 9);
    let want = server.post("/generate", &params(json!({"prompt": ids(9, 5)}))).json();
    let got = server.post(&at(&context, "/generate"), &params(json!({}))).json();
    assert_eq!(got["token_ids"], want["token_ids"]);
    wait_until("an idle server", || server.metric("num_requests_in_flight") == 0.0);
}

#[test]
fn a_context_outlives_its_worker_and_says_that_it_was_rebuilt() {
    let server = tiny();
    let context = create(&server, json!({"token_ids": ids(40, 5)}));
    assert_eq!(context["committed_len"], 40);
    kill(server.worker_pid().unwrap(), Signal::KILL);
    wait_until("a new worker", || {
        server.get(&at(&context, "")).json()["committed_len"] == 0 && server.get("/ready").status == 200
    });
    let got = server.post(&at(&context, "/generate"), &params(json!({}))).json();
    assert_eq!(got["context"]["rebuilt"], true);
    let want = server.post("/generate", &params(json!({"prompt": ids(40, 5)}))).json();
    assert_eq!(got["token_ids"], want["token_ids"]);
    let next = server.post(&at(&context, "/generate"), &params(json!({}))).json();
    assert_eq!(next["context"]["rebuilt"], false);
    assert_eq!(server.metric("context_rebuilds_total"), 1.0);
}

#[test]
fn a_model_that_keeps_no_contexts_says_so() {
    let folder = llada_model();
    let server = Server::of(folder.path(), &["--max-model-len", "64"]);
    let answer = server.post("/v1/contexts", &json!({"token_ids": ids(9, 5)}));
    assert_eq!(error(&answer), (501, "context_unsupported".to_owned(), None), "{}", answer.body);
    assert_eq!(server.get("/v1/contexts").json()["data"], json!([]));
}

#[test]
fn a_context_of_a_prompt_that_is_encoded_whole_cannot_grow() {
    let folder = with_tokenizer("dream");
    let adapter = format!("a={}", golden_model().join("../d2f_dream").display());
    let d2f = ["--decoding-strategy", "d2f", "--block-size", "4", "--max-model-len", "64", "--lora-path", &adapter];
    let server = Server::of(folder.path(), &[&d2f[..], &["--pre-merge-lora"]].concat());
    let context = create(&server, json!({"token_ids": ids(9, 5)}));
    let answer = server.post(&at(&context, "/fill"), &json!({"token_ids": [7]}));
    let want = (400, "context_cannot_grow".to_owned(), Some("context_id".to_owned()));
    assert_eq!(error(&answer), want, "{}", answer.body);
}

#[test]
fn clients_on_shared_contexts_get_one_end_each_while_workers_are_killed() {
    let server = Server::start(&["--page-size", "8", "--max-contexts", "64"]);
    let owned = |method: &str, path: &str, body: &Value| call(&server.address, "team", method, path, body);
    let document = owned("POST", "/v1/contexts", &json!({"token_ids": ids(48, 5)})).json();
    let n_left = AtomicUsize::new(16);
    std::thread::scope(|scope| {
        for client in 0..16 {
            let (address, document, n_left) = (&server.address, &document, &n_left);
            scope.spawn(move || {
                let owned = |method: &str, path: &str, body: &Value| call(address, "team", method, path, body);
                for turn in 0..4 {
                    let fork = owned("POST", &at(document, "/fork"), &json!({}));
                    assert_eq!(fork.status, 200, "{}", fork.body);
                    let fork = fork.json();
                    let body = params(json!({"prompt": ids(3, 100 + 10 * client + turn), "max_tokens": 24}));
                    let answer = owned("POST", &at(&fork, "/generate"), &body);
                    let len = owned("GET", &at(&fork, ""), &json!({})).json()["context_len"].as_u64().unwrap();
                    // Tried twice beside a worker's end, a request is refused as poison.
                    match answer.status {
                        200 => assert_eq!(len, 48 + 3 + 24),
                        400 => assert_eq!((error(&answer).1.as_str(), len), ("poisoned", 48)),
                        status => assert_eq!((status, len), (503, 48), "{}", answer.body),
                    }
                    // On the shared one they meet: each is served, or refused for a reason.
                    let shared = owned("POST", &at(document, "/fill"), &json!({"token_ids": []}));
                    assert!([200, 400, 409, 503].contains(&shared.status), "{}", shared.body);
                    assert_eq!(owned("DELETE", &at(&fork, ""), &json!({})).status, 200);
                }
                n_left.fetch_sub(1, Ordering::AcqRel);
            });
        }
        for _ in 0..3 {
            let accepted = server.metric("requests_total");
            wait_until("requests", || {
                server.metric("requests_total") > accepted + 6.0 || n_left.load(Ordering::Acquire) == 0
            });
            if let Some(pid) = server.worker_pid() {
                kill(pid, Signal::KILL);
            }
            wait_until("a new worker", || server.get("/ready").status == 200);
        }
    });
    wait_until("a server that takes requests", || server.get("/ready").status == 200);
    let last = owned("POST", &at(&document, "/generate"), &params(json!({}))).json();
    let want = server.post("/generate", &params(json!({"prompt": ids(48, 5)}))).json();
    assert_eq!(last["token_ids"], want["token_ids"]);
    assert_eq!(owned("DELETE", &at(&document, ""), &json!({})).status, 200);
    assert_eq!(server.metric("contexts"), 0.0);
    wait_until("an engine that holds nothing", || server.metric("context_pages") == 0.0 && idle(&server));
}

#[test]
fn a_client_that_leaves_before_it_has_the_id_leaves_no_context() {
    let server = tiny();
    let parent = create(&server, json!({"token_ids": ids(8, 5)}));
    let held = || server.metric("contexts");
    assert_eq!(held(), 1.0);
    // A worker that does not go on keeps every fill from ending.
    kill(server.worker_pid().unwrap(), Signal::STOP);
    let made = |path: &str, body: Value| {
        let socket = server.open(path, &body);
        wait_until("a context", || held() == 2.0);
        drop(socket);
        wait_until("no context of a client that left", || held() == 1.0);
    };
    made("/v1/contexts", json!({"token_ids": ids(9, 5), "ttl_s": 86400}));
    made("/v1/contexts", json!({"parent_context_id": parent["context_id"], "text": "hello"}));
    // A primitive that makes its context takes it along, too.
    made("/fill", json!({"context_id": 3, "token_ids": ids(9, 5)}));
    made("/generate", json!({"context_id": 3, "prompt": ids(9, 5), "stream": true}));
    kill(server.worker_pid().unwrap(), Signal::CONT);
    assert_eq!(create(&server, json!({"token_ids": ids(9, 5)}))["context_len"], 9);
    wait_until("an idle server", || server.metric("num_requests_in_flight") == 0.0);
    assert_eq!(held(), 2.0);
}

#[test]
fn one_caller_leaves_room_for_another() {
    let server = Server::start(&["--max-contexts", "4"]);
    let create = |key: &str| call(&server.address, key, "POST", "/v1/contexts", &json!({}));
    for key in ["alice", "bob"] {
        for _ in 0..2 {
            assert_eq!(create(key).status, 200);
        }
        let answer = create(key);
        assert_eq!(error(&answer), (429, "too_many_contexts".to_owned(), Some("context_id".to_owned())));
        let limit = if key == "alice" { "--max-contexts-per-caller" } else { "--max-contexts)" };
        assert!(answer.body.contains(limit), "{}", answer.body);
    }
    // Where one key is asked for there is one caller.
    let server = Server::start(&["--max-contexts", "4", "--api-key", "alice"]);
    for _ in 0..4 {
        assert_eq!(call(&server.address, "alice", "POST", "/v1/contexts", &json!({})).status, 200);
    }
}

#[test]
fn a_prompt_beside_messages_is_refused_on_a_context() {
    let server = tiny();
    let context = create(&server, json!({}));
    let both = json!({"prompt": "a", "messages": [{"role": "user", "content": "b"}]});
    assert_eq!(error(&server.post(&at(&context, "/generate"), &both)).2.as_deref(), Some("prompt"));
}
