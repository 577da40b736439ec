//! A machine that grants too little: threads, file descriptors.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::harness::{Server, golden_model, program};

#[test]
fn a_thread_that_cannot_be_started_is_a_503_that_says_so() {
    let server = Server::start(&[]);
    let text = "hello ".repeat(20_000);
    let ask = |path: &str| server.post(path, &json!({"prompt": text, "max_tokens": 1}));
    // What the process has, and less than the stack of one thread more.
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    let n_kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let pid = Pid::from_raw(server.pid() as i32);
    let limit = |n_bytes: Option<u64>| {
        prlimit(pid, Resource::As, Rlimit { current: n_bytes, maximum: None }).unwrap();
    };
    limit(Some((n_kib + 1536) * 1024));
    for path in ["/tokenize", "/generate"] {
        let refused = ask(path);
        assert_eq!(refused.status, 503, "{path}: {}", refused.body);
        assert!(refused.body.contains("no thread could be started"), "{}", refused.body);
        assert!(refused.header("retry-after").is_some());
    }
    limit(None);
    let answer = ask("/tokenize");
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn a_limit_of_descriptors_that_is_too_low_is_named_at_start() {
    for limit in [20, 24, 28, 32, 36, 40, 44] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit}; exec \"$@\""), "sh"]).arg(program().get_program());
        command.args(["--port", "0", "--log-level", "warn", "--model"]).arg(golden_model());
        let started = Instant::now();
        let output = command.stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{limit}: {told}");
        assert!(told.contains(&format!("{limit} file descriptors")) && told.contains("needs 48"), "{limit}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
