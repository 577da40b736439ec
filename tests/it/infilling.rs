//! Prompts with masks over HTTP: filled in place, or refused with a reason.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Server, golden_model, joined};

/// The tiny checkpoint of LLaDA with the golden tokenizer.
fn llada() -> (TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    for (from, names) in [
        ("llada", &["config.json", "model.safetensors"][..]),
        ("tokenizer", &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]),
    ] {
        for name in names {
            std::fs::copy(golden.join(from).join(name), folder.path().join(name)).unwrap();
        }
    }
    let server = Server::of(folder.path(), &["--block-size", "4"]);
    (folder, server)
}

fn body(prompt: Value, extra: Value) -> Value {
    let mut body = json!({"prompt": prompt, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn masks_in_a_prompt_are_filled_in_place() {
    let (_folder, server) = llada();
    let text = "hello <|mask|><|mask|><|mask|> is <|mask|><|mask|> the end";
    let tokens = server.post("/tokenize", &json!({"prompt": text})).json()["tokens"].clone();
    let ids: Vec<u64> = tokens.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let masks: Vec<usize> = (0..ids.len()).filter(|index| ids[*index] == 500).collect();
    let stretch = masks[0]..masks[4] + 1;

    let native = server.post("/generate", &body(json!(text), json!({}))).json();
    let filled: Vec<u64> = native["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(filled.len(), stretch.len());
    for (filled, asked) in filled.iter().zip(&ids[stretch]) {
        assert!(if *asked == 500 { *filled != 500 } else { filled == asked }, "{native}");
    }
    let n_given = ids.len() - masks.len();
    assert_eq!(native["usage"]["prompt_tokens"], n_given);
    assert_eq!(native["usage"]["completion_tokens"], 5);
    assert_eq!(native["usage"]["total_tokens"], ids.len());
    assert!(native["nfe"].as_u64().unwrap() <= 5, "{native}");

    // Text or ids, whole or in pieces, it is the same answer.
    for prompt in [json!(text), json!(ids)] {
        let whole = server.post("/v1/completions", &body(prompt.clone(), json!({}))).json();
        assert_eq!(whole["choices"][0]["text"], native["text"]);
        assert_eq!(whole["usage"]["completion_tokens"], 5);
        for mode in ["block_append", "denoise"] {
            let stream = json!({"stream": true, "stream_mode": mode});
            let frames = server.post("/v1/completions", &body(prompt.clone(), stream.clone())).frames();
            assert_eq!(joined(&frames, "/choices/0/text"), native["text"].as_str().unwrap(), "{mode}");
            let last = server.post("/generate", &body(prompt.clone(), stream)).frames().pop().unwrap();
            assert_eq!((&last["event"], &last["text"]), (&json!("final"), &native["text"]), "{mode}");
        }
    }
    let bounded = server.post("/generate", &body(json!(text), json!({"max_tokens": 3})));
    assert_eq!((bounded.status, bounded.error_param().as_deref()), (400, Some("max_tokens")), "{}", bounded.body);
}

#[test]
fn a_mask_in_a_chat_is_a_token_like_any_other() {
    let (_folder, server) = llada();
    let chat = |content: &str| {
        let messages = json!([{"role": "user", "content": content}]);
        server.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 8, "ignore_eos": true})).json()
    };
    let (with, without) = (chat("a <|mask|>"), chat("a "));
    assert_eq!(with["usage"]["completion_tokens"], 8, "{with}");
    let n_tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(n_tokens(&with), n_tokens(&without) + 1);
}

#[test]
fn a_model_that_goes_block_after_block_refuses_masks() {
    let server = Server::of(&golden_model(), &[]);
    for (path, prompt) in [("/generate", json!([5, 500, 500, 7])), ("/v1/completions", json!("a <|mask|> b"))] {
        let answer = server.post(path, &body(prompt, json!({})));
        assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some("prompt")), "{}", answer.body);
        assert!(answer.body.contains("multi_bd"), "{}", answer.body);
    }
    let messages = json!([{"role": "user", "content": "a <|mask|>"}]);
    assert_eq!(server.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 4})).status, 200);
}
