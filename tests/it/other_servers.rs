//! Calls to other servers: what a collector or a controller may do to this server, and what nobody reads in its log.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{DEADLINE, Server, golden_model, kill, program, wait_until};

/// Far more than any answer that a server of ours reads, and more than the buffers of a connection hold.
const ENDLESS: usize = 64 << 20;

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// A call: its path, the lines of its head, and its body.
struct Call {
    socket: TcpStream,
    path: String,
    head: String,
    body: Vec<u8>,
}

impl Call {
    fn accept(listener: &TcpListener) -> Self {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let split = bytes.windows(4).position(|window| window == b"\r\n\r\n");
            if let Some(split) = split {
                let head = String::from_utf8_lossy(&bytes[..split]).into_owned();
                let length = head
                    .lines()
                    .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
                let length: usize = length.expect("a length");
                if bytes.len() >= split + 4 + length {
                    let path = head.split(' ').nth(1).unwrap().to_owned();
                    return Self { socket, path, head, body: bytes[split + 4..].to_vec() };
                }
            }
            let n_bytes = socket.read(&mut buffer).unwrap();
            assert!(n_bytes > 0, "half a call");
            bytes.extend_from_slice(&buffer[..n_bytes]);
        }
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn answer(mut self, status: &str, body: &str) {
        let head = format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}",
            body.len()
        );
        self.socket.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    }

    /// Answers 200 and goes on until the caller leaves. How many bytes it took.
    fn answer_for_ever(mut self) -> usize {
        self.socket.set_write_timeout(Some(DEADLINE)).unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"engine_id\": \"";
        self.socket.write_all(head.as_bytes()).unwrap();
        let bytes = vec![b'a'; 64 << 10];
        let mut n_taken = 0;
        while n_taken < ENDLESS && self.socket.write_all(&bytes).is_ok() {
            n_taken += bytes.len();
        }
        n_taken
    }
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

#[test]
fn a_collector_whose_answer_never_ends_is_left_after_some_kilobytes() {
    let (collector, url) = listener();
    let server = Server::start(&["--otlp-endpoint", &url]);
    assert_eq!(server.post("/generate", &json!({"prompt": [5], "max_tokens": 4})).status, 200);
    let call = Call::accept(&collector);
    assert_eq!(call.path, "/v1/traces");
    let n_taken = call.answer_for_ever();
    assert!(n_taken < ENDLESS, "{n_taken} bytes");
    assert!(server.resident_bytes() < 256 << 20);
}

#[test]
fn a_controller_whose_answer_never_ends_is_left_after_some_kilobytes() {
    let (controller, url) = listener();
    let server = Server::start(&["--register-with", &url]);
    let n_taken = Call::accept(&controller).answer_for_ever();
    assert!(n_taken < ENDLESS, "{n_taken} bytes");
    // An id that is a book is none, and registering is tried again.
    let call = Call::accept(&controller);
    assert_eq!(call.path, "/register_engine");
    call.answer("200 OK", &json!({"engine_id": "a".repeat(10_000)}).to_string());
    let call = Call::accept(&controller);
    assert_eq!(call.path, "/register_engine");
    call.answer("200 OK", &json!({"engine_id": "7"}).to_string());
    assert_eq!(Call::accept(&controller).json()["engine_id"], "7");
    assert_eq!(server.get("/ready").status, 200);
}

#[test]
fn a_controller_that_registers_and_refuses_heartbeats_is_called_with_growing_pauses_and_named_once() {
    let (controller, url) = listener();
    let server = Server::logged("info", &["--register-with", &url]);
    let mut pauses = Vec::new();
    for _ in 0..2 {
        Call::accept(&controller).answer("200 OK", r#"{"engine_id": 1}"#);
        let beat = Call::accept(&controller);
        assert_eq!(beat.path, "/engine_heartbeat");
        let start = Instant::now();
        beat.answer("404 Not Found", "{}");
        let again = Call::accept(&controller);
        assert_eq!(again.path, "/register_engine");
        pauses.push(start.elapsed());
        again.answer("503 Service Unavailable", "{}");
    }
    assert!(pauses[0] >= Duration::from_millis(900) && pauses[1] >= Duration::from_millis(1900), "{pauses:?}");
    // All of it is one trouble.
    assert_eq!(count(&server.log(), "controller"), 1, "{}", server.log());
    Call::accept(&controller).answer("200 OK", r#"{"engine_id": 2}"#);
    Call::accept(&controller).answer("200 OK", "{}");
    wait_until("word of the registration", || server.log().contains(" INFO registered with the controller"));
    assert_eq!(count(&server.log(), "controller"), 2, "{}", server.log());
}

/// Every file below `folder`, joined.
fn texts_below(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            text += &texts_below(&path);
        } else if let Ok(bytes) = std::fs::read(&path) {
            text += &String::from_utf8_lossy(&bytes);
        }
    }
    text
}

#[test]
fn passwords_and_tokens_of_urls_are_used_and_never_shown() {
    let (controller, _) = listener();
    let address = controller.local_addr().unwrap();
    // Nobody listens at the other two.
    let (gone, _) = listener();
    let nobody = gone.local_addr().unwrap();
    drop(gone);
    let (register, otlp, speech) = (
        format!("http://me:hush-a@{address}/?token=hush-b"),
        format!("http://me:hush-c@{nobody}/?token=hush-d"),
        format!("http://me:hush-e@{nobody}/?token=hush-f"),
    );
    let reports = tempfile::tempdir().unwrap();
    let profiles = tempfile::tempdir().unwrap();
    let (reports, profiles) = (reports.path(), profiles.path());
    let server = Server::logged(
        "trace",
        &[
            "--model",
            golden_model().to_str().unwrap(),
            "--register-with",
            &register,
            "--otlp-endpoint",
            &otlp,
            "--speech-upstream",
            &speech,
            "--crash-report-dir",
            reports.to_str().unwrap(),
            "--profile-dir",
            profiles.to_str().unwrap(),
        ],
    );
    let call = Call::accept(&controller);
    assert_eq!(call.path, "/register_engine?token=hush-b");
    // me:hush-a
    assert!(call.head.contains("Basic bWU6aHVzaC1h"), "{}", call.head);
    call.answer("500 No", "{}");
    assert_eq!(server.post("/start_profile", &json!({"run_id": "a"})).status, 200);
    assert_eq!(server.post("/generate", &json!({"prompt": [5], "max_tokens": 4})).status, 200);
    let mut shown = server.post("/v1/audio/speech", &json!({"input": "a"})).body;
    wait_until("a collector that is missed", || server.log().contains("collector"));
    kill(server.worker_pid().unwrap(), Signal::KILL);
    wait_until("a crash report", || texts_below(reports).contains("otlp_endpoint"));
    wait_until("service again", || server.get("/ready").status == 200);
    for path in ["/health", "/metrics", "/v1/models", "/openapi.json"] {
        shown += &server.get(path).body;
    }
    let settings = [server.log(), texts_below(reports)];
    for text in &settings {
        // What is left of them helps to find the one that is meant.
        assert!(text.contains(&address.to_string()) && text.contains(&nobody.to_string()), "{text}");
    }
    shown += &(settings.concat() + &texts_below(profiles));
    // In hyper's own lines, too, none of which are written by default.
    assert!(!shown.contains("hush"), "{}", shown.lines().find(|line| line.contains("hush")).unwrap_or_default());

    for flag in ["--register-with", "--otlp-endpoint", "--speech-upstream"] {
        for url in ["ftp://me:hush-a@host/?token=hush-b", "me:hush-a@host?token=hush-b", "http://me:hush-a@:1?hush-b"] {
            let output = program().args(["--port", "0", flag, url]).output().unwrap();
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && words.contains(flag) && !words.contains("hush"), "{words}");
        }
    }
    let help = program().args(["serve", "--help"]).env("OTEL_EXPORTER_OTLP_ENDPOINT", &otlp).output().unwrap();
    assert!(!String::from_utf8_lossy(&help.stdout).contains("hush"));
}

/// What a server with these arguments says of them before it serves; it must not.
fn refusal(arguments: &[&str]) -> String {
    let output = program().args(["--port", "0", "--model"]).arg(golden_model()).args(arguments).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_controller_is_told_an_address_that_it_can_call() {
    let (controller, url) = listener();
    for (arguments, address) in [
        (&["--host", "0.0.0.0", "--register-with", &url][..], "0.0.0.0"),
        (&["--host", "::", "--register-with", &url], "::"),
        // Which is this machine for us, and another for a controller elsewhere.
        (&["--register-with", "http://controller.example:9000"], "127.0.0.1"),
        (&["--host", "localhost", "--register-with", "http://10.0.0.1:9000"], "localhost"),
    ] {
        let words = refusal(arguments);
        assert!(words.contains("--advertise-url") && words.contains(address), "{words}");
    }
    for url in ["https://a", "http://a/b", "http://u:p@a", "http://0.0.0.0:5", "a:5"] {
        let words = refusal(&["--register-with", "http://10.0.0.1:9000", "--advertise-url", url]);
        assert!(words.contains("--advertise-url") && words.contains("http://HOST[:PORT]"), "{words}");
    }
    assert!(refusal(&["--advertise-url", "http://a:5"]).contains("--register-with"));

    let announced = ["--host", "0.0.0.0", "--register-with", &url, "--advertise-url", "http://engine-3.example:81"];
    let _server = Server::start(&announced);
    let config = Call::accept(&controller).json()["engine_config"].clone();
    assert_eq!((&config["host"], &config["port"]), (&json!("engine-3.example"), &json!(81)));
    assert_eq!(config["api_key"], Value::Null);
}

#[test]
fn a_controller_is_told_the_key_that_it_calls_back_with() {
    let (controller, url) = listener();
    let _server = Server::launch(&["--api-key", "sesame", "--register-with", &url]);
    assert_eq!(Call::accept(&controller).json()["engine_config"]["api_key"], "sesame");
}

#[test]
fn headers_of_the_collector_come_from_the_environment_and_stay_out_of_the_log() {
    let (collector, url) = listener();
    let mut command = program();
    command.args(["--port", "0", "--log-level", "warn", "--model"]).arg(golden_model());
    command.args(["--otlp-endpoint", &url]);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20aHVzaA==, x-tenant = 7");
    let server = Server::of_command(command);
    wait_until("a ready server", || server.get("/ready").status == 200);
    assert_eq!(server.post("/generate", &json!({"prompt": [5], "max_tokens": 4})).status, 200);
    let call = Call::accept(&collector);
    let head = call.head.to_ascii_lowercase();
    assert!(head.contains("authorization: basic ahvzaa==") && head.contains("x-tenant: 7"), "{head}");
    call.answer("200 OK", "");

    let mut command = program();
    command.args(["--port", "0", "--otlp-endpoint", &url]).env("OTEL_EXPORTER_OTLP_HEADERS", "hush");
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && words.contains("OTEL_EXPORTER_OTLP_HEADERS"), "{words}");
    assert!(!words.contains("hush") && output.stdout.is_empty(), "{words}");
}
