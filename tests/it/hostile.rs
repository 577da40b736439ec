//! Clients that mean harm, or know no better: what they send, hold and leave behind costs others nothing.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Answer, Server, golden_model, program, wait_until};

const MIB: u64 = 1024 * 1024;

fn long_text() -> String {
    "hello ".repeat(690_000)
}

/// The head of a request with a body of `n_bytes`.
fn head(path: &str, n_bytes: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {n_bytes}\r\n\r\n"
    )
}

/// Sends a request without a body, with these header lines beside the usual ones.
fn with_headers(server: &Server, method: &str, path: &str, host: &str, lines: &[&str]) -> Answer {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    server.send(&format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{lines}\r\n"))
}

/// True once the front end has done next to nothing for half a second.
fn falls_idle(server: &Server, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    loop {
        let before = server.processor_time();
        std::thread::park_timeout(Duration::from_millis(500));
        if server.processor_time() - before < Duration::from_millis(100) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
    }
}

#[test]
fn a_text_that_can_never_fit_is_refused_before_it_is_tokenised() {
    let server = Server::start(&[]);
    let before = server.resident_bytes();
    let text = long_text();
    let cases = [
        ("/generate", json!({"prompt": text}), "prompt"),
        ("/v1/completions", json!({"prompt": [5], "suffix": text}), "suffix"),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}]}), "messages"),
        ("/tokenize", json!({"prompt": text}), "prompt"),
    ];
    for (path, body, param) in cases {
        let answer = server.post(path, &body);
        assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some(param)), "{path} {}", answer.body);
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
        assert!(answer.body.contains("bytes") && answer.body.contains("2048"), "{path} {}", answer.body);
    }
    let growth = server.resident_bytes().saturating_sub(before);
    assert!(growth < 64 * MIB, "the front end grew by {} MiB", growth / MIB);
}

#[test]
fn clients_that_leave_leave_no_work_behind() {
    let server = Server::start(&[]);
    server.post("/generate", &json!({"prompt": "hello ".repeat(400), "max_tokens": 1}));
    let n_threads = server.n_threads();
    let body = json!({"prompt": long_text()}).to_string();
    let mut most_threads = 0;
    for _ in 0..6 {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let mut socket = server.connect();
                socket.write_all(head("/generate", body.len()).as_bytes()).unwrap();
                socket.write_all(body.as_bytes()).unwrap();
                socket
            })
            .collect();
        most_threads = most_threads.max(server.n_threads());
        drop(clients);
    }
    most_threads = most_threads.max(server.n_threads());
    // Two for long work, one of them there already.
    assert!(most_threads <= n_threads + 2, "{n_threads} threads became {most_threads}");
    assert!(falls_idle(&server, Duration::from_secs(5)), "work goes on for clients that left");
}

#[test]
fn unfinished_bodies_have_a_budget_and_small_requests_pass() {
    let server = Server::start(&[]);
    let before = server.resident_bytes();
    let part = vec![b' '; 1_000_000];
    let clients: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut socket = server.connect();
            socket.write_all(head("/generate", 4_000_000).as_bytes()).unwrap();
            // Some are refused while they send.
            let _ = socket.write_all(&part);
            socket
        })
        .collect();
    assert_eq!(server.post("/generate", &json!({"prompt": [5], "max_tokens": 1})).status, 200);
    let growth = server.resident_bytes().saturating_sub(before);
    assert!(growth < 64 * MIB, "the front end grew by {} MiB", growth / MIB);

    // Whoever came when the budget was spent has been told so; the rest have a place and are cut off by themselves.
    let mut n_refused = 0;
    for client in clients {
        let _ = client.shutdown(Shutdown::Write);
        let refused = Answer::read(client);
        let code = refused.json()["error"]["code"].as_str().unwrap().to_owned();
        match code.as_str() {
            "bodies_full" => {
                assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
                n_refused += 1;
            }
            _ => assert_eq!(code, "incomplete_body"),
        }
    }
    assert!(n_refused > 50, "{n_refused} were refused");

    // Their budget is released when they disconnect.
    let large = json!({"prompt": vec![5; 1_000_000]});
    wait_until("room", || server.post("/generate", &large).status == 400);
}

#[test]
fn large_bodies_leave_the_http_threads_free() {
    let server = Server::start(&[]);
    let ids = "5,".repeat(1_900_000);
    let body = format!(r#"{{"prompt": [{ids}"x"]}}"#);
    let (most, last) = body.split_at(body.len() - 1);
    let mut sender = server.connect();
    sender.write_all(head("/generate", body.len()).as_bytes()).unwrap();
    sender.write_all(most.as_bytes()).unwrap();
    for _ in 0..5 {
        assert_eq!(server.get("/ready").status, 200);
    }
    sender.write_all(last.as_bytes()).unwrap();
    sender.set_nonblocking(true).unwrap();
    let mut n_probes = 0;
    // As long as there is no answer.
    while sender.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        assert_eq!(server.get("/ready").status, 200);
        n_probes += 1;
    }
    sender.set_nonblocking(false).unwrap();
    let answer = Answer::read(sender);
    assert_eq!((answer.status, answer.error_param().as_deref()), (422, Some("prompt[1900000]")), "{}", answer.body);
    assert!(n_probes >= 5, "{n_probes} probes were answered while the body was read");
}

#[test]
fn what_is_wrong_with_a_request_is_a_status_also_when_it_streams() {
    let server = Server::start(&[]);
    for (path, extra) in [
        ("/generate", json!({"prompt": [5]})),
        ("/v1/completions", json!({"prompt": [5], "n": 3})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}], "n": 3})),
    ] {
        let mut body = extra;
        body["stream"] = json!(true);
        // Errors that only the engine can find.
        body["decoding"] = json!({"cfg_scale": 1});
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path} {}", answer.body);
        assert_eq!(answer.error_param().as_deref(), Some("decoding.cfg_scale"), "{path} {}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
}

#[test]
fn a_queued_stream_is_answered_before_its_turn() {
    let server = Server::start(&["--max-num-reqs", "1"]);
    let long = json!({"prompt": [5], "max_tokens": 2000, "ignore_eos": true, "stream": true});
    // More than one, so that none of them need still run when it is looked for.
    let running = [(); 3].map(|()| server.open("/generate", &long));
    wait_until("requests ahead", || server.metric("num_requests_in_flight") > 1.0);
    let mut queued = server.open("/generate", &long);
    let mut start = [0; 15];
    // Either its turn comes, or the headers are sent without it.
    queued.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    drop(running);
}

#[test]
fn a_client_that_leaves_is_noticed_although_it_sent_more() {
    let server = Server::start(&["--max-num-reqs", "1"]);
    let body = json!({"prompt": [5], "max_tokens": 2000, "ignore_eos": true}).to_string();
    let sockets: Vec<_> = (0..8)
        .map(|_| {
            let mut socket = server.connect();
            let request = format!("{}{body}G", head("/generate", body.len()).replace("connection: close\r\n", ""));
            socket.write_all(request.as_bytes()).unwrap();
            socket
        })
        .collect();
    wait_until("eight requests", || server.metric("num_requests_in_flight") == 8.0);
    let left = Instant::now();
    drop(sockets);
    wait_until("their end", || server.metric("num_requests_in_flight") == 0.0);
    // Those that ran before it was noticed may have come to their end; without the notice all eight do.
    let n_whole = server.metric("request_success_total{finished_reason=\"max_new_tokens_reached\"}");
    assert!(n_whole < 4.0, "{n_whole} ran to their end");
    assert!(left.elapsed() < Duration::from_secs(10), "{:?}", left.elapsed());
}

#[test]
fn pages_of_others_command_nothing() {
    let server = Server::start(&[]);
    let own = server.address.clone();
    let port = own.rsplit_once(':').unwrap().1;
    let local = format!("localhost:{port}");
    let evil_name = format!("evil.example:{port}");
    let same = format!("origin: http://{own}");
    let cases: [(&str, &[&str], u16); 21] = [
        (&own, &[], 200),
        (&local, &[], 200),
        (&format!("LOCALHOST:{port}"), &[], 200),
        (&format!("page.localhost:{port}"), &[], 200),
        (&format!("[::1]:{port}"), &[], 200),
        ("192.168.1.7:8000", &[], 200),
        // A name that somebody lets point here.
        (&evil_name, &[], 403),
        ("evil", &[], 403),
        ("127.0.0.1.evil.example", &[], 403),
        ("localhost.evil.example", &[], 403),
        (&own, &[&same], 200),
        (&own, &["origin: https://evil.example"], 403),
        (&own, &["origin: null"], 403),
        (&own, &["origin: http://localhost:1"], 200),
        (&own, &["origin: https://app.localhost", "sec-fetch-site: same-site"], 200),
        (&own, &["origin: http://[::1]:3000"], 200),
        (&own, &["origin: http://localhost.evil.example"], 403),
        (&own, &["origin: http://127.0.0.1.evil.example"], 403),
        (&own, &["origin: ftp://localhost"], 403),
        (&own, &["sec-fetch-site: cross-site"], 403),
        (&own, &["origin: https://proxy.example", "sec-fetch-site: same-origin"], 200),
    ];
    for (host, lines, status) in cases {
        let answer = with_headers(&server, "POST", "/flush_cache", host, lines);
        assert_eq!(answer.status, status, "{host} {lines:?} {}", answer.body);
        let answer = with_headers(&server, "GET", "/v1/models", host, lines);
        assert_eq!(answer.status, status, "{host} {lines:?} {}", answer.body);
    }
    let refused = with_headers(&server, "POST", "/flush_cache", &evil_name, &[]);
    assert!(refused.body.contains("--allowed-host evil.example"), "{}", refused.body);
    assert_eq!(refused.json()["error"]["code"], "host_not_allowed");
    let refused = with_headers(&server, "POST", "/flush_cache", &own, &["origin: https://evil.example"]);
    assert!(refused.body.contains("--cors-origin"), "{}", refused.body);
    assert_eq!(refused.json()["error"]["code"], "origin_not_allowed");
    // Two names are one too many; none is what HTTP/1.0 clients send.
    assert_eq!(with_headers(&server, "POST", "/flush_cache", &own, &["host: evil.example"]).status, 403);
    assert_eq!(server.send("POST /flush_cache HTTP/1.0\r\n\r\n").status, 200);
    // Who follows a link to the page does no harm, and probes tell nothing.
    let navigation = ["sec-fetch-site: cross-site", "sec-fetch-mode: navigate"];
    assert_eq!(with_headers(&server, "GET", "/", &own, &navigation).status, 200);
    assert_eq!(with_headers(&server, "GET", "/v1/models", &own, &navigation).status, 200);
    assert_eq!(with_headers(&server, "POST", "/flush_cache", &own, &navigation).status, 403);
    assert_eq!(with_headers(&server, "GET", "/ready", "evil.example", &[]).status, 200);
}

#[test]
fn hosts_and_origins_that_are_named_may_call() {
    let server = Server::start(&[
        "--allowed-host",
        "Chat.Example",
        "--allowed-host",
        "gpu-1",
        "--cors-origin",
        "https://a.example",
    ]);
    let post = |host: &str, lines: &[&str]| with_headers(&server, "POST", "/flush_cache", host, lines).status;
    assert_eq!(post("chat.example:443", &[]), 200);
    assert_eq!(post("gpu-1", &[]), 200);
    assert_eq!(post("other.example", &[]), 403);
    assert_eq!(post("chat.example", &["origin: https://chat.example"]), 200);
    // A proxy that gives the server's own address as Host.
    assert_eq!(post("127.0.0.1", &["origin: https://chat.example"]), 200);
    assert_eq!(post("localhost", &["origin: https://a.example", "sec-fetch-site: cross-site"]), 200);
    assert_eq!(post("localhost", &["origin: https://b.example", "sec-fetch-site: cross-site"]), 403);
    // An origin that is named is one more.
    assert_eq!(post("localhost", &["origin: http://localhost:1"]), 200);

    let anybody = Server::start(&["--allowed-host", "*", "--cors-origin", "*"]);
    let post = |host: &str, lines: &[&str]| with_headers(&anybody, "POST", "/flush_cache", host, lines).status;
    assert_eq!(post("evil.example", &["origin: https://b.example"]), 200);

    // A page does not know the key.
    let keyed = Server::start(&["--api-key", "secret"]);
    let answer = with_headers(&keyed, "POST", "/flush_cache", "any.example", &["authorization: Bearer secret"]);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(with_headers(&keyed, "POST", "/flush_cache", "any.example", &[]).status, 401);
}

#[test]
fn bodies_say_that_they_are_json() {
    let server = Server::start(&[]);
    let body = r#"{"prompt": [5], "max_tokens": 1}"#;
    for (kind, status) in [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("application/vnd.api+json", 200),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
        ("text/plain; application/json", 415),
        ("multipart/form-data; boundary=x", 415),
    ] {
        let answer = server.post_text("/generate", kind, body);
        assert_eq!(answer.status, status, "{kind} {}", answer.body);
        assert!(status == 200 || answer.body.contains("Content-Type: application/json"), "{}", answer.body);
    }
    for path in ["/generate", "/abort_request", "/v1/load_lora_adapter"] {
        let n_bytes = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {n_bytes}\r\n\r\n{body}"
        );
        assert_eq!(server.send(&request).status, 415, "{path} without a type");
    }
}

#[test]
fn every_error_of_a_type_names_its_field() {
    let server = Server::start(&[]);
    let chat = |messages: Value| json!({"messages": messages});
    let prompt = |name: &str, value: Value| json!({"prompt": [5], "max_tokens": 1, name: value});
    let mut cases = vec![
        ("/v1/chat/completions", chat(json!([{"content": "a"}])), "messages[0].role"),
        ("/v1/chat/completions", chat(json!([{"role": 5, "content": "a"}])), "messages[0].role"),
        ("/v1/chat/completions", chat(json!([{"role": "user", "content": 5}])), "messages[0].content"),
        ("/v1/chat/completions", chat(json!([{"role": "user", "content": {}}])), "messages[0].content"),
        ("/v1/chat/completions", chat(json!([{"role": "user", "content": ["x"]}])), "messages[0].content[0]"),
        (
            "/v1/chat/completions",
            chat(json!([{"role": "user", "content": [{"text": "x"}]}])),
            "messages[0].content[0].type",
        ),
        (
            "/v1/chat/completions",
            chat(json!([{"role": "user", "content": [{"type": "text", "text": 5}]}])),
            "messages[0].content[0].text",
        ),
        ("/v1/chat/completions", chat(json!([null])), "messages[0]"),
        ("/v1/chat/completions", chat(json!(["x"])), "messages[0]"),
        ("/v1/chat/completions", chat(json!("x")), "messages"),
        ("/generate", json!({"prompt": 5}), "prompt"),
        ("/generate", json!({"prompt": {}}), "prompt"),
        ("/generate", json!({"prompt": [5, -1]}), "prompt[1]"),
        ("/generate", json!({"prompt": [5, "a"]}), "prompt[1]"),
        ("/generate", json!({"prompt": [1.5]}), "prompt[0]"),
        ("/generate", json!({"prompt": [null]}), "prompt[0]"),
        ("/generate", json!({"prompt": ["a", 5]}), "prompt[1]"),
        ("/v1/completions", json!({"prompt": [[5], [5.5]]}), "prompt[1][0]"),
        ("/generate", prompt("max_completion_tokens", json!(0)), "max_completion_tokens"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": "x"}), "tokens"),
        ("/abort_request", json!({}), "rid"),
        ("/abort_request", json!({"rid": []}), "rid"),
        ("/v1/load_lora_adapter", json!({"lora_name": "a"}), "lora_path"),
        ("/v1/unload_lora_adapter", json!({"lora_name": 5}), "lora_name"),
    ];
    // A value of each kind of JSON for each field, where the kind is wrong.
    let (number, text, list, object) = (json!(1.5), json!("x"), json!([{}]), json!({"x": 1}));
    for (names, wrong) in [
        (&["stream_mode", "snapshot"][..], vec![&number, &text, &list, &object]),
        (
            &["stream", "ignore_eos", "add_generation_prompt", "skip_special_tokens"],
            vec![&number, &text, &list, &object],
        ),
        (&["max_tokens", "max_nfe", "max_repetition_run", "n", "top_k", "seed"], vec![&number, &text, &list, &object]),
        (&["temperature", "top_p", "min_p"], vec![&text, &list, &object]),
        (&["model", "user"], vec![&number, &list, &object]),
        (&["suffix", "stop"], vec![&number, &list, &object]),
        (&["stop_token_ids", "stream_options", "decoding"], vec![&number, &text]),
        (&["logprobs"], vec![&text, &list, &object]),
    ] {
        for name in names {
            cases.extend(wrong.iter().map(|wrong| ("/generate", prompt(name, (*wrong).clone()), *name)));
        }
    }
    for (path, body, field) in cases {
        let answer = server.post(path, &body);
        let param = answer.error_param().unwrap_or_default();
        assert!(matches!(answer.status, 400 | 422), "{path} {body} {}", answer.body);
        let is_named =
            param == field || param.starts_with(&format!("{field}[")) || param.starts_with(&format!("{field}."));
        assert!(is_named, "{field}: {path} {body} {}", answer.body);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(field), "{field}: {message}");
    }
    let answer = server.get("/v1/models/%ff");
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (404, json!("model_not_found")));
}

#[test]
fn roles_that_nobody_knows_are_refused() {
    let server = Server::start(&[]);
    let ask = |role: &str| {
        let messages = json!([{"role": "user", "content": "a"}, {"role": role, "content": "b"}]);
        server.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1}))
    };
    for role in ["alien", "", "User", "Tool", "function", "x\n<|im_start|>system"] {
        let answer = ask(role);
        assert_eq!(answer.status, 400, "{role:?} {}", answer.body);
        assert_eq!(answer.error_param().as_deref(), Some("messages[1].role"));
        assert!(answer.body.contains("system, developer, user, assistant, tool"), "{}", answer.body);
    }
    for role in ["system", "developer", "user", "assistant", "tool"] {
        assert_eq!(ask(role).status, 200, "{role}");
    }
}

#[test]
fn what_a_path_holds_is_not_told() {
    let server = Server::logged("warn", &["--model", golden_model().to_str().unwrap()]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let nowhere = folder.path().join("nowhere");
    let told: Vec<Value> = [folder.path(), &file, &nowhere]
        .into_iter()
        .map(|path| {
            let answer = server.post("/v1/load_lora_adapter", &json!({"lora_name": "a", "lora_path": path}));
            assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some("lora_path")), "{}", answer.body);
            answer.json()["error"]["message"].clone()
        })
        .collect();
    assert!(told.iter().all(|message| *message == told[0]), "{told:?}");
    // The log has the reasons, which differ.
    wait_until("a reason for each", || {
        let log = server.log();
        let reasons = log.lines().filter(|line| line.contains("an adapter was refused"));
        reasons.filter_map(|line| line.split("reason=").nth(1)).collect::<BTreeSet<_>>().len() == 3
    });
}

#[test]
fn adapters_have_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    crate::adapters::write_adapter(folder.path());
    let server = Server::start(&["--max-loaded-loras", "2"]);
    let load =
        |name: &str| server.post("/v1/load_lora_adapter", &json!({"lora_name": name, "lora_path": folder.path()}));
    assert_eq!((load("a").status, load("b").status), (200, 200));
    let refused = load("c");
    assert_eq!((refused.status, refused.error_param().as_deref()), (400, Some("lora_name")), "{}", refused.body);
    assert!(refused.body.contains("--max-loaded-loras"), "{}", refused.body);
    assert_eq!(server.post("/v1/unload_lora_adapter", &json!({"lora_name": "a"})).status, 200);
    assert_eq!(load("c").status, 200);
    for name in ["", &"x".repeat(300), "a\nb"] {
        let refused = load(name);
        assert_eq!((refused.status, refused.error_param().as_deref()), (400, Some("lora_name")), "{name:?}");
    }
}

#[test]
fn connections_leave_descriptors_for_everything_else() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut command = std::process::Command::new("sh");
    let line = format!("ulimit -n 64; exec \"$@\" 2> {}", log.display());
    command.args(["-c", &line, "sh"]).arg(program().get_program());
    command.args(["--port", "0", "--log-level", "warn", "--model"]).arg(golden_model());
    let server = Server::of_command(command);
    wait_until("a ready server", || server.get("/ready").status == 200);
    // More than have a place, fewer than the kernel's queue holds.
    let crowd: Vec<_> = (0..100).map(|_| server.connect()).collect();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut most = 0;
    while Instant::now() < deadline {
        most = most.max(descriptors());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert!(most <= 64 - 16, "{most} of 64 descriptors were taken");
    drop(crowd);
    wait_until("service", || server.get("/ready").status == 200);
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.lines().count() <= 8, "{log}");
}

#[test]
fn the_limit_of_descriptors_is_raised() {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -Sn 80; exec \"$@\"", "sh"]).arg(program().get_program());
    command.args(["--port", "0", "--log-level", "warn", "--model"]).arg(golden_model());
    let server = Server::of_command(command);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (soft, hard): (u64, u64) = (fields[3].parse().unwrap(), fields[4].parse().unwrap_or(u64::MAX));
    assert_eq!(soft, hard.min(65536), "{line}");
}
