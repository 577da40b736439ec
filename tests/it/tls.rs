//! TLS of the server's own port: who is served, what is refused, and certificates that are read again.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reqwest::Certificate;
use rustix::process::Signal;
use rustls::crypto::ring;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{DEADLINE, Server, golden_model, program, read_to_close};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/it/tls").join(name)
}

/// A folder with the certificate and the key that a server is given, to be replaced while it runs.
struct Pair(TempDir);

impl Pair {
    fn new() -> Self {
        let pair = Self(tempfile::tempdir().unwrap());
        pair.put("server");
        pair
    }

    /// The pair `name` of the tests.
    fn put(&self, name: &str) {
        std::fs::copy(file(&format!("{name}.pem")), self.cert()).unwrap();
        std::fs::copy(file(&format!("{name}.key")), self.key()).unwrap();
    }

    fn cert(&self) -> PathBuf {
        self.0.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }

    /// A server that listens with it.
    fn serve(&self, arguments: &[&str]) -> Server {
        let mut command = program();
        command.args(["--port", "0", "--log-level", "info", "--model"]).arg(golden_model());
        command.arg("--tls-cert").arg(self.cert()).arg("--tls-key").arg(self.key()).args(arguments);
        Server::of_command(command)
    }
}

/// A client that trusts `authority` alone, for one connection a request.
fn client(authority: &str) -> reqwest::Client {
    // An error means that another test was faster.
    let _ = ring::default_provider().install_default();
    let authority = Certificate::from_pem(&std::fs::read(file(authority)).unwrap()).unwrap();
    reqwest::Client::builder().tls_certs_only([authority]).pool_max_idle_per_host(0).no_proxy().build().unwrap()
}

async fn status(server: &Server, authority: &str, path: &str) -> Option<u16> {
    let answer = client(authority).get(format!("https://{}{path}", server.address)).send().await;
    answer.ok().map(|answer| answer.status().as_u16())
}

async fn ready(server: &Server, authority: &str) {
    let deadline = Instant::now() + DEADLINE;
    while status(server, authority, "/ready").await != Some(200) {
        assert!(Instant::now() < deadline, "the server is not ready");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_port_speaks_tls_and_streams_over_it() {
    let pair = Pair::new();
    let server = pair.serve(&[]);
    ready(&server, "authority.pem").await;
    assert!(server.announced().contains(&format!("is ready on https://{}", server.address)));
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 40, "ignore_eos": true, "stream": true});
    let url = format!("https://{}/generate", server.address);
    let client = client("authority.pem");
    let answer = client.post(&url).json(&body).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, reqwest::Version::HTTP_11));
    let text = answer.text().await.unwrap();
    assert!(text.contains("\"final\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
    // A client that trusts others is not served.
    assert_eq!(status(&server, "renewed.pem", "/ready").await, None);
}

#[tokio::test]
async fn what_is_not_tls_is_told_so_and_silence_has_an_end() {
    let pair = Pair::new();
    let server = pair.serve(&["--header-timeout-seconds", "1"]);
    ready(&server, "authority.pem").await;
    let answer = server.get("/health");
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (400, Some("https_required")));
    let mut silent = server.connect();
    assert_eq!(read_to_close(&mut silent), b"", "a connection without a handshake is closed");
    let mut half = server.connect();
    half.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap();
    assert_eq!(read_to_close(&mut half), b"");
    let mut broken = server.connect();
    broken.write_all(&[0x16; 400]).unwrap();
    read_to_close(&mut broken);
    assert_eq!(status(&server, "authority.pem", "/ready").await, Some(200));
}

#[tokio::test]
async fn a_certificate_is_read_again_and_a_broken_one_is_not() {
    let pair = Pair::new();
    let mut server = pair.serve(&["--api-key", "secret"]);
    ready(&server, "authority.pem").await;
    let reload = async |authority: &str| {
        let request = client(authority).post(format!("https://{}/admin/reload", server.address));
        let answer = request.header("x-api-key", "secret").send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    // A stream that runs goes on with what it began with.
    let url = format!("https://{}/generate", server.address);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 900, "ignore_eos": true, "stream": true});
    let stream = client("authority.pem").post(&url).header("x-api-key", "secret").json(&body).send().await.unwrap();

    std::fs::write(pair.cert(), "-----BEGIN CERTIFICATE-----\nbroken").unwrap();
    let (status_of, broken) = reload("authority.pem").await;
    let message = broken["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!((status_of, broken["error"]["code"].as_str()), (500, Some("reload_failed")), "{broken}");
    assert!(message.contains("--tls-cert") && message.contains("cert.pem") && message.contains("stays"), "{message}");
    std::fs::copy(file("renewed.pem"), pair.cert()).unwrap();
    let (_, mismatch) = reload("authority.pem").await;
    assert!(mismatch.to_string().contains("not the key of the certificate"), "{mismatch}");
    assert_eq!(status(&server, "authority.pem", "/ready").await, Some(200));

    pair.put("renewed");
    assert_eq!(reload("authority.pem").await.0, 200);
    assert_eq!(status(&server, "renewed.pem", "/ready").await, Some(200));
    assert_eq!(status(&server, "authority.pem", "/ready").await, None);
    pair.put("server");
    server.signal(Signal::USR1);
    ready(&server, "authority.pem").await;
    assert!(stream.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    server.signal(Signal::TERM);
    assert!(server.ended(DEADLINE).success());
}

#[tokio::test]
async fn a_client_that_leaves_over_tls_ends_its_request() {
    let pair = Pair::new();
    let server = pair.serve(&["--device", "reference"]);
    ready(&server, "authority.pem").await;
    let client = client("authority.pem");
    let in_flight = async || {
        let page =
            client.get(format!("https://{}/metrics", server.address)).send().await.unwrap().text().await.unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix("diffulex_num_requests_in_flight ")).unwrap();
        line.parse::<u32>().unwrap()
    };
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": true, "stream": true});
    let mut stream = client.post(format!("https://{}/generate", server.address)).json(&body).send().await.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    assert_eq!(in_flight().await, 1);
    drop(stream);
    let deadline = Instant::now() + DEADLINE;
    while in_flight().await > 0 {
        assert!(Instant::now() < deadline, "the request goes on");
    }
}

#[test]
fn files_that_are_no_certificate_are_named() {
    let pair = Pair::new();
    let refusal = || {
        let mut command = program();
        command.args(["--port", "0", "--tls-cert"]).arg(pair.cert()).arg("--tls-key").arg(pair.key());
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    std::fs::copy(file("renewed.key"), pair.key()).unwrap();
    let words = refusal();
    assert!(words.contains("--tls-key") && words.contains("not the key of the certificate in"), "{words}");
    std::fs::write(pair.key(), "hush").unwrap();
    let words = refusal();
    assert!(words.contains("key.pem: no private key in PEM") && !words.contains("hush"), "{words}");
    std::fs::copy(file("renewed.key"), pair.cert()).unwrap();
    assert!(refusal().contains("cert.pem: no certificate in PEM"));
    std::fs::remove_file(pair.cert()).unwrap();
    let words = refusal();
    assert!(words.contains("--tls-cert") && words.contains("cert.pem") && words.contains("No such file"), "{words}");
}

#[tokio::test]
async fn a_shutdown_ends_connections_that_are_in_their_handshake() {
    let pair = Pair::new();
    let mut server = pair.serve(&[]);
    ready(&server, "authority.pem").await;
    let silent = server.connect();
    // Accepted after the other, so this one is, too.
    assert_eq!(status(&server, "authority.pem", "/ready").await, Some(200));
    let begun = Instant::now();
    server.signal(Signal::TERM);
    assert!(server.ended(DEADLINE).success());
    assert!(begun.elapsed() < Duration::from_secs(20));
    drop(silent);
    assert!(std::net::TcpStream::connect(&server.address).is_err());
}
