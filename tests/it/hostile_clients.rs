//! Clients that break the rules of HTTP, or nobody's rules but everybody's patience: what each gets, and that nobody
//! else notices.

use std::io::Write;

use serde_json::json;

use crate::harness::{Answer, Ending, Server, idle, long_stream, read_some, read_to_close, read_until, wait_until};

const GOOD: &str = r#"{"prompt": [5], "max_tokens": 2}"#;

/// A head of `POST /generate` up to here, and the rest of the message.
fn post(rest: &str) -> Vec<u8> {
    let head = "POST /generate HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n";
    format!("{head}{rest}").into_bytes()
}

fn chunked(rest: &str) -> Vec<u8> {
    post(&format!("transfer-encoding: chunked\r\n\r\n{rest}"))
}

fn get(line_and_fields: &str) -> Vec<u8> {
    format!("{line_and_fields}\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").into_bytes()
}

/// The statuses of all answers on a connection.
fn statuses(answers: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answers);
    let heads = text.split("HTTP/1.").skip(1).map(|head| head[2..5].parse().unwrap());
    heads.collect()
}

#[test]
fn what_is_odd_http_is_served_or_refused_and_harms_nobody() {
    let server = Server::start(&[]);
    let worker = server.worker_pid();
    let whole_chunks = format!("{:x}\r\n{GOOD}\r\n0\r\n\r\n", GOOD.len());
    let many = |n: usize| (0..n).map(|index| format!("x-{index}: y\r\n")).collect::<String>();
    let long = "a".repeat(200_000);
    let length = GOOD.len();
    let not_utf8 = b"{\"prompt\": \"a\xff\"}";
    let not_utf8 = [&post(&format!("content-length: {}\r\n\r\n", not_utf8.len()))[..], not_utf8].concat();
    let cases: Vec<(&str, Vec<u8>, &[u16])> = vec![
        // Bodies in chunks.
        ("chunks", chunked(&whole_chunks), &[200]),
        ("a chunk's size is no number", chunked("zz\r\n{}\r\n0\r\n\r\n"), &[400]),
        ("a chunk of 2^72 bytes", chunked("ffffffffffffffffff\r\n{}\r\n0\r\n\r\n"), &[400]),
        ("a chunk of -1 bytes", chunked("-1\r\n{}\r\n0\r\n\r\n"), &[400]),
        ("a chunk without its end", chunked("2\r\n{}0\r\n\r\n"), &[400]),
        ("a long extension", chunked(&format!("2;{long}\r\n{{}}\r\n0\r\n\r\n")), &[400]),
        ("long trailers", chunked(&format!("{:x}\r\n{GOOD}\r\n0\r\nx: {long}\r\n\r\n", GOOD.len())), &[400]),
        ("another coding", post("transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"), &[400]),
        ("chunked, and not last", post("transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n"), &[400]),
        // Lengths.
        ("two lengths", post("content-length: 3\r\ncontent-length: 30\r\n\r\n{}\n"), &[400]),
        ("a length below 0", post("content-length: -3\r\n\r\n{}\n"), &[400]),
        ("a length with a sign", post("content-length: +3\r\n\r\n{} "), &[400]),
        ("a length of 2^64", post("content-length: 18446744073709551616\r\n\r\n{}"), &[400]),
        ("a length that cuts the body", post(&format!("content-length: 5\r\n\r\n{GOOD}")), &[422]),
        ("no body", post("\r\n"), &[422]),
        ("a compressed body", post("content-encoding: gzip\r\ncontent-length: 4\r\n\r\n\u{1f}abc"), &[415]),
        ("brackets", post(&format!("content-length: 100000\r\n\r\n{}", "[".repeat(100_000))), &[422]),
        ("bytes that are not UTF-8", not_utf8, &[422]),
        // Heads.
        ("a space in a name", post("content-length : 2\r\n\r\n{}"), &[400]),
        ("NUL in a value", post("x: a\0b\r\n\r\n"), &[400]),
        ("a folded line", post("x: a\r\n b\r\n\r\n"), &[400]),
        ("101 fields", post(&many(101)), &[431]),
        ("10,000 fields", post(&many(10_000)), &[431]),
        ("a long field", post(&format!("x: {long}\r\n\r\n")), &[431]),
        ("a long method", get(&format!("{long} / HTTP/1.1")), &[431]),
        ("no method", get(" /health HTTP/1.1"), &[400]),
        ("TRACE", get("TRACE /health HTTP/1.1"), &[405]),
        ("CONNECT", get("CONNECT evil.example:443 HTTP/1.1"), &[404]),
        ("an escape that is none", get("GET /v1/models/%zz HTTP/1.1"), &[404]),
        ("lines that end in LF", b"GET /health HTTP/1.1\nhost: 127.0.0.1\nconnection: close\n\n".to_vec(), &[200]),
        ("empty lines first", [b"\r\n\r\n", &get("GET /health HTTP/1.1")[..]].concat(), &[200]),
        ("100-continue", post(&format!("expect: 100-continue\r\ncontent-length: {length}\r\n\r\n{GOOD}")), &[100, 200]),
        ("an upgrade", get("GET /health HTTP/1.1\r\nupgrade: websocket"), &[200]),
        // Other protocols and versions.
        ("HTTP/0.9", get("GET /health HTTP/0.9"), &[400]),
        ("HTTP/1.0", get("GET /health HTTP/1.0"), &[200]),
        ("HTTP/1.2", get("GET /health HTTP/1.2"), &[400]),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), &[]),
        ("TLS", [&b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03"[..], &[0x5a; 160]].concat(), &[400]),
        ("zeros", vec![0; 4096], &[400]),
    ];
    // Refused by the HTTP library, which writes a head alone; the others reach the server.
    let headless = ["NUL in a value", "no method", "HTTP/0.9", "HTTP/1.2", "TLS", "zeros"];
    for (label, bytes, expected) in cases {
        let answers = server.raw(&bytes, Ending::Waits);
        assert_eq!(statuses(&answers), expected, "{label}: {}", String::from_utf8_lossy(&answers));
        if expected == [431] || headless.contains(&label) {
            assert!(answers.ends_with(b"\r\n\r\n"), "{label}: {}", String::from_utf8_lossy(&answers));
        }
    }
    // Whichever limit it meets first: that of a target, or of a head.
    let answers = server.raw(&get(&format!("GET /{long} HTTP/1.1")), Ending::Waits);
    assert!(matches!(statuses(&answers)[..], [414 | 431]), "{}", String::from_utf8_lossy(&answers));
    for (label, bytes, expected) in [
        ("half a head", b"POST /generate HTTP/1.1\r\nhost:".to_vec(), &[][..]),
        ("half a body", post("content-length: 50\r\n\r\n{"), &[400]),
        ("a length of 10^18", post("content-length: 1000000000000000000\r\n\r\n{}"), &[413]),
    ] {
        let answers = server.raw(&bytes, Ending::HalfClosed);
        let text = String::from_utf8_lossy(&answers);
        assert_eq!(statuses(&answers), expected, "{label}: {text}");
        assert!(label != "half a body" || text.contains("incomplete_body"), "{text}");
    }
    assert_eq!(server.post("/generate", &json!({"prompt": [5], "max_tokens": 4})).status, 200);
    assert_eq!((server.worker_pid(), server.metric("worker_restarts_total")), (worker, 0.0));
}

#[test]
fn a_message_with_two_ends_smuggles_nothing() {
    let server = Server::start(&[]);
    let stay = |fields: &str| {
        let head = "POST /generate HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n";
        let chunks = format!("{:x}\r\n{GOOD}\r\n0\r\n\r\n", GOOD.len());
        format!("{head}{fields}\r\n{chunks}GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            .into_bytes()
    };
    // Chunks alone: the connection goes on. With a length, too: chunks count, and it ends (RFC 9112, 6.1).
    assert_eq!(statuses(&server.raw(&stay("transfer-encoding: chunked\r\n"), Ending::Waits)), [200, 200]);
    for fields in
        ["content-length: 3\r\ntransfer-encoding: chunked\r\n", "transfer-encoding: chunked\r\ncontent-length: 3\r\n"]
    {
        let answers = server.raw(&stay(fields), Ending::Waits);
        assert!(matches!(statuses(&answers)[..], [200] | [400]), "{fields}: {}", String::from_utf8_lossy(&answers));
    }
}

#[test]
fn requests_in_one_write_are_answered_in_order() {
    let server = Server::start(&[]);
    let stay = |body: &str| {
        let head = "POST /generate HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n";
        format!("{head}content-length: {}\r\n\r\n{body}", body.len())
    };
    let stream = r#"{"prompt": [5], "max_tokens": 8, "stream": true}"#;
    let last = "GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n";
    let answers = server.raw(format!("{}{}{last}", stay(GOOD), stay(stream)).as_bytes(), Ending::Waits);
    assert_eq!(statuses(&answers), [200, 200, 200]);
    let text = String::from_utf8_lossy(&answers);
    let places = ["\"usage\"", "[DONE]", "\"ready\""].map(|part| text.find(part));
    assert!(places.is_sorted() && places[0].is_some(), "{places:?}: {text}");
}

#[test]
fn clients_that_leave_anywhere_leave_nothing_behind() {
    let server = Server::start(&["--max-num-reqs", "16", "--disable-prefix-caching"]);
    let n_descriptors = server.n_descriptors();
    let body = long_stream("denoise").to_string();
    let whole = post(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    for client in 0..120 {
        let mut socket = server.connect();
        // In the head, in the body, and, from the length on, behind its end; the pattern is arbitrary and always the same.
        let left_at = client * 53 % (2 * whole.len());
        socket.write_all(&whole[..left_at.min(whole.len())]).unwrap();
        if left_at > whole.len() && client % 3 == 0 {
            // Data sent since is never read, and the peer gets a reset.
            read_some(&mut socket);
        }
    }
    wait_until("an idle engine", || idle(&server));
    // About half of the clients sent whole requests, of 1,900 tokens each.
    let n_tokens = server.metric("generation_tokens_total");
    assert!(n_tokens < 60.0 * 1900.0 / 2.0, "{n_tokens} tokens were written for clients that had left");
    wait_until("as many descriptors as before", || server.n_descriptors() <= n_descriptors);
    assert_eq!(server.post("/generate", &json!({"prompt": [5], "max_tokens": 4})).status, 200);
}

#[test]
fn slow_heads_and_bodies_keep_nobody_waiting() {
    // Long enough for a busy machine to send a head in one piece, and to serve a request.
    let server = Server::start(&["--header-timeout-seconds", "3"]);
    let begun = |bytes: &[u8]| {
        let mut socket = server.connect();
        socket.write_all(bytes).unwrap();
        socket
    };
    let heads: Vec<_> = (0..100).map(|_| begun(b"POST /generate HTTP/1.1\r\nhost:")).collect();
    let bodies: Vec<_> = (0..50).map(|_| begun(&post("content-length: 50\r\n\r\n{"))).collect();
    assert_eq!(server.post("/generate", &json!({"prompt": [5], "max_tokens": 4})).status, 200);
    for body in bodies {
        let answer = Answer::read(body);
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (408, &json!("body_timeout")), "{}", answer.body);
    }
    for mut head in heads {
        let rest = read_to_close(&mut head);
        assert!(statuses(&rest).iter().all(|status| *status == 408), "{}", String::from_utf8_lossy(&rest));
    }
    assert_eq!(server.metric("num_requests_in_flight"), 0.0);
}

#[test]
fn under_more_than_it_holds_each_is_answered_or_told_when_to_come_again() {
    let server = Server::start(&["--max-num-reqs", "2", "--max-queued-requests", "6"]);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 40, "ignore_eos": true});
    let waiting: Vec<_> = (0..80).map(|_| server.open("/generate", &body)).collect();
    let answers: Vec<_> = waiting.into_iter().map(Answer::read).collect();
    let (answered, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    for answer in &refused {
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (429, &json!("queue_full")), "{}", answer.body);
        let seconds: u64 = answer.header("retry-after").expect("Retry-After").parse().unwrap();
        let milliseconds: u64 = answer.header("retry-after-ms").expect("retry-after-ms").parse().unwrap();
        assert!((1..=60).contains(&seconds) && milliseconds <= 60_000, "{seconds} s, {milliseconds} ms");
    }
    assert!(answered.len() >= 8, "as many as it holds are answered, not {}", answered.len());
    assert!(!refused.is_empty(), "80 at once are more than 8");
    assert_eq!(server.metric("request_rejected_total"), refused.len() as f64);
    wait_until("an idle engine", || idle(&server));
}

/// Pooled connections of HTTP clients: what is refused before its body is read must not close them under the next request.
#[test]
fn a_connection_lives_on_after_a_refusal_that_came_before_the_body() {
    let server = Server::start(&["--api-key", "secret"]);
    let post = |path: &str, key: &str, more: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n{more}content-length: {}\r\n\r\n",
            body.len()
        )
    };
    let json = "content-type: application/json\r\n";
    let body = json!({"prompt": [5, 6], "max_tokens": 2}).to_string();
    let mut socket = server.connect();
    for (path, key, kind, status) in [
        ("/generate", "wrong", json, "401"),
        ("/nowhere", "secret", json, "404"),
        ("/ready", "secret", json, "405"),
        ("/generate", "secret", "content-type: text/plain\r\n", "415"),
    ] {
        socket.write_all(post(path, key, kind, &body).as_bytes()).unwrap();
        let answer = String::from_utf8(read_until(&mut socket, "\"detail\":")).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        // The rest of this answer.
        if !answer.ends_with("\"}") {
            read_until(&mut socket, "\"}");
        }
        socket.write_all(body.as_bytes()).unwrap();
    }
    let last = post("/generate", "secret", &format!("{json}connection: close\r\n"), &body);
    socket.write_all((last + &body).as_bytes()).unwrap();
    assert_eq!(Answer::read(socket).status, 200);
}
