//! What the program says and does before and beside serving.

use std::process::Output;

use serde_json::json;

use crate::harness::{Server, golden_model, program};

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_taken_port_is_told_before_the_model_loads() {
    let server = Server::launch(&[]);
    let port = server.address.rsplit(':').next().unwrap();
    let output = run(&["--port", port, "--model", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot listen on"), "{}", stderr(&output));
}

#[test]
fn a_folder_that_is_none_ends_with_a_reason() {
    let output = run(&["--port", "0", "--model", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nowhere"), "{}", stderr(&output));
}

#[test]
fn a_model_the_engine_refuses_ends_the_server_with_the_engines_words() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(golden_model().join(file), folder.path().join(file)).unwrap();
    }
    std::fs::write(folder.path().join("config.json"), r#"{"architectures": ["Nobody"]}"#).unwrap();
    let output = run(&["--port", "0", "--model", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("Nobody"), "{}", stderr(&output));
}

#[test]
fn a_wrong_flag_is_a_usage_error() {
    assert_eq!(run(&["--nobody"]).status.code(), Some(2));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    let refused = run(&["--port", "0", "--sampling-mode", "edit"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("--sampling-mode edit is not supported"), "{}", stderr(&refused));
}

#[test]
fn a_worker_without_orders_leaves() {
    let output = program().arg("worker").stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("orders"), "{}", stderr(&output));
}

#[test]
fn readiness_is_announced_with_the_address() {
    let server = Server::launch(&[]);
    let line = server.announced();
    assert!(line.contains("is ready on http://") && line.contains(&server.address), "{line}");
}

#[test]
fn the_engine_runs_in_process_too() {
    let server = Server::start(&["--in-process"]);
    assert_eq!(server.worker_pid(), None);
    let body = json!({"prompt": [5, 6], "max_tokens": 4, "seed": 1});
    assert_eq!(server.post("/generate", &body).status, 200);
}

#[test]
fn generate_writes_one_answer() {
    let folder = golden_model();
    let model = folder.to_str().unwrap();
    let arguments = ["generate", "hello", "--model", model, "--max-tokens", "8", "--seed", "1"];
    let (first, second) = (run(&arguments), run(&arguments));
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    assert!(!first.stdout.is_empty());
    assert_eq!(first.stdout, second.stdout, "the same seed");
    assert!(stderr(&first).contains("tokens/s"), "{}", stderr(&first));
}

#[test]
fn the_demo_model_needs_no_file() {
    let output = run(&["generate", "Hello", "--temperature", "0"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!output.stdout.is_empty());
}
