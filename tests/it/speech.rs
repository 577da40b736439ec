//! `/v1/audio/speech`: refused without a server that speaks, and with one passed on to it, under the bounds of any request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::harness::{Answer, DEADLINE, Server, golden_model, kill, program, read_to_close, read_until, wait_until};

const ROUTE: &str = "/v1/audio/speech";

/// A server that speaks, as far as a test lets it.
struct Upstream {
    listener: TcpListener,
    url: String,
}

impl Upstream {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Self { listener, url }
    }

    /// The next request, and the socket to answer on.
    fn asked(&self) -> (TcpStream, String) {
        let (mut socket, _) = self.listener.accept().unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let asked = request(&mut socket);
        (socket, asked)
    }

    /// Answers the next request with these bytes. The request.
    fn answers(&self, bytes: &[u8]) -> String {
        let (mut socket, asked) = self.asked();
        socket.write_all(bytes).unwrap();
        asked
    }
}

/// A whole request with a length.
fn request(socket: &mut impl Read) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    loop {
        let n_bytes = socket.read(&mut buffer).unwrap();
        assert!(n_bytes > 0, "half a request: {text}");
        text += std::str::from_utf8(&buffer[..n_bytes]).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if Some(body.len()) == length {
            return text;
        }
    }
}

/// An answer of `status` with lines of a head and a body, after which the connection ends.
fn reply(status: &str, lines: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{lines}\r\n{body}").into_bytes()
}

fn spoken(server: &Server) -> TcpStream {
    server.open(ROUTE, &json!({"input": "hello", "voice": "alloy"}))
}

/// What a client gets where the upstream answers so.
fn passed_on(server: &Server, upstream: &Upstream, bytes: &[u8]) -> Answer {
    let client = spoken(server);
    upstream.answers(bytes);
    Answer::read(client)
}

fn code(answer: &Answer) -> Value {
    answer.json()["error"]["code"].clone()
}

#[test]
fn speech_is_refused_or_passed_on() {
    let server = Server::start(&[]);
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": "a", "response_format": "midi"}), "response_format"),
        (json!({"input": "a", "speed": 9}), "speed"),
    ] {
        let answer = server.post(ROUTE, &body);
        assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some(param)), "{}", answer.body);
    }
    let body = json!({"input": "hello", "voice": "alloy", "model": "tts-1", "stream": true, "nobody_knows": 1});
    let answer = server.post(ROUTE, &body);
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["type"]), (501, &json!("not_implemented_error")), "{}", answer.body);
    assert_eq!(error["code"], "unsupported_modality");

    let upstream = Upstream::new();
    let passing = Server::start(&["--speech-upstream", &upstream.url]);
    let client = passing.open(ROUTE, &body);
    let asked = upstream.answers(&reply("200 OK", "content-type: audio/wav\r\n", "RIFF"));
    let answer = Answer::read(client);
    assert!(asked.starts_with("POST /v1/audio/speech HTTP/1.1"), "{asked}");
    assert_eq!(asked.split_once("\r\n\r\n").map(|(_, sent)| serde_json::from_str(sent).ok()), Some(Some(body.clone())));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("audio/wav")));
    assert_eq!((answer.body.as_str(), answer.header("x-content-type-options")), ("RIFF", Some("nosniff")));
    // It is gone now.
    drop(upstream);
    let answer = passing.post(ROUTE, &body);
    assert_eq!((answer.status, code(&answer)), (502, json!("upstream_failed")), "{}", answer.body);
}

#[test]
fn only_sound_of_status_200_is_passed_on() {
    let upstream = Upstream::new();
    let server = Server::start(&["--speech-upstream", &upstream.url]);
    for (status, lines, body, named) in [
        ("302 Found", "location: http://elsewhere/\r\ncontent-type: audio/wav\r\ncontent-length: 0\r\n", "", "302"),
        ("304 Not Modified", "", "", "304"),
        ("101 Switching Protocols", "upgrade: x\r\n", "", "101"),
        ("999 Odd", "content-type: audio/wav\r\n", "hush", "999"),
        ("206 Partial Content", "content-type: audio/wav\r\n", "hush", "206"),
        ("500 No", "content-type: text/plain\r\n", "hush", "500"),
        ("401 No", "content-type: application/json\r\n", r#"{"error": {"message": "hush"}}"#, "401"),
        ("429 No", "content-type: application/json\r\n", r#"{"error": {"message": "hush"}}"#, "429"),
        ("400 No", "content-type: text/html\r\n", "<p>hush", "400"),
        ("400 No", "content-type: application/json\r\n", r#"{"hush": 1}"#, "400"),
        ("200 OK", "content-type: text/html\r\n", "<script>hush()</script>", "text/html"),
        ("200 OK", "content-type: application/json\r\n", "{}", "application/json"),
        // Not asked for.
        ("200 OK", "content-type: text/event-stream\r\n", "data: {}\n\n", "text/event-stream"),
        ("200 OK", "content-type: audio/wav\r\ncontent-type: text/html\r\n", "hush", "content-type"),
        ("200 OK", "", "hush", "content-type"),
    ] {
        let answer = passed_on(&server, &upstream, &reply(status, lines, body));
        let seen = (answer.status, code(&answer));
        assert_eq!(seen, (502, json!("upstream_failed")), "{status} {lines}: {}", answer.body);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(named) && !answer.body.contains("hush"), "{status} {lines}: {message}");
        assert_eq!(answer.header("location"), None);
    }
    for kind in ["audio/mpeg", "audio/pcm", "audio/L16; rate=24000", "application/octet-stream", "Audio/Wav"] {
        let lines = format!("content-type: {kind}\r\n");
        let answer = passed_on(&server, &upstream, &reply("200 OK", &lines, "sound"));
        assert_eq!((answer.status, answer.body.as_str()), (200, "sound"), "{kind}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    // Of OpenAI's, and of SGLang-Omni's streams.
    for body in [json!({"input": "a", "stream": true}), json!({"input": "a", "stream_format": "sse"})] {
        let client = server.open(ROUTE, &body);
        upstream.answers(&reply("200 OK", "content-type: text/event-stream\r\n", "data: {}\n\n"));
        assert_eq!(Answer::read(client).status, 200);
    }
}

#[test]
fn a_body_that_the_upstream_refuses_is_refused_with_its_words() {
    let upstream = Upstream::new();
    let server = Server::start(&["--speech-upstream", &upstream.url]);
    for (status, body, words) in [
        ("400 No", json!({"error": {"message": "voice: \"alloy\" is unknown"}}), r#"voice: "alloy" is unknown"#),
        ("422 No", json!({"detail": [{"loc": ["body", "voice"], "msg": "unknown voice"}]}), "unknown voice"),
        ("400 No", json!({"detail": "no such voice"}), "no such voice"),
        ("400 No", json!({"error": "no voice"}), "no voice"),
        ("400 No", json!({"message": "mute"}), "mute"),
    ] {
        let lines = "content-type: application/json; charset=utf-8\r\n";
        let answer = passed_on(&server, &upstream, &reply(status, lines, &body.to_string()));
        assert_eq!((answer.status, code(&answer)), (400, json!("invalid_request")), "{}", answer.body);
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains(words), "{}", answer.body);
    }
    let long = json!({"error": {"message": "é".repeat(5000)}}).to_string();
    let answer = passed_on(&server, &upstream, &reply("400 No", "content-type: application/json\r\n", &long));
    // 500 bytes.
    let told = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!((answer.status, told.matches('é').count()), (400, 250), "{told}");
    // One that never ends is not read to its end.
    let client = spoken(&server);
    let (mut socket, _) = upstream.asked();
    socket.write_all(b"HTTP/1.1 400 No\r\ncontent-type: application/json\r\n\r\n").unwrap();
    while socket.write_all(&[b' '; 64 << 10]).is_ok() {}
    assert_eq!(Answer::read(client).status, 502);
}

#[test]
fn headers_that_matter_pass_both_ways_and_keys_do_not() {
    let upstream = Upstream::new();
    let mut command = program();
    command.args(["--port", "0", "--log-level", "warn", "--api-key", "mine", "--speech-upstream", &upstream.url]);
    command.args(["--model"]).arg(golden_model()).env("DIFFULEX_SPEECH_UPSTREAM_KEY", "theirs");
    let server = Server::of_command(command);
    wait_until("a ready server", || server.get("/ready").status == 200);
    let body = r#"{"input": "a"}"#;
    let lines = "authorization: Bearer mine\r\nx-api-key: mine\r\ncookie: a=mine\r\naccept: audio/wav\r\naccept-encoding: gzip\r\n\
                 x-request-id: r-7\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\
                 tracestate: vendor=a1\r\n";
    let mut client = server.connect();
    let head =
        format!("POST {ROUTE} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n{lines}");
    client.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    let sent = "content-type: audio/wav\r\ncontent-encoding: gzip\r\ncontent-disposition: attachment; filename=a.wav\r\n\
                x-prompt-tokens: 5\r\nx-completion-tokens: 6\r\nx-engine-time: 0.5\r\nset-cookie: a=b\r\ncontent-length: 4\r\n";
    let asked = upstream.answers(&reply("200 OK", sent, "zzzz")).to_ascii_lowercase();
    for line in [
        "authorization: bearer theirs",
        "accept: audio/wav",
        "accept-encoding: gzip",
        "x-request-id: r-7",
        "traceparent: 00-4bf9",
        "tracestate: vendor=a1",
    ] {
        assert!(asked.contains(line), "{line} is not in {asked}");
    }
    assert!(!asked.contains("mine"), "{asked}");
    let answer = Answer::read(client);
    for (name, value) in [
        ("content-encoding", "gzip"),
        ("content-disposition", "attachment; filename=a.wav"),
        ("x-prompt-tokens", "5"),
        ("x-completion-tokens", "6"),
        ("x-engine-time", "0.5"),
        ("content-length", "4"),
    ] {
        assert_eq!(answer.header(name), Some(value), "{}", answer.head);
    }
    assert_eq!(answer.header("set-cookie"), None);
    // A client that takes no coding is sent none, and a coding that it cannot read is a fault of the upstream.
    let mut plain = spoken_with(&server, "authorization: Bearer mine\r\n");
    let asked = upstream.answers(&reply("200 OK", sent, "zzzz")).to_ascii_lowercase();
    assert!(asked.contains("accept-encoding: identity"), "{asked}");
    let answer = Answer::parse(&read_to_close(&mut plain));
    assert_eq!((answer.status, code(&answer)), (502, json!("upstream_failed")), "{}", answer.body);
}

fn spoken_with(server: &Server, lines: &str) -> TcpStream {
    let body = r#"{"input": "a"}"#;
    let mut client = server.connect();
    let head =
        format!("POST {ROUTE} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n{lines}");
    client.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    client
}

#[test]
fn the_time_limit_of_requests_holds_before_the_first_byte_and_after() {
    let upstream = Upstream::new();
    let server = Server::start(&["--speech-upstream", &upstream.url, "--request-timeout-seconds", "1"]);
    let client = spoken(&server);
    let (silent, _) = upstream.asked();
    let answer = Answer::read(client);
    assert_eq!((answer.status, code(&answer)), (504, json!("timeout")), "{}", answer.body);
    drop(silent);

    let mut client = spoken(&server);
    let (mut stuck, _) = upstream.asked();
    stuck
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ntransfer-encoding: chunked\r\n\r\n4\r\nRIFF\r\n")
        .unwrap();
    let begun = read_until(&mut client, "RIFF");
    let rest = read_to_close(&mut client);
    // Cut, and seen to be: the last chunk is missing.
    assert!(!String::from_utf8_lossy(&[begun, rest].concat()).contains("\r\n0\r\n"));
    assert_eq!(server.metric("num_requests_in_flight"), 0.0);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("diffulex_speech_requests_total{outcome=\"timed_out\"} 2"), "{metrics}");
}

#[test]
fn speech_is_in_flight_and_has_a_limit_like_any_request() {
    let upstream = Upstream::new();
    let limits = ["--max-num-reqs", "1", "--max-queued-requests", "1", "--speech-upstream", &upstream.url];
    let server = Server::start(&limits);
    let clients = [spoken(&server), spoken(&server)];
    let mut sockets = [upstream.asked().0, upstream.asked().0];
    assert_eq!(server.metric("num_requests_in_flight"), 2.0);
    assert_eq!(server.get("/health").json()["pending_completions"], 2);
    let refused = server.post(ROUTE, &json!({"input": "a"}));
    assert_eq!((refused.status, code(&refused)), (429, json!("queue_full")), "{}", refused.body);
    assert!(refused.header("retry-after").is_some());
    // The engine is idle, and takes requests.
    assert_eq!(server.post("/generate", &json!({"prompt": [5], "max_tokens": 4})).status, 200);
    for socket in &mut sockets {
        socket.write_all(&reply("200 OK", "content-type: audio/wav\r\ncontent-length: 4\r\n", "RIFF")).unwrap();
    }
    for client in clients {
        assert_eq!(Answer::read(client).body, "RIFF");
    }
    wait_until("an empty server", || server.metric("num_requests_in_flight") == 0.0);
    let metrics = server.get("/metrics").body;
    for line in ["answered\"} 2", "refused\"} 1", "failed\"} 0", "timed_out\"} 0", "cancelled\"} 0"] {
        assert!(metrics.contains(&format!("diffulex_speech_requests_total{{outcome=\"{line}\n")), "{line}: {metrics}");
    }
}

#[test]
fn a_client_that_leaves_ends_its_call() {
    let upstream = Upstream::new();
    let server = Server::start(&["--speech-upstream", &upstream.url]);
    for is_begun in [false, true] {
        let mut client = spoken(&server);
        let (mut socket, _) = upstream.asked();
        if is_begun {
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\n\r\nRIFF").unwrap();
            read_until(&mut client, "RIFF");
        }
        drop(client);
        assert!(read_to_close(&mut socket).is_empty());
    }
    wait_until("an empty server", || server.metric("num_requests_in_flight") == 0.0);
}

#[test]
fn calls_leave_descriptors_for_the_next_worker() {
    let upstream = Upstream::new();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 256; exec \"$@\"", "sh"]).arg(program().get_program());
    command
        .args(["--port", "0", "--log-level", "off", "--speech-upstream", &upstream.url, "--model"])
        .arg(golden_model());
    let server = Server::of_command(command);
    wait_until("a ready server", || server.get("/ready").status == 200);
    let clients: Vec<_> = (0..120).map(|_| spoken(&server)).collect();
    // As many as are let through are asked for; the others are refused or wait.
    let first = upstream.asked();
    wait_until("a server that is full", || server.n_descriptors() >= 150);
    let worker = server.worker_pid().unwrap();
    kill(worker, Signal::KILL);
    wait_until("another worker", || server.worker_pid().is_some_and(|pid| pid != worker));
    drop(clients);
    wait_until("service", || server.get("/ready").status == 200);
    drop(first);
}

/// One TLS connection with the certificate of the tests, answered with a WAV of four bytes. True if it was asked.
fn speaks_securely(listener: &TcpListener) -> bool {
    let file = |name: &str| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/it/tls").join(name);
    let chain = vec![CertificateDer::from_pem_file(file("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
    let (socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut stream = rustls::StreamOwned::new(rustls::ServerConnection::new(config).unwrap(), socket);
    let mut byte = [0; 1];
    // Who does not trust the certificate says so instead of a request.
    if stream.read_exact(&mut byte).is_err() {
        return false;
    }
    request(&mut stream);
    stream.write_all(&reply("200 OK", "content-type: audio/wav\r\n", "RIFF")).unwrap();
    stream.conn.send_close_notify();
    let _ = stream.flush();
    true
}

#[test]
fn an_upstream_over_tls_is_trusted_by_its_authority_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let authority = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/it/tls/authority.pem");
    let authority = authority.to_str().unwrap();
    for (arguments, status) in [
        (&["--speech-upstream", &url, "--speech-upstream-ca", authority][..], 200),
        (&["--speech-upstream", &url], 502),
    ] {
        let server = Server::start(arguments);
        let client = spoken(&server);
        assert_eq!(speaks_securely(&listener), status == 200);
        let answer = Answer::read(client);
        assert_eq!(answer.status, status, "{}", answer.body);
    }
}

#[test]
fn flags_of_the_upstream_that_cannot_act_are_refused() {
    let key = tempfile::NamedTempFile::new().unwrap();
    let empty = key.path().to_str().unwrap();
    for (arguments, named) in [
        (&["--speech-upstream-key", "hush"][..], "--speech-upstream"),
        (&["--speech-upstream-ca", empty], "--speech-upstream"),
        (&["--speech-upstream", "http://a", "--speech-upstream-ca", empty], "https"),
        (&["--speech-upstream", "https://a", "--speech-upstream-ca", empty], "certificate"),
        (&["--speech-upstream", "https://a", "--speech-upstream-ca", "/nowhere"], "/nowhere"),
        (&["--speech-upstream", "http://u:hush@a", "--speech-upstream-key", "hush"], "--speech-upstream-key"),
        (&["--speech-upstream", "http://a", "--speech-upstream-key", "hush\nhush"], "ASCII"),
    ] {
        let output = program().args(["--port", "0"]).args(arguments).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && words.contains(named) && !words.contains("hush"), "{words}");
    }
}
