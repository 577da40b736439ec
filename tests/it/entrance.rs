//! Where clients come in: Unix sockets, sub-paths of proxies, and the addresses that proxies name.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Answer, DEADLINE, Server, golden_model, kill, program, wait_until};

/// A request over the socket `path`.
fn over(path: &Path, request: &str) -> Answer {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

fn get(path: &Path, route: &str) -> Answer {
    over(path, &format!("GET {route} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
}

/// A server of the tiny checkpoint on the socket alone.
fn on_socket(path: &Path, arguments: &[&str]) -> Server {
    let mut command = program();
    command.args(["--log-level", "warn", "--model"]).arg(golden_model()).arg("--uds").arg(path).args(arguments);
    Server::of_command(command)
}

/// What a server says that does not start.
fn refusal(arguments: &[&str]) -> String {
    let output = program().args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_unix_socket_replaces_the_port_and_its_file_goes_with_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("diffulex.sock");
    let mut server = on_socket(&path, &[]);
    assert_eq!(server.address, path.to_str().unwrap());
    wait_until("a ready server", || get(&path, "/ready").status == 200);
    assert!(server.announced().contains(&format!("is ready on unix:{}", path.display())));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 4}).to_string();
    let head = "POST /generate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let answer = over(&path, &format!("{head}content-length: {}\r\n\r\n{body}", body.len()));
    assert_eq!((answer.status, answer.json()["token_ids"].as_array().map(Vec::len)), (200, Some(4)), "{}", answer.body);
    // No port is open.
    let sockets = std::fs::read_to_string(format!("/proc/{}/net/tcp", server.pid())).unwrap();
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", server.pid()))
        .unwrap()
        .filter_map(|fd| {
            std::fs::read_link(fd.unwrap().path())
                .ok()?
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')
                .map(str::to_owned)
        })
        .collect();
    let listens = |line: &str| line.split_whitespace().nth(3) == Some("0A");
    let own = |line: &str| line.split_whitespace().nth(9).is_some_and(|inode| inodes.iter().any(|own| own == inode));
    assert!(!sockets.lines().any(|line| listens(line) && own(line)));

    let taken = refusal(&["--uds", path.to_str().unwrap()]);
    assert!(taken.contains("another program listens there"), "{taken}");
    server.signal(Signal::TERM);
    assert!(server.ended(DEADLINE).success());
    assert!(!path.exists());
}

#[test]
fn a_socket_that_a_killed_server_left_is_replaced_and_another_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("diffulex.sock");
    let mut first = on_socket(&path, &[]);
    first.signal(Signal::KILL);
    first.ended(DEADLINE);
    assert!(path.exists());
    let second = on_socket(&path, &[]);
    wait_until("a ready server", || get(&path, "/ready").status == 200);
    drop(second);

    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "kept").unwrap();
    let error = refusal(&["--uds", file.to_str().unwrap()]);
    assert!(error.contains("notes.txt: there is a file that is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    let error = refusal(&["--uds", &format!("/tmp/{}", "x".repeat(200))]);
    assert!(error.contains("at most 107"), "{error}");
}

#[test]
fn a_port_that_is_named_is_listened_on_beside_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = Server::start(&["--uds", path.to_str().unwrap(), "--api-key", "secret"]);
    assert!(server.announced().contains(&format!(" and unix:{}", path.display())));
    assert_eq!((server.get("/health").status, get(&path, "/health").status), (200, 200));
    // The same checks at both.
    assert_eq!((server.get("/metrics").status, get(&path, "/metrics").status), (401, 401));
}

#[test]
fn a_client_that_leaves_the_socket_ends_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let _server = on_socket(&path, &["--device", "reference"]);
    wait_until("a ready server", || get(&path, "/ready").status == 200);
    let in_flight = |n: u32| get(&path, "/metrics").body.contains(&format!("\ndiffulex_num_requests_in_flight {n}\n"));
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": true, "stream": true}).to_string();
    let mut socket = UnixStream::connect(&path).unwrap();
    let head = "POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    assert!(socket.read(&mut [0; 1024]).unwrap() > 0);
    assert!(in_flight(1));
    drop(socket);
    wait_until("no request in flight", || in_flight(0));
}

#[test]
fn routes_are_below_the_root_path_and_at_the_root() {
    let server = Server::start(&["--root-path", "/llm/", "--api-key", "secret"]);
    let status = |path: &str| server.get(path).status;
    for open in ["/health", "/llm/health", "/llm", "/llm/", "/llm/playground.js", "/llm//health", "/llm/ready/"] {
        assert_eq!(status(open), 200, "{open}");
    }
    for guarded in ["/metrics", "/llm/metrics", "/llm/llm/health", "/llmx/health", "/%6clm/health", "/llm/%2e./health"]
    {
        assert_eq!(status(guarded), 401, "{guarded}");
    }
    for page in ["/", "/llm", "/llm/"] {
        let page = server.get(page);
        assert!(page.body.contains("<base href=\"/llm/\">"), "{}", page.body);
        assert!(!page.body.contains("href=\"/\"") && page.head.contains("base-uri 'self'"), "{}", page.head);
    }
    assert_eq!(server.get("/llm/openapi.json").json()["servers"], json!([{"url": "/llm"}]));
    let head = "connection: close\r\nx-api-key: secret\r\ncontent-type: application/json\r\ncontent-length: 34";
    let body = r#"{"prompt": [5, 6], "max_tokens":2} "#.trim_end();
    assert_eq!(body.len(), 34);
    let answer = server.send(&format!("POST /llm/generate HTTP/1.1\r\nhost: 127.0.0.1\r\n{head}\r\n\r\n{body}"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let bare = Server::start(&[]);
    assert!(!bare.get("/").body.contains("<base"));
    assert_eq!(bare.get("/llm/health").status, 404);
}

#[test]
fn a_root_path_that_hides_routes_is_refused() {
    for (path, route) in [("/v1", "/v1/"), ("/api", "/api/"), ("/health", "/health"), ("/docs", "/docs")] {
        let error = refusal(&["--port", "0", "--root-path", path]);
        assert!(error.contains(&format!("--root-path {path}")) && error.contains(route), "{error}");
    }
    let error = refusal(&["--root-path", "llm"]);
    assert!(error.contains("--root-path: expected a path such as /llm"), "{error}");
}

#[test]
fn a_page_behind_a_proxy_that_changes_host_is_told_which_flag_allows_it() {
    let server = Server::start(&[]);
    let ask = |fields: &str| {
        let request = format!("GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1:8000\r\nconnection: close\r\n{fields}\r\n");
        let answer = server.send(&request);
        (answer.status, answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    let (status, message) = ask("origin: http://llm.example.com\r\n");
    assert_eq!(status, 403);
    assert!(message.contains("--allowed-host llm.example.com allows them"), "{message}");
    assert!(message.contains("--cors-origin http://llm.example.com allows"), "{message}");
    // The browser says that it is another site.
    let (status, message) = ask("origin: https://other.example.com\r\nsec-fetch-site: cross-site\r\n");
    assert_eq!(status, 403);
    assert!(
        message.contains("--cors-origin https://other.example.com") && !message.contains("--allowed-host"),
        "{message}"
    );
    let allowed = Server::start(&["--allowed-host", "llm.example.com"]);
    let request =
        "GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\norigin: http://llm.example.com\r\n\r\n";
    assert_eq!(allowed.send(request).status, 200);
}

#[test]
fn the_log_has_the_client_that_a_trusted_proxy_names_and_no_other() {
    let ask = |server: &Server| {
        let body = r#"{"prompt": "a", "max_tokens": 1}"#;
        let fields = "x-forwarded-for: 6.6.6.6, 203.0.113.9\r\nconnection: close\r\ncontent-type: application/json";
        let request = format!(
            "POST /generate HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(server.send(&request).status, 200);
        let refused = format!("POST /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(server.send(&refused).status, 404);
        wait_until("both lines", || server.log().contains("answered") && server.log().contains("refused"));
        server.log()
    };
    let log = ask(&Server::logged("info", &[]));
    assert_eq!(log.matches("client=127.0.0.1").count(), 2, "{log}");
    assert!(!log.contains("203.0.113.9") && !log.contains("6.6.6.6"), "{log}");
    for flag in ["--trusted-proxy", "--forwarded-allow-ips"] {
        let log = ask(&Server::logged("info", &[flag, "10.0.0.0/8,127.0.0.1"]));
        assert_eq!(log.matches("client=203.0.113.9").count(), 2, "{log}");
        assert!(!log.contains("6.6.6.6"), "{log}");
    }
    let error = refusal(&["--trusted-proxy", "*"]);
    assert!(error.contains("--trusted-proxy: expected an address") && error.contains("choose its address"), "{error}");
    let error = refusal(&["--trusted-proxy", "unix"]);
    assert!(error.contains("requires --uds"), "{error}");
}

#[test]
fn flags_that_contradict_are_refused_by_name() {
    for (arguments, words) in [
        (&["--tls-cert", "a"][..], "--tls-cert: requires --tls-key"),
        (&["--tls-key", "a"], "--tls-key: requires --tls-cert"),
        (&["--uds", "/tmp/s", "--tls-cert", "a", "--tls-key", "b"], "--tls-cert: a Unix socket has no TLS"),
        (&["--register-with", "http://127.0.0.1:1", "--api-key-file", "k"], "--register-with: requires --api-key"),
        (&["--register-with", "http://127.0.0.1:1", "--uds", "/tmp/s"], "--advertise-url"),
        (&["--register-with", "http://127.0.0.1:1", "--tls-cert", "a", "--tls-key", "b"], "--advertise-url"),
    ] {
        let error = refusal(arguments);
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}

#[test]
fn a_signal_to_read_again_ends_neither_process() {
    let mut server = Server::start(&[]);
    let worker = server.worker_pid().expect("a worker");
    kill(worker, Signal::USR1);
    server.signal(Signal::USR1);
    let answer = server.post("/generate", &json!({"prompt": [5], "max_tokens": 1}));
    assert_eq!((answer.status, server.worker_pid()), (200, Some(worker)), "{}", answer.body);
    assert!(server.is_alive());
}
