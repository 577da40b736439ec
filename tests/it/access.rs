//! Who is let in: what a key guards, and what a page of another origin gets.

use crate::harness::{Answer, Ending, Server, golden_model, program, wait_until};

const METHODS: [&str; 9] = ["GET", "POST", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "FOO"];

fn probe(server: &Server, method: &str, path: &str, fields: &str) -> Answer {
    let body = r#"{"prompt": [5], "max_tokens": 1}"#;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n{fields}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    Answer::parse(&server.raw(request.as_bytes(), Ending::Waits))
}

#[test]
fn no_spelling_of_a_path_goes_around_the_key() {
    let server = Server::start(&["--api-key", "secret"]);
    let guarded = [
        "/metrics",
        "/version",
        "/v1/models",
        "/v1/models/sdar",
        "/health_generate",
        "//v1/models",
        "/V1/models",
        "/v1/models/",
        "/v1//models",
        "/%2e/v1/models",
        "/v1/%6dodels",
        "/./v1/models",
        "/health/../metrics",
        "/health/..%2fmetrics",
        "/health%2f..%2fmetrics",
        "/health;/metrics",
        "/metrics?",
        "/metrics?api_key=secret&key=secret",
        "/metrics%00",
        "/ready/",
        "/Health",
        "/playground.js/../metrics",
        "/playground.js%2f..%2fmetrics",
        "/admin",
        "/flush_cache",
        "/abort_request",
        "/start_profile",
        "/stop_profile",
        "/start_request_profile",
        "/stop_request_profile",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/generate",
        "/v1/completions",
        "/v1/chat/completions",
        "/nobody",
        "*",
        "http://127.0.0.1/metrics",
    ];
    for path in guarded {
        for method in METHODS {
            let status = probe(&server, method, path, "").status;
            assert!(matches!(status, 400 | 401), "{method} {path}: {status}");
        }
    }
    // Open routes accept the key, and only their own method.
    for path in ["/", "/playground.js", "/playground.css", "/health", "/ready", "/health?x=/metrics"] {
        for method in METHODS {
            let status = probe(&server, method, path, "").status;
            let expected = if matches!(method, "GET" | "HEAD") { 200 } else { 405 };
            assert_eq!(status, expected, "{method} {path}");
        }
    }
}

#[test]
fn only_the_whole_key_is_the_key() {
    let server = Server::start(&["--api-key", "secret"]);
    let status = |fields: &str| probe(&server, "GET", "/metrics", fields).status;
    for right in [
        "authorization: Bearer secret\r\n",
        "authorization: bearer secret\r\n",
        "x-api-key: secret\r\n",
        "authorization: Bearer no\r\nx-api-key: secret\r\n",
    ] {
        assert_eq!(status(right), 200, "{right}");
    }
    for wrong in [
        "",
        "authorization: Bearer \r\n",
        "authorization: Bearer secre\r\n",
        "authorization: Bearer secrets\r\n",
        "authorization: Bearer SECRET\r\n",
        "authorization: Basic secret\r\n",
        "authorization: Bearer\r\n",
        "authorization: Bearer secret secret\r\n",
        "x-api-key: \r\n",
        "x-api-key: Bearer secret\r\n",
        "cookie: x-api-key=secret\r\n",
        // Of two, the first counts.
        "authorization: Bearer no\r\nauthorization: Bearer secret\r\n",
    ] {
        assert_eq!(status(wrong), 401, "{wrong}");
    }
}

#[test]
fn the_key_is_not_among_the_workers_arguments() {
    const KEY: &str = "a-very-special-key";

    let as_argument = Server::start(&["--api-key", KEY]);
    let mut command = program();
    command.args(["--port", "0", "--log-level", "warn", "--model"]).arg(golden_model()).env("DIFFULEX_API_KEY", KEY);
    let as_variable = Server::of_command(command);
    for server in [as_argument, as_variable] {
        wait_until("a ready server", || server.get("/ready").status == 200);
        let worker = server.worker_pid().expect("a worker");
        for file in ["cmdline", "environ"] {
            let text = std::fs::read(format!("/proc/{worker}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains(KEY), "{file}");
        }
    }
}

#[test]
fn a_page_of_another_origin_reads_nothing_and_the_playground_runs_no_script_but_its_own() {
    let server = Server::start(&[]);
    for path in ["/", "/playground.js", "/v1/models", "/health", "/metrics", "/nobody"] {
        let answer = probe(&server, "GET", path, "origin: https://evil.example\r\n");
        assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
    }
    for path in ["/", "/playground.js", "/playground.css"] {
        let answer = server.get(path);
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        let policy = answer.header("content-security-policy").unwrap_or_else(|| panic!("{path} has no policy"));
        assert!(policy.contains("default-src 'self'") && !policy.contains("unsafe"), "{path}: {policy}");
    }
    // A path is echoed as JSON, never as a page.
    let echoed = server.get("/%3Cscript%3Ealert(1)%3C/script%3E");
    assert_eq!((echoed.status, echoed.header("content-type")), (404, Some("application/json")));
}
