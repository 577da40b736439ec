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
    for path in
        ["/", "/playground.js", "/playground.css", "/health", "/ready", "/ready/", "//health", "/health?x=/metrics"]
    {
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
fn any_key_opens_the_server_and_each_is_a_caller() {
    let mut command = program();
    command.args(["--port", "0", "--log-level", "warn", "--model"]).arg(golden_model());
    command.env("DIFFULEX_API_KEY", "first,second");
    let of_variable = Server::of_command(command);
    let of_flags = Server::start(&["--api-key", "first", "--api-key", "second"]);
    for server in [of_variable, of_flags] {
        let status = |key: &str| probe(&server, "GET", "/metrics", &format!("x-api-key: {key}\r\n")).status;
        assert_eq!([status("first"), status("second")], [200, 200]);
        for wrong in ["first,second", "third", "firs", ""] {
            assert_eq!(status(wrong), 401, "{wrong}");
        }
        let create = |fields: &str| {
            let head = format!("POST /v1/contexts HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{fields}");
            server.send(&format!("{head}content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}")).json()
        };
        let n_contexts = |fields: &str| {
            probe(&server, "GET", "/v1/contexts", fields).json()["data"].as_array().expect("a list").len()
        };
        // The key that opens counts, wherever another one is written.
        create("authorization: Bearer second\r\nx-api-key: third\r\n");
        create("authorization: Bearer third\r\nx-api-key: second\r\n");
        assert_eq!(n_contexts("authorization: Bearer second\r\n"), 2);
        assert_eq!(n_contexts("x-api-key: second\r\n"), 2);
        assert_eq!(n_contexts("authorization: Bearer first\r\n"), 0);
    }
}

/// Content types that a page may send without asking first (Fetch, 2.2.2), others, and none.
const CONTENT_TYPES: [&str; 9] = [
    "",
    "content-type: application/x-www-form-urlencoded\r\n",
    "content-type: text/plain\r\n",
    "content-type: text/plain;charset=UTF-8\r\n",
    "content-type: multipart/form-data; boundary=x\r\n",
    "content-type: application/octet-stream\r\n",
    "content-type: text/html\r\n",
    "content-type: application/json\r\n",
    "content-type: application/json; charset=utf-8\r\n",
];

/// Sends `body` with `lines` alone for a head.
fn bare(server: &Server, path: &str, lines: &str, body: &str) -> Answer {
    let head = format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{lines}");
    server.send(&format!("{head}content-length: {}\r\n\r\n{body}", body.len()))
}

#[test]
fn a_client_of_ollamas_routes_needs_no_content_type_and_a_page_of_another_origin_gets_through_with_none() {
    let open = Server::start(&["--served-model-name", "tiny"]);
    let keyed = Server::start(&["--served-model-name", "tiny", "--api-key", "secret"]);
    let calls = [
        (
            "/api/chat",
            r#"{"model":"tiny","messages":[{"role":"user","content":"a"}],"stream":false,"options":{"num_predict":1}}"#,
        ),
        ("/api/generate", r#"{"model":"tiny","prompt":"a","stream":false,"options":{"num_predict":1}}"#),
        ("/api/embed", r#"{"model":"tiny","input":"a"}"#),
        ("/api/embeddings", r#"{"model":"tiny","prompt":"a"}"#),
        ("/api/show", r#"{"model":"tiny"}"#),
        ("/generate", r#"{"prompt":[5],"max_tokens":1}"#),
        ("/v1/completions", r#"{"prompt":[5],"max_tokens":1}"#),
    ];
    // What browsers add to what a page of another origin sends. Older ones know no Sec-Fetch-Site, and pages over plain HTTP send none.
    let pages = [
        "origin: https://evil.example\r\n",
        "origin: http://evil.example\r\nsec-fetch-site: cross-site\r\n",
        "origin: https://evil.example\r\nsec-fetch-site: same-site\r\n",
        "origin: null\r\n",
        "origin: null\r\nsec-fetch-site: cross-site\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
        "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n",
        "origin: https://evil.example\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n",
    ];
    // Typed into the address bar, which sends no POST, or of the server's own page.
    let own = ["sec-fetch-site: none\r\n", "sec-fetch-site: same-origin\r\n", "origin: http://127.0.0.1\r\n"];
    for (path, body) in calls {
        let is_ollamas = path.starts_with("/api/");
        for kind in CONTENT_TYPES {
            let is_json = kind.contains("application/json") || kind.is_empty() && is_ollamas;
            let what = format!("{path} {kind}");
            let expected = if is_json || is_ollamas { 200 } else { 415 };
            assert_eq!(bare(&open, path, kind, body).status, expected, "{what}");
            assert_eq!(bare(&keyed, path, kind, body).status, 401, "{what}");
            let with_key = format!("{kind}authorization: Bearer secret\r\n");
            assert_eq!(bare(&keyed, path, &with_key, body).status, expected, "{what}");
            for page in pages {
                assert_eq!(bare(&open, path, &format!("{kind}{page}"), body).status, 403, "{what} {page}");
                assert_eq!(bare(&keyed, path, &format!("{kind}{page}"), body).status, 401, "{what} {page}");
            }
            for page in own {
                let expected = if is_json { 200 } else { 415 };
                assert_eq!(bare(&open, path, &format!("{kind}{page}"), body).status, expected, "{what} {page}");
            }
        }
    }
}

#[test]
fn a_body_that_is_compressed_is_refused_by_its_encoding_and_a_mark_of_its_byte_order_skipped() {
    let server = Server::start(&[]);
    let json = "content-type: application/json\r\n";
    let body = r#"{"prompt":[5],"max_tokens":1}"#;
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, identity", "x-nothing"] {
        for path in ["/generate", "/v1/completions", "/api/show"] {
            let refused = bare(&server, path, &format!("{json}content-encoding: {encoding}\r\n"), "\x1f\x08 bytes");
            assert_eq!(refused.status, 415, "{path} {encoding}: {}", refused.body);
            assert!(refused.body.contains(encoding) && refused.body.contains("Content-Encoding"), "{}", refused.body);
            assert_eq!(refused.header("accept-encoding"), Some("identity"));
            let code = refused.json()["error"]["code"].clone();
            assert!(path.starts_with("/api/") || code == "unsupported_content_encoding", "{path}: {code}");
        }
    }
    for plain in ["identity", "Identity", ""] {
        let answer = bare(&server, "/generate", &format!("{json}content-encoding: {plain}\r\n"), body);
        assert_eq!(answer.status, 200, "{plain}: {}", answer.body);
    }
    for path in ["/generate", "/v1/completions"] {
        let answer = bare(&server, path, json, &format!("\u{feff}{body}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let twice = bare(&server, path, json, &format!("\u{feff}\u{feff}{body}"));
        assert!(matches!(twice.status, 400 | 422), "{}", twice.body);
    }
    // One that is parsed on another thread.
    let large = format!("\u{feff}{}{body}", " ".repeat(100_000));
    assert_eq!(bare(&server, "/generate", json, &large).status, 200);
}

#[test]
fn names_that_nobody_can_register_are_allowed_where_other_machines_call() {
    let exposed = Server::start(&["--host", "0.0.0.0", "--allowed-host", ".ts.net", "--allowed-host", "*.lab.example"]);
    let address = format!("127.0.0.1:{}", exposed.address.rsplit_once(':').unwrap().1);
    let local = Server::start(&["--allowed-host", ".ts.net"]);
    let status = |address: &str, lines: &str| {
        let mut socket = std::net::TcpStream::connect(address).unwrap();
        let request = format!("GET /v1/models HTTP/1.1\r\n{lines}connection: close\r\n\r\n");
        std::io::Write::write_all(&mut socket, request.as_bytes()).unwrap();
        Answer::read(socket).status
    };
    let unregistered = [
        "host.docker.internal:8000",
        "host.containers.internal",
        "Gateway.Docker.INTERNAL",
        "studio.local",
        "llm.default.svc",
        "llm.default.svc.cluster.local.",
        "box",
    ];
    for name in unregistered {
        assert_eq!(status(&address, &format!("host: {name}\r\n")), 200, "{name}");
        assert_eq!(status(&local.address, &format!("host: {name}\r\n")), 403, "{name}");
        // A page of such a name is another's page.
        let page = format!("host: {address}\r\norigin: http://{name}\r\n");
        assert_eq!(status(&address, &page), 403, "{name}");
    }
    for name in ["a.ts.net", "b.a.ts.net:443", "A.TS.NET", "x.lab.example"] {
        assert_eq!(status(&address, &format!("host: {name}\r\n")), 200, "{name}");
    }
    assert_eq!(status(&local.address, "host: a.ts.net\r\n"), 200);
    for name in [
        "evil.example",
        "ts.net",
        "xts.net",
        "a.ts.net.evil.example",
        "internal.evil.example",
        "xinternal.example",
        "docker.internal.evil",
        "local.example",
        "svc.cluster.local.evil.example",
        ".internal",
        ".local",
        "lab.example",
    ] {
        assert!(matches!(status(&address, &format!("host: {name}\r\n")), 400 | 403), "{name}");
    }
    // A suffix names servers, and not whose pages may call.
    assert_eq!(status(&address, &format!("host: {address}\r\norigin: https://a.ts.net\r\n")), 403);
}

#[test]
fn the_name_that_it_listens_on_is_allowed() {
    // Not an IP address to the server, and one to every resolver.
    let server = Server::start(&["--host", "127.1"]);
    for (host, status) in [("127.1", 200), ("127.1:8000", 200), ("127.2", 403)] {
        let request = format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = server.send(&request);
        assert_eq!(answer.status, status, "{host} {}", answer.body);
    }
}

#[test]
fn pages_of_apps_and_extensions_may_call_and_more_origins_are_added_to_these() {
    let plain = Server::start(&[]);
    let more = Server::start(&["--cors-origin", "https://a.example", "--cors-origin", "https://b.example:8443"]);
    let ask = |server: &Server, origin: &str| {
        let answer = bare(
            server,
            "/v1/completions",
            &format!("content-type: application/json\r\norigin: {origin}\r\nsec-fetch-site: cross-site\r\n"),
            r#"{"prompt":[5],"max_tokens":1}"#,
        );
        let may_read = answer.header("access-control-allow-origin") == Some(origin);
        (answer.status, may_read)
    };
    for origin in [
        "app://obsidian.md",
        "tauri://localhost",
        "http://tauri.localhost",
        "https://tauri.localhost",
        "file://",
        "vscode-webview://1a2b",
        "vscode-file://vscode-app",
        "chrome-extension://abcdefgh",
        "moz-extension://0-1-2",
        "safari-web-extension://a-b",
        "http://localhost:3000",
    ] {
        assert_eq!(ask(&plain, origin), (200, true), "{origin}");
        assert_eq!(ask(&more, origin), (200, true), "{origin}");
    }
    for origin in ["https://a.example", "https://b.example:8443"] {
        assert_eq!(ask(&more, origin), (200, true), "{origin}");
        assert_eq!(ask(&plain, origin), (403, false), "{origin}");
    }
    // Sandboxed frames of any page have the origin `null`.
    for origin in [
        "null",
        "https://evil.example",
        "https://b.example",
        "https://a.example.evil.example",
        "https://evil.example?app://x",
        "http://app.evil.example",
        "ftp://localhost",
        "app:obsidian.md",
        "data:text/html",
        "blob:https://evil.example",
    ] {
        assert_eq!(ask(&plain, origin), (403, false), "{origin}");
        assert_eq!(ask(&more, origin), (403, false), "{origin}");
    }
}

#[test]
fn slashes_too_many_change_nothing_and_a_path_that_is_nearly_one_is_named() {
    let server = Server::start(&["--served-model-name", "org/tiny"]);
    let body = r#"{"prompt":[5],"max_tokens":1}"#;
    let json = "content-type: application/json\r\n";
    for path in ["//v1/completions", "/v1/completions/", "/v1//completions", "///v1///completions//?x=//"] {
        assert_eq!(bare(&server, path, json, body).status, 200, "{path}");
    }
    for path in ["/v1/models/", "//v1/models", "//v1/models/org/tiny", "//health", "/health/", "//", "/api//tags/"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    // A model's name keeps its slashes.
    assert_eq!(server.get("/v1/models/org//tiny").status, 404);
    for (path, meant) in [
        ("/v1/v1/completions", "/v1/completions"),
        ("/v1/v1/v1/chat/completions", "/v1/chat/completions"),
        ("//v1/v1/completions/", "/v1/completions"),
        ("/v1/api/chat", "/api/chat"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/chat", "/api/chat"),
        ("/v1/generate", "/generate"),
    ] {
        let answer = bare(&server, path, json, body);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains(&format!("; there is {meant}\"")), "{path}: {}", answer.body);
    }
    let lost = bare(&server, "/v1/nobody", json, body);
    assert!(lost.status == 404 && !lost.body.contains("; there is"), "{}", lost.body);
    // Rules hold for the path that is meant.
    let evil = "origin: https://evil.example\r\n";
    for path in ["//v1/completions", "/health/../v1/completions", "//health/..//v1/completions", "/v1/completions/"] {
        let status = bare(&server, path, &format!("{json}{evil}"), body).status;
        assert_eq!(status, 403, "{path}");
    }
}

/// Tokens of a prompt that a request with `key` finds in the prefix cache.
fn cached(server: &Server, key: &str, salt: Option<&str>) -> u64 {
    let prompt: Vec<u32> = (5..69).collect();
    let mut body = serde_json::json!({"prompt": prompt, "max_tokens": 4, "temperature": 0});
    if let Some(salt) = salt {
        body["cache_salt"] = salt.into();
    }
    let answer = with_key(server, key, "/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    assert_eq!(answer["diffulex"]["cached_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]);
    answer["diffulex"]["cached_tokens"].as_u64().unwrap()
}

fn with_key(server: &Server, key: &str, path: &str, body: &serde_json::Value) -> Answer {
    let body = body.to_string();
    server.send(&format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nx-api-key: {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ))
}

#[test]
fn with_several_keys_each_has_its_own_cached_prefixes() {
    let keys = ["--api-key", "a", "--api-key", "b", "--page-size", "8"];
    let server = Server::start(&keys);
    assert_eq!(cached(&server, "a", None), 0);
    assert!(cached(&server, "a", None) > 0);
    assert_eq!(cached(&server, "b", None), 0);
    // The request's own salt divides further, and is no way to another key's.
    assert_eq!(cached(&server, "a", Some("s")), 0);
    assert!(cached(&server, "a", Some("s")) > 0);
    assert_eq!(cached(&server, "b", Some("s")), 0);
    // A context and its forks are of one caller.
    let post = |path: &str, body: serde_json::Value| with_key(&server, "a", path, &body).json();
    let context = post("/v1/contexts", serde_json::json!({"token_ids": (100..164).collect::<Vec<u32>>()}));
    let id = &context["context_id"];
    let fork = post(&format!("/v1/contexts/{id}/fork"), serde_json::json!({}));
    let fork = &fork["context_id"];
    let body = serde_json::json!({"prompt": [7], "max_tokens": 4});
    let answer = post(&format!("/v1/contexts/{fork}/generate"), body);
    let cached_tokens = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached_tokens.as_u64().is_some_and(|n_tokens| n_tokens >= 56), "{answer}");

    let shared = Server::start(&[&keys[..], &["--share-prefix-cache"]].concat());
    let one_key = Server::start(&["--api-key", "a", "--page-size", "8"]);
    for (server, second) in [(&shared, "b"), (&one_key, "a")] {
        assert_eq!(cached(server, "a", None), 0);
        assert!(cached(server, second, None) > 0);
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
