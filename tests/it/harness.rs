//! A server under test: started, asked, ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Longest wait for anything. Generous, as the machine may be busy; nothing takes this long.
pub const DEADLINE: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(10);

/// The tiny checkpoint.
pub fn golden_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/sdar")
}

/// The server's program.
pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_diffulex-server"))
}

/// Polls until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::park_timeout(POLL);
    }
}

pub struct Server {
    process: Child,
    pub address: String,
    /// Its TMPDIR, where the private folder lies.
    pub folder: TempDir,
    lines: Receiver<String>,
}

impl Server {
    /// A server of the tiny checkpoint that takes requests.
    pub fn start(arguments: &[&str]) -> Self {
        Self::of(&golden_model(), arguments)
    }

    /// A server of `model` that takes requests.
    pub fn of(model: &Path, arguments: &[&str]) -> Self {
        let server = Self::launch_of(model, arguments);
        wait_until("a ready server", || server.get("/ready").status == 200);
        server
    }

    /// A server that listens.
    pub fn launch(arguments: &[&str]) -> Self {
        Self::launch_of(&golden_model(), arguments)
    }

    fn launch_of(model: &Path, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut process = program()
            .args(["--port", "0", "--log-level", "warn", "--model"])
            .arg(model)
            .args(arguments)
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stdout = process.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let first = lines.recv_timeout(DEADLINE).expect("the address is announced");
        let address = first.split("http://").nth(1).unwrap_or_else(|| panic!("no address in {first:?}")).to_owned();
        Self { process, address, folder, lines }
    }

    pub fn announced(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("a line")
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The worker's process id: the only child.
    pub fn worker_pid(&self) -> Option<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).ok()?;
        tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
            .flat_map(|children| children.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .find_map(|pid| pid.parse().ok())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Waits for the end, at most `within`.
    pub fn ended(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the server did not end within {within:?}");
            std::thread::park_timeout(POLL);
        }
    }

    /// Resident memory of the front end in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"))
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, "application/json", &body.to_string())
    }

    pub fn post_text(&self, path: &str, content_type: &str, body: &str) -> Answer {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: {content_type}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    pub fn send(&self, request: &str) -> Answer {
        let mut socket = self.connect();
        socket.write_all(request.as_bytes()).unwrap();
        Answer::read(socket)
    }

    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket
    }

    /// Posts and returns with the connection open, nothing read.
    pub fn open(&self, path: &str, body: &Value) -> TcpStream {
        let mut socket = self.connect();
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes()).unwrap();
        socket
    }

    /// The value of a metric, labels and all.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let prefix = format!("diffulex_{name} ");
        let line = text.lines().find(|line| line.starts_with(&prefix)).unwrap_or_else(|| panic!("no metric {name}"));
        line[prefix.len()..].parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Reads to the end of the connection.
    pub fn read(mut socket: TcpStream) -> Self {
        let mut bytes = Vec::new();
        // A reset after the answer is an answer, too.
        let _ = socket.read_to_end(&mut bytes);
        Self::parse(&bytes)
    }

    pub fn parse(bytes: &[u8]) -> Self {
        let split = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8_lossy(&bytes[..split]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let raw = &bytes[split + 4..];
        let body = if head.contains("transfer-encoding: chunked") { unchunk(raw) } else { raw.to_vec() };
        Self { status, head, body: String::from_utf8(body).expect("UTF-8") }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Payloads of `data:` frames, `[DONE]` left out.
    pub fn frames(&self) -> Vec<Value> {
        frames(&self.body)
    }

    pub fn is_done(&self) -> bool {
        self.body.ends_with("data: [DONE]\n\n")
    }

    pub fn error_param(&self) -> Option<String> {
        self.json()["error"]["param"].as_str().map(str::to_owned)
    }
}

pub fn frames(body: &str) -> Vec<Value> {
    body.split("\n\n")
        .filter_map(|frame| frame.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}")))
        .collect()
}

/// Bytes of a chunked body, as far as they came.
pub fn unchunk(mut raw: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = raw.windows(2).position(|window| window == b"\r\n") {
        let Ok(size) = usize::from_str_radix(&String::from_utf8_lossy(&raw[..end]), 16) else { break };
        let chunk = &raw[end + 2..];
        body.extend_from_slice(&chunk[..size.min(chunk.len())]);
        if size == 0 || chunk.len() < size + 2 {
            break;
        }
        raw = &chunk[size + 2..];
    }
    body
}

/// A string field of each frame, joined.
pub fn joined(frames: &[Value], pointer: &str) -> String {
    frames.iter().filter_map(|frame| frame.pointer(pointer)?.as_str()).collect()
}
