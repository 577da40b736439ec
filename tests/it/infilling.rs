//! Prompts with masks over HTTP: filled in place, or refused with a reason.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Server, golden_model, joined};

/// The tiny checkpoint of LLaDA with the golden tokenizer.
pub fn llada_model() -> TempDir {
    with_tokenizer("llada")
}

/// A tiny checkpoint with the golden tokenizer.
pub fn with_tokenizer(checkpoint: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    for (from, names) in [
        (checkpoint, &["config.json", "model.safetensors"][..]),
        ("tokenizer", &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]),
    ] {
        for name in names {
            std::fs::copy(golden.join(from).join(name), folder.path().join(name)).unwrap();
        }
    }
    folder
}

pub fn llada() -> (TempDir, Server) {
    let folder = llada_model();
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
    // With what stands before and after, it is the whole text.
    let whole: Vec<u64> = [&ids[..masks[0]], &filled[..], &ids[masks[4] + 1..]].concat();
    assert!(whole.len() == ids.len() && whole.iter().zip(&ids).all(|(id, asked)| *asked == 500 || id == asked));
    let detokenised = server.post("/detokenize", &json!({"tokens": whole})).json()["prompt"].clone();
    assert_eq!(detokenised, format!("hello {} the end", native["text"].as_str().unwrap()));
    let bounded = server.post("/generate", &body(json!(text), json!({"max_tokens": 3})));
    assert_eq!((bounded.status, bounded.error_param().as_deref()), (400, Some("max_tokens")), "{}", bounded.body);
    for (extra, param) in [
        (json!({"echo": true}), "echo"),
        (json!({"prompt_logprobs": 1}), "prompt_logprobs"),
        (json!({"echo": true, "logprobs": 1}), "echo"),
    ] {
        let refused = server.post("/v1/completions", &body(json!(text), extra));
        assert_eq!((refused.status, refused.error_param().as_deref()), (400, Some(param)), "{}", refused.body);
        assert!(refused.json()["error"]["message"].as_str().unwrap().starts_with(param), "{}", refused.body);
    }
}

#[test]
fn a_suffix_is_text_or_ids() {
    let (_folder, server) = llada();
    let fill = |path: &str, suffix: &Value| {
        let answer = server.post(path, &body(json!("hello"), json!({"suffix": suffix, "max_tokens": 6})));
        assert_eq!(answer.status, 200, "{path} {}", answer.body);
        answer.json()
    };
    let ids = server.post("/tokenize", &json!({"prompt": " is the end"})).json()["tokens"].clone();
    let (text, other) = (json!(" is the end"), json!("size world 12"));
    let native = fill("/generate", &text);
    assert_eq!(native["token_ids"], fill("/generate", &ids)["token_ids"]);
    assert_ne!(native["token_ids"], fill("/generate", &other)["token_ids"]);
    let completed = |suffix: &Value| fill("/v1/completions", suffix)["choices"][0]["text"].clone();
    assert_eq!((completed(&text), completed(&ids)), (native["text"].clone(), native["text"].clone()));
}

#[test]
fn a_suffix_is_the_gap_of_that_many_masks_on_both_routes() {
    let (_folder, server) = llada();
    let masks = body(json!("hello<|mask|><|mask|><|mask|><|mask|> the end"), json!({}));
    let want = server.post("/generate", &masks).json()["text"].clone();
    let gap = body(json!("hello"), json!({"suffix": " the end", "max_tokens": 4}));
    assert_eq!(server.post("/generate", &gap).json()["text"], want);
    assert_eq!(server.post("/v1/completions", &gap).json()["choices"][0]["text"], want);
}

#[test]
fn a_stop_string_ends_a_filled_text_anywhere_and_an_end_token_only_behind_what_is_given() {
    let (_folder, server) = llada();
    let text = "hello <|mask|><|mask|><|mask|> is <|mask|><|mask|> the end";
    let fill = |extra: Value| server.post("/generate", &body(json!(text), extra)).json();
    let whole = fill(json!({}))["text"].as_str().unwrap().to_owned();
    let (gap, _) = whole.split_once(" is ").unwrap_or_else(|| panic!("the given text is not in {whole:?}"));
    let last: String = gap.chars().skip(gap.chars().count() - 1).collect();
    // In a gap, in given text, over both.
    for stop in [last.clone(), " is".to_owned(), format!("{last} is")] {
        let answer = fill(json!({"stop": [stop]}));
        assert_eq!(answer["finish_reason"], "stop_string", "{stop:?}: {answer}");
        assert_eq!(answer["text"].as_str(), whole.split(&stop).next(), "{stop:?}");
    }
    // The end token in every gap: text goes on behind the first, and ends in the last.
    let ended = fill(json!({"ignore_eos": false, "logit_bias": {"501": 100}}));
    let ids: Vec<u64> = ended["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(ids[..3], [501; 3], "{ended}");
    assert_eq!((&ended["text"], &ended["finish_reason"]), (&json!(" is "), &json!("eos_token_generated")), "{ended}");
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
