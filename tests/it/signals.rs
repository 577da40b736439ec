//! Signals, to the server and to its worker, at bad moments: what ends soon, what comes back, what is left behind.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Server, kill, long_stream, read_rest, read_some, stop, wait_until};

fn is_folder_empty(server: &Server) -> bool {
    std::fs::read_dir(server.folder.path()).unwrap().count() == 0
}

/// Kills the worker and waits until the next one serves.
fn lose_a_worker(server: &Server) {
    let n_restarts = server.metric("worker_restarts_total");
    kill(server.worker_pid().expect("a worker"), Signal::KILL);
    wait_until("service again", || {
        server.metric("worker_restarts_total") > n_restarts && server.get("/ready").status == 200
    });
}

#[test]
fn a_signal_while_the_model_loads_ends_the_server() {
    for stands_still in [false, true] {
        let mut server = Server::launch(&["--shutdown-grace-seconds", "1"]);
        if stands_still {
            wait_until("a worker", || server.worker_pid().is_some());
            // It stays where it is, and never will be ready.
            stop(server.worker_pid().unwrap());
        }
        server.signal(Signal::TERM);
        assert!(server.ended(Duration::from_secs(10)).success(), "stands still: {stands_still}");
        assert!(is_folder_empty(&server), "stands still: {stands_still}");
    }
}

#[test]
fn a_signal_in_a_back_off_ends_the_server_at_once() {
    /// The fourth pause of the back-off; each is longer than the one before.
    const PAUSE: Duration = Duration::from_secs(2);

    let mut server = Server::start(&[]);
    for _ in 0..3 {
        lose_a_worker(&server);
    }
    let killed = Instant::now();
    kill(server.worker_pid().expect("a worker"), Signal::KILL);
    wait_until("a back-off", || server.get("/health").json()["status"] == "restarting");
    server.signal(Signal::TERM);
    assert!(server.ended(Duration::from_secs(10)).success());
    assert!(killed.elapsed() < PAUSE, "it waited for {:?}", killed.elapsed());
    assert!(is_folder_empty(&server));
}

#[test]
fn a_worker_that_stands_still_holds_no_shutdown_up() {
    let mut server = Server::start(&["--shutdown-grace-seconds", "0"]);
    let mut stream = server.open("/generate", &long_stream("denoise"));
    let head = read_some(&mut stream);
    let worker = server.worker_pid().expect("a worker");
    stop(worker);
    server.signal(Signal::TERM);
    let last = read_rest(head, stream).frames().pop().unwrap();
    assert_eq!(last["error"]["code"], "shutting_down", "{last}");
    assert!(server.ended(Duration::from_secs(10)).success());
    assert!(is_folder_empty(&server));
    assert!(!std::path::Path::new(&format!("/proc/{worker}/exe")).exists(), "the worker is gone");
}

#[test]
fn a_worker_that_stood_still_for_a_moment_goes_on_where_it_was() {
    let server = Server::start(&[]);
    let mut body = long_stream("block_append");
    body["max_tokens"] = json!(400);
    let mut stream = server.open("/generate", &body);
    let head = read_some(&mut stream);
    let worker = server.worker_pid().expect("a worker");
    stop(worker);
    // Taken meanwhile, answered after.
    let waiting = server.open("/generate", &json!({"prompt": [5], "max_tokens": 4}));
    wait_until("both", || server.metric("num_requests_in_flight") == 2.0);
    kill(worker, Signal::CONT);
    assert!(read_rest(head, stream).is_done());
    assert_eq!(crate::harness::Answer::read(waiting).status, 200);
    assert_eq!((server.worker_pid(), server.metric("worker_restarts_total")), (Some(worker), 0.0));
}

#[test]
fn lost_workers_leave_neither_processes_nor_descriptors() {
    let server = Server::start(&[]);
    lose_a_worker(&server);
    let n_descriptors = server.n_descriptors();
    for _ in 0..2 {
        lose_a_worker(&server);
        assert_eq!(server.children().len(), 1, "the worker, and no zombie");
    }
    wait_until("as many descriptors as before", || server.n_descriptors() <= n_descriptors);
}

/// `KillMode=control-group`, systemd's default, signals every process of a service.
#[test]
fn a_signal_to_server_and_worker_alike_lets_requests_finish() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = Server::start(&["--shutdown-grace-seconds", "50"]);
        let mut body = long_stream("block_append");
        body["max_tokens"] = json!(200);
        let mut stream = server.open("/generate", &body);
        let head = read_some(&mut stream);
        let worker = server.worker_pid().expect("a worker");
        kill(worker, signal);
        server.signal(signal);
        let answer = read_rest(head, stream);
        assert!(answer.is_done(), "{signal:?}: {}", answer.body);
        assert!(server.ended(Duration::from_secs(30)).success(), "{signal:?}");
        wait_until("the worker's end", || !std::path::Path::new(&format!("/proc/{worker}/exe")).exists());
    }
}
