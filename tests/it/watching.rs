//! Watching a server: health, metrics under every name that is promised, the dashboard, log lines of requests.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Server, golden_model, kill, long_stream, read_some, stop, wait_until};

fn names_of(metrics: &str) -> BTreeSet<&str> {
    metrics.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next()).collect()
}

#[test]
fn health_counts_requests_and_names_stages() {
    let server = Server::start(&[]);
    let health = server.get("/health").json();
    assert_eq!(health["stages"], json!(["frontend", "tokenizer", "engine", "detokenizer"]));
    assert_eq!((&health["entry_stage"], &health["running"]), (&json!("frontend"), &json!(true)));
    assert_eq!((&health["total_requests"], &health["pending_completions"]), (&json!(0), &json!(0)));
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "n": 2});
    assert_eq!(server.post("/v1/chat/completions", &body).status, 200);
    let mut open = server.open("/generate", &long_stream("denoise"));
    read_some(&mut open);
    wait_until("a running request", || server.get("/health").json()["request_states"]["running"] == 1);
    let health = server.get("/health").json();
    assert_eq!((&health["total_requests"], &health["pending_completions"]), (&json!(3), &json!(1)));
    assert_eq!(health["request_states"], json!({"pending": 0, "running": 1}));
}

#[test]
fn health_has_the_numbers_of_the_metrics() {
    let server = Server::start(&["--max-num-reqs", "1", "--heartbeat-interval-seconds", "0.1"]);
    let _open: Vec<_> = (0..40).map(|_| server.open("/generate", &long_stream("denoise"))).collect();
    let states = || server.get("/health").json()["request_states"].clone();
    wait_until("some that wait", || states()["running"] == 1 && states()["pending"].as_u64() > Some(2));
    // Nothing moves any more.
    stop(server.worker_pid().expect("a worker"));
    let health = server.get("/health").json();
    for (number, name) in [
        ("/requests/in_flight", "num_requests_in_flight"),
        ("/requests/running", "num_requests_running"),
        ("/requests/waiting", "num_requests_waiting"),
        ("/kv_pages/free", "kv_pages_free"),
        ("/kv_pages/total", "kv_pages_total"),
        ("/worker_restarts", "worker_restarts_total"),
    ] {
        assert_eq!(health.pointer(number).and_then(Value::as_f64), Some(server.metric(name)), "{number}: {health}");
    }
    let pending = health["request_states"]["pending"].as_u64().unwrap();
    assert!(pending > 0 && health["requests"]["in_flight"] == pending + 1, "{health}");
    // In another unit, and it grows.
    let age_ms = |health: &Value| health["last_step_age_ms"].as_u64().unwrap() as f64;
    let before = age_ms(&server.get("/health").json());
    let between = server.metric("last_step_age_seconds") * 1000.0;
    assert!((before..=age_ms(&server.get("/health").json())).contains(&between), "{before} {between}");
}

#[test]
fn health_is_503_while_the_engine_is_stuck() {
    let server = Server::start(&["--heartbeat-interval-seconds", "0.1", "--engine-heartbeat-timeout-seconds", "1"]);
    let worker = server.worker_pid().expect("a worker");
    kill(worker, Signal::STOP);
    let status_is = |status: u16, word: &str| {
        let health = server.get("/health");
        health.status == status && health.json()["status"] == word
    };
    wait_until("a stall", || status_is(503, "stalled"));
    let health = server.get("/health").json();
    assert!(health["reason"].as_str().unwrap().contains("silent"), "{health}");
    assert_eq!((&health["running"], &health["stages"][2]), (&json!(false), &json!("engine")));
    kill(worker, Signal::CONT);
    wait_until("its end", || status_is(200, "healthy"));
}

#[test]
fn metrics_have_the_names_that_vllms_readers_know() {
    let server = Server::start(&["--served-model-name", "ti\"ny"]);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 40, "ignore_eos": true, "stream": true});
    assert!(server.post("/generate", &body).is_done());
    wait_until("the engine's counters", || server.metric("generation_tokens_total") > 0.0);
    let text = server.get("/metrics").body;
    let value = |name: &str, labels: &str| -> f64 {
        let start = format!("vllm:{name}{{model_name=\"ti\\\"ny\"{labels}}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start} in {text}")).parse().unwrap()
    };
    for name in ["num_requests_running", "num_requests_waiting", "num_preemptions_total", "kv_cache_usage_perc"] {
        assert_eq!(value(name, ""), if name == "kv_cache_usage_perc" { value(name, "") } else { 0.0 }, "{name}");
    }
    assert_eq!((value("prompt_tokens_total", ""), value("generation_tokens_total", "")), (3.0, 40.0));
    assert_eq!(value("request_success_total", ",finished_reason=\"length\""), 1.0);
    assert_eq!(value("request_success_total", ",finished_reason=\"stop\""), 0.0);
    assert_eq!(value("e2e_request_latency_seconds_count", ""), 1.0);
    assert_eq!(value("time_to_first_token_seconds_count", ""), 1.0);
    assert_eq!(value("request_generation_tokens_sum", ""), 40.0);
    // Every token but those of the first commit.
    let n_intervals = value("inter_token_latency_seconds_count", "");
    assert!((1.0..40.0).contains(&n_intervals), "{n_intervals}");
    assert!(value("inter_token_latency_seconds_sum", "") <= value("e2e_request_latency_seconds_sum", ""));
}

#[test]
fn generated_tokens_are_those_of_usage_and_decided_positions_are_counted_apart() {
    let server = Server::start(&[]);
    let texts: Vec<String> = (0..12).map(|n| format!("hi {n}")).collect();
    let mut n_written = 0;
    for (n, text) in texts.iter().enumerate() {
        let mut body = json!({"prompt": text, "max_tokens": 30, "seed": n, "ignore_eos": true});
        let whole = server.post("/v1/completions", &body).json();
        n_written += whole["usage"]["completion_tokens"].as_u64().unwrap();
        // Again, ended by a stop string in the middle of a block, and by an end token.
        let text = whole["choices"][0]["text"].as_str().unwrap();
        let stop: String = text.chars().skip(3).take(2).collect();
        body["stop"] = json!([stop]);
        body["stream"] = json!(true);
        let frames = server.post("/v1/completions", &body).frames();
        n_written += frames.last().unwrap()["usage"]["completion_tokens"].as_u64().unwrap();
        let ids =
            server.post("/generate", &json!({"prompt": texts[n], "max_tokens": 30, "seed": n, "ignore_eos": true}));
        n_written += ids.json()["usage"]["completion_tokens"].as_u64().unwrap();
        let end = ids.json()["token_ids"][2].clone();
        let body =
            json!({"prompt": texts[n], "max_tokens": 30, "seed": n, "ignore_eos": true, "stop_token_ids": [end]});
        n_written += server.post("/generate", &body).json()["usage"]["completion_tokens"].as_u64().unwrap();
    }
    wait_until("the tokens of usage", || server.metric("generation_tokens_total") >= n_written as f64);
    assert_eq!(server.metric("generation_tokens_total"), n_written as f64);
    let text = server.get("/metrics").body;
    let of_vllm = text.lines().find(|line| line.starts_with("vllm:generation_tokens_total{")).unwrap();
    assert!(of_vllm.ends_with(&format!(" {n_written}")), "{of_vllm}");
    // Those behind the end of an answer, too.
    assert!(server.metric("decided_positions_total") > n_written as f64);
}

#[test]
fn metrics_have_both_processes() {
    let server = Server::start(&[]);
    let text = server.get("/metrics").body;
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    for prefix in ["process_", "diffulex_worker_"] {
        assert!(value(&format!("{prefix}cpu_seconds_total")) < 60.0);
        assert!(value(&format!("{prefix}resident_memory_bytes")) > 1e6);
        assert!(value(&format!("{prefix}open_fds")) > 3.0);
        let age = now - value(&format!("{prefix}start_time_seconds"));
        assert!((-2.0..120.0).contains(&age), "{prefix}: started {age} s ago");
    }
    let difference = value("process_resident_memory_bytes") - server.resident_bytes() as f64;
    assert!(difference.abs() < 64e6, "{difference}");
}

/// Names of metrics in an expression of PromQL.
fn metrics_in(expression: &str) -> impl Iterator<Item = &str> {
    let is_name = |character: char| character.is_ascii_alphanumeric() || "_:".contains(character);
    let words = expression.split(move |character| !is_name(character));
    words.filter(|word| ["diffulex_", "vllm:", "process_"].iter().any(|prefix| word.starts_with(prefix)))
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if ["expr", "query", "definition"].contains(&name.as_str()) => {
                        found.push(text.clone());
                    }
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_names_metrics_that_exist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/grafana/diffulex.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    let server = Server::start(&[]);
    let body = json!({"prompt": [5, 6], "max_tokens": 20, "stream": true, "ignore_eos": true});
    assert!(server.post("/generate", &body).is_done());
    wait_until("the engine's counters", || server.metric("generation_tokens_total") > 0.0);
    let text = server.get("/metrics").body;
    let names = names_of(&text);
    let asked: BTreeSet<&str> = found.iter().flat_map(|expression| metrics_in(expression)).collect();
    assert!(asked.len() > 20, "{asked:?}");
    let missing: Vec<_> = asked.difference(&names).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_request_is_one_line_of_json_with_status_tokens_nfe_and_times() {
    let server = Server::logged("info", &["--log-format", "json", "--model", golden_model().to_str().unwrap()]);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"messages": messages, "max_tokens": 4, "n": 3, "ignore_eos": true});
    let answer = server.post("/v1/chat/completions", &body).json();
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "hi", "temperature": 9})).status, 400);
    // Refused by the engine, after it was accepted.
    assert_eq!(server.post("/generate", &json!({"prompt": [5], "decoding": {"accept_rule": "nobody"}})).status, 400);
    let mut left = server.open("/generate", &long_stream("denoise"));
    read_some(&mut left);
    drop(left);

    let lines = || -> Vec<Value> {
        server.log().lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    };
    let of_requests = || lines().into_iter().filter(|line| line.get("route").is_some()).collect::<Vec<_>>();
    wait_until("four lines", || of_requests().len() >= 4);
    let lines = of_requests();
    let shown = |line: &Value| format!("{} {} {}", line["message"], line["route"], line["status"]).replace('"', "");
    let mut told: Vec<String> = lines.iter().map(shown).collect();
    told.sort();
    assert_eq!(
        told,
        [
            "answered /v1/chat/completions 200",
            "cancelled /generate 499",
            told[2].as_str(),
            "refused /v1/completions 400"
        ]
    );
    assert!(told[2].ends_with("/generate 400"), "{told:?}");
    let answered = lines.iter().find(|line| line["message"] == "answered").unwrap();
    let id = answer["id"].as_str().unwrap().trim_start_matches("chatcmpl-");
    assert_eq!(
        (&answered["id"], &answered["choices"], &answered["answer_tokens"]),
        (&json!(id), &json!(3), &json!(12))
    );
    assert_eq!((&answered["finish"], &answered["level"]), (&json!("max_new_tokens_reached"), &json!("INFO")));
    assert!(answered["nfe"].as_u64() >= Some(3), "{answered}");
    let ms = |name: &str| answered[name].as_f64().unwrap_or_else(|| panic!("{name} in {answered}"));
    assert!(ms("queue_ms") <= ms("total_ms") && ms("first_ms") <= ms("total_ms"), "{answered}");
}
