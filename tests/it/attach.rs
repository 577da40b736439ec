//! A server that attaches to a worker it did not start: service, the worker's loss, the server's end.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Server, golden_model, idle, kill, program, read_some, wait_until};

/// A worker of the tiny checkpoint.
struct Worker {
    process: Child,
}

impl Worker {
    /// One that listens.
    fn start(place: &Place) -> Self {
        Self::start_with(place, &[])
    }

    fn start_with(place: &Place, arguments: &[&str]) -> Self {
        let mut command = program();
        command.args(["worker", "--listen", &place.url(), "--log-level", "warn", "--model"]).arg(golden_model());
        let mut process = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains(&place.url()), "{line:?}");
        Self { process }
    }

    fn is_alive(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The folder in which they meet.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        format!("ipc://{}/worker", self.0.path().display())
    }

    /// A server that attaches here, and takes requests.
    fn server(&self) -> Server {
        Server::start(&["--connect", &self.url()])
    }
}

fn ask(server: &Server) -> Value {
    let answer = server.post("/generate", &json!({"prompt": [5, 6, 7], "max_tokens": 16, "temperature": 0}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["token_ids"].clone()
}

#[test]
fn an_attached_worker_answers_as_one_that_was_started() {
    let place = Place::new();
    let mut worker = Worker::start(&place);
    let attached = place.server();
    assert_eq!(attached.worker_pid(), None, "it has no child");
    assert_eq!(ask(&attached), ask(&Server::start(&[])));
    assert!(worker.is_alive());
}

#[test]
fn a_server_waits_for_a_worker_that_starts_later_and_comes_back() {
    let place = Place::new();
    let server = Server::launch(&["--connect", &place.url()]);
    assert_eq!(server.get("/ready").status, 503);
    let mut worker = Worker::start(&place);
    wait_until("the worker's service", || server.get("/ready").status == 200);
    let before = ask(&server);

    let mut stream = server.open("/generate", &crate::harness::long_stream("denoise"));
    let read = read_some(&mut stream);
    kill(worker.process.id(), Signal::KILL);
    worker.process.wait().unwrap();
    let lost = crate::harness::read_rest(read, stream);
    assert!(lost.body.contains("engine_lost"), "{}", lost.body);
    wait_until("the notice", || server.get("/ready").status == 503);
    let health = server.get("/health");
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("restarting")), "{}", health.body);

    let mut again = Worker::start(&place);
    wait_until("the new worker's service", || server.get("/ready").status == 200);
    assert_eq!(ask(&server), before);
    assert!(again.is_alive());
}

#[test]
fn a_worker_outlives_its_servers_and_ends_what_they_left() {
    let place = Place::new();
    let mut worker = Worker::start(&place);
    for signal in [Signal::TERM, Signal::KILL] {
        let mut server = place.server();
        let mut stream = server.open("/generate", &crate::harness::long_stream("denoise"));
        read_some(&mut stream);
        server.signal(signal);
        if signal == Signal::TERM {
            // It does not wait for the grace twice.
            server.signal(signal);
        }
        server.ended(crate::harness::DEADLINE);
        assert!(worker.is_alive(), "{signal:?}");
    }
    let server = place.server();
    ask(&server);
    wait_until("an idle engine", || idle(&server));
}

#[test]
fn profiles_are_of_both_where_both_name_the_folder() {
    let place = Place::new();
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--profile-dir", folder.path().to_str().unwrap()];
    let worker = Worker::start_with(&place, &flags);
    let server = Server::start(&[&["--connect", &place.url()][..], &flags].concat());
    let started = server.post("/start_profile", &json!({"run_id": "r"}));
    assert_eq!(started.status, 200, "{}", started.body);
    ask(&server);
    let stopped = server.post("/stop_profile", &json!({})).json();
    assert_eq!((&stopped["status"], &stopped["problem"]), (&json!("ok"), &Value::Null));
    for (stage, pid) in [("frontend", server.pid()), ("engine", worker.process.id())] {
        let events =
            std::fs::read_to_string(folder.path().join(format!("r/events/events_{stage}_{pid}.jsonl"))).unwrap();
        assert!(!events.is_empty(), "{stage}");
    }
    // A worker that was started without refuses, and nothing is recorded.
    let place = Place::new();
    let _closed = Worker::start(&place);
    let server = Server::start(&[&["--connect", &place.url()][..], &flags].concat());
    let refused = server.post("/start_profile", &json!({"run_id": "s"}));
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (400, &json!("profile_refused")),
        "{}",
        refused.body
    );
}

#[test]
fn a_second_server_is_refused() {
    let place = Place::new();
    let _worker = Worker::start(&place);
    let first = place.server();
    let refuse = |command: &mut Command| {
        let output = command.stdout(Stdio::null()).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let told = refuse(program().args(["--port", "0", "--connect", &place.url(), "--model"]).arg(golden_model()));
    assert!(told.contains("another front end is attached"), "{told}");
    let told = refuse(program().args(["worker", "--listen", &place.url(), "--model"]).arg(golden_model()));
    assert!(told.contains("another program listens"), "{told}");
    ask(&first);
}
