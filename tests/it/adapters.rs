//! Adapters over HTTP: loaded and unloaded while serving, named as models, there again after the worker died.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Server, kill, wait_until};

/// Writes an adapter of rank 1 for one projection of the tiny checkpoint.
pub fn write_adapter(folder: &Path) {
    let values = |n: usize| (0..n).flat_map(|index| (((index * 7919) % 100) as f32 / 100.0 - 0.5).to_le_bytes());
    let name = |letter| format!("base_model.model.model.layers.1.self_attn.q_proj.lora_{letter}.weight");
    let header = json!({
        name("A"): {"dtype": "F32", "shape": [1, 64], "data_offsets": [0, 256]},
        name("B"): {"dtype": "F32", "shape": [128, 1], "data_offsets": [256, 768]},
    })
    .to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(values(64 + 128));
    std::fs::write(folder.join("adapter_model.safetensors"), bytes).unwrap();
    std::fs::write(folder.join("adapter_config.json"), r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 16}"#).unwrap();
}

fn ask(server: &Server, model: &str) -> Value {
    let prompt: Vec<u32> = (0..24).collect();
    let body = json!({"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    server.post("/generate", &body).json()
}

#[test]
fn adapters_come_and_go_and_outlive_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    write_adapter(folder.path());
    let server = Server::start(&["--served-model-name", "tiny"]);
    let load =
        |name: &str| server.post("/v1/load_lora_adapter", &json!({"lora_name": name, "lora_path": folder.path()}));
    let unload = |name: &str| server.post("/v1/unload_lora_adapter", &json!({"lora_name": name}));
    let base = ask(&server, "tiny")["text"].clone();
    assert_eq!(ask(&server, "mine")["error"]["code"], "model_not_found");

    assert_eq!(load("mine").status, 200);
    let again = load("mine");
    assert_eq!((again.status, again.json()["error"]["code"].clone()), (400, json!("adapter_refused")));
    assert_eq!(load("tiny").status, 400);
    let nowhere = server.post("/v1/load_lora_adapter", &json!({"lora_name": "x", "lora_path": "/nowhere"}));
    assert_eq!((nowhere.status, nowhere.error_param().as_deref()), (400, Some("lora_path")), "{}", nowhere.body);
    let models = server.get("/v1/models").json();
    assert_eq!((&models["data"][1]["id"], &models["data"][1]["parent"]), (&json!("mine"), &json!("tiny")));
    assert_eq!(server.get("/v1/models/mine").json()["parent"], "tiny");

    let adapted = ask(&server, "mine")["text"].clone();
    assert_ne!(adapted, base);
    assert_eq!(ask(&server, "tiny")["text"], base);
    let chat = json!({"model": "mine", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4});
    assert_eq!(server.post("/v1/chat/completions", &chat).json()["model"], "mine");

    kill(server.worker_pid().expect("a worker"), Signal::KILL);
    wait_until("a new worker", || server.metric("worker_restarts_total") == 1.0 && server.get("/ready").status == 200);
    assert_eq!(ask(&server, "mine")["text"], adapted);

    assert_eq!(unload("mine").status, 200);
    assert_eq!(ask(&server, "mine")["error"]["code"], "model_not_found");
    assert_eq!(unload("mine").status, 404);
    assert_eq!(ask(&server, "tiny")["text"], base);
}

#[test]
fn an_adapter_is_there_from_the_start_or_merged() {
    let folder = tempfile::tempdir().unwrap();
    write_adapter(folder.path());
    let named = format!("mine={}", folder.path().display());
    let beside = Server::start(&["--lora-path", &named]);
    let merged = Server::start(&["--lora-path", &named, "--pre-merge-lora", "--served-model-name", "mine"]);
    assert_eq!(ask(&beside, "mine")["text"], ask(&merged, "mine")["text"]);
}
