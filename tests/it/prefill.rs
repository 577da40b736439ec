//! Answers that continue a message: the prompt is the rendered conversation up to there, on every interface that has it.

use serde_json::{Value, json};

use crate::harness::{Server, golden_model};
use crate::infilling::llada;

const CHAT: &str = "/v1/chat/completions";

fn extended(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn continuing() -> Value {
    json!({"add_generation_prompt": false, "continue_final_message": true})
}

fn conversation(begun: &str) -> Value {
    json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"},
           {"role": "assistant", "content": begun}])
}

fn greedy() -> Value {
    json!({"max_tokens": 14, "temperature": 0, "ignore_eos": true})
}

/// Ids and text of a conversation as `/tokenize` and `/detokenize` have them.
fn rendered(server: &Server, messages: &Value, ends: Value) -> (Value, String) {
    let answer = server.post("/tokenize", &extended(json!({"messages": messages}), ends));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let ids = answer.json()["tokens"].clone();
    // Special tokens are not in a detokenised text.
    let prompt = json!({"prompt": ids, "max_tokens": 0, "echo": true});
    let text = server.post("/v1/completions", &prompt).json()["choices"][0]["text"].as_str().unwrap().to_owned();
    (ids, text)
}

fn check_continuations(server: &Server, block_size: usize, keeps_contexts: bool) {
    let whole = "Berlin is the capital of Germany, and the sky is blue; so it goes on, word by word, to its end";
    let mut lengths = std::collections::BTreeSet::new();
    for n in 0..24 {
        let begun = &whole[..whole.floor_char_boundary(n * 3)];
        let messages = conversation(begun);
        let (ids, text) = rendered(server, &messages, continuing());
        assert!(text.ends_with(&format!("<|im_start|>assistant\n{begun}")), "{text:?}");
        lengths.insert(ids.as_array().unwrap().len() % block_size);
        let raw = server.post("/generate", &extended(greedy(), json!({"prompt": ids}))).json();
        let body = extended(extended(greedy(), json!({"messages": messages})), continuing());
        let chat = server.post(CHAT, &body).json();
        assert_eq!(chat["choices"][0]["message"]["content"], raw["text"], "{begun:?}");
        // Of all forwards, those over the prompt may find it in the cache.
        for part in ["/usage/prompt_tokens", "/usage/completion_tokens", "/diffulex/nfe_denoise"] {
            assert_eq!(chat.pointer(part), raw.pointer(part), "{begun:?} {part}");
        }
        if n % 6 != 0 || !keeps_contexts {
            continue;
        }
        // The ids themselves, of a route of messages that has them.
        let context = server.post("/v1/contexts", &json!({})).json()["context_id"].clone();
        let path = format!("/v1/contexts/{context}/generate");
        let on_context = server.post(&path, &body).json();
        assert_eq!(on_context["token_ids"], raw["token_ids"], "{begun:?} {on_context}");
    }
    assert_eq!(lengths.len(), block_size, "every place in a block");
}

#[test]
fn a_continued_message_is_a_prompt_like_any_other() {
    let server = Server::start(&["--served-model-name", "tiny"]);
    let block_size = server.get("/v1/models").json()["data"][0]["diffulex"]["block_size"].as_u64().unwrap();
    check_continuations(&server, block_size as usize, true);
    let (_folder, server) = llada();
    check_continuations(&server, 4, false);
}

#[test]
fn a_conversation_may_end_with_its_last_message() {
    let server = Server::start(&[]);
    let messages = conversation("yes");
    let (ids, text) = rendered(&server, &messages, json!({"add_generation_prompt": false}));
    assert!(text.ends_with("<|im_start|>assistant\nyes<|im_end|>\n"), "{text:?}");
    let raw = server.post("/generate", &extended(greedy(), json!({"prompt": ids}))).json();
    let body = extended(greedy(), json!({"messages": messages, "add_generation_prompt": false}));
    assert_eq!(server.post(CHAT, &body).json()["choices"][0]["message"]["content"], raw["text"]);
    // The defaults by name.
    let plain = extended(greedy(), json!({"messages": messages}));
    let named = extended(plain.clone(), json!({"add_generation_prompt": true, "continue_final_message": false}));
    let text = |body: &Value| server.post(CHAT, body).json()["choices"][0]["message"].clone();
    assert_eq!(text(&plain), text(&named));
}

#[test]
fn anthropics_and_ollamas_last_message_of_the_assistant_is_continued() {
    let server = Server::start(&["--served-model-name", "tiny"]);
    let messages = json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Berlin is"}]);
    let (ids, _) = rendered(&server, &messages, continuing());
    let raw = server.post("/generate", &extended(greedy(), json!({"prompt": ids}))).json();
    let n_prompt = ids.as_array().unwrap().len();

    let body = extended(greedy(), json!({"messages": messages}));
    let message = server.post("/v1/messages", &body).json();
    assert_eq!(message["content"][0]["text"], raw["text"], "{message}");
    let count = server.post("/v1/messages/count_tokens", &json!({"messages": messages})).json();
    assert_eq!(count, json!({"input_tokens": n_prompt}));
    let blocks = json!([{"role": "user", "content": "hello"},
                        {"role": "assistant", "content": [{"type": "text", "text": "Berlin"}, {"type": "text", "text": " is"}]}]);
    let of_blocks = server.post("/v1/messages", &extended(greedy(), json!({"messages": blocks}))).json();
    assert_eq!(of_blocks["content"], message["content"]);
    let spaced = json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Berlin \n"}]);
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let answer = server.post(path, &extended(greedy(), json!({"messages": spaced})));
        let said = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && said.starts_with("messages[1].content"), "{path} {said}");
        assert!(said.contains("whitespace"), "{said}");
    }
    // An empty one is the start of the answer.
    let turn = json!([{"role": "user", "content": "hello"}]);
    let empty = json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": ""}]);
    let text = |messages: &Value| {
        server.post("/v1/messages", &extended(greedy(), json!({"messages": messages}))).json()["content"].clone()
    };
    assert_eq!(text(&empty), text(&turn));

    let options = json!({"num_predict": 14, "temperature": 0, "ignore_eos": true});
    let body = json!({"model": "tiny", "messages": messages, "options": options, "stream": false});
    let answer = server.post("/api/chat", &body).json();
    assert_eq!((&answer["message"]["content"], &answer["prompt_eval_count"]), (&raw["text"], &json!(n_prompt)));
}

#[test]
fn what_cannot_be_continued_is_refused_by_name() {
    let server = Server::start(&["--served-model-name", "tiny"]);
    let chat = |extra: Value| extended(extended(greedy(), json!({"messages": conversation("a")})), extra);
    let prompt = |extra: Value| extended(extended(greedy(), json!({"prompt": "a"})), extra);
    for (path, body, field, what) in [
        (CHAT, chat(json!({"continue_final_message": true})), "continue_final_message", "both be true"),
        (
            CHAT,
            chat(json!({"continue_final_message": true, "add_generation_prompt": true})),
            "continue_final_message",
            "both be true",
        ),
        ("/generate", prompt(continuing()), "continue_final_message", "messages"),
        ("/v1/completions", prompt(json!({"add_generation_prompt": false})), "add_generation_prompt", "messages"),
        (
            "/v1/responses",
            json!({"input": "a", "continue_final_message": true}),
            "continue_final_message",
            "not supported",
        ),
        (
            "/v1/responses",
            json!({"input": "a", "add_generation_prompt": false}),
            "add_generation_prompt",
            "not supported",
        ),
        ("/tokenize", json!({"prompt": "a", "continue_final_message": true}), "continue_final_message", "messages"),
        (
            "/tokenize",
            json!({"messages": conversation("a"), "continue_final_message": true}),
            "continue_final_message",
            "both be true",
        ),
    ] {
        let answer = server.post(path, &body);
        assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some(field)), "{path} {}", answer.body);
        let said = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(said.contains(what), "{path} {said}");
    }
    // Interfaces whose errors have another form.
    let said = json!([{"role": "user", "content": "a"}]);
    for (path, body) in [
        ("/v1/messages", json!({"messages": said, "max_tokens": 4})),
        ("/api/chat", json!({"model": "tiny", "messages": said, "options": {"num_predict": 4}, "stream": false})),
    ] {
        for (field, default) in [("add_generation_prompt", true), ("continue_final_message", false)] {
            let asked = |value: bool| server.post(path, &extended(body.clone(), json!({field: value})));
            let (refused, passed) = (asked(!default), asked(default));
            let error = refused.json()["error"].clone();
            let message = error["message"].as_str().or_else(|| error.as_str()).unwrap();
            assert!(refused.status == 400 && message.starts_with(field), "{path} {}", refused.body);
            assert_eq!(passed.status, 200, "{path} {field} {}", passed.body);
        }
    }
    // A template that does not write the last message.
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(golden_model()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let server = Server::of(folder.path(), &[]);
    let answer = server.post(CHAT, &chat(continuing()));
    assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some("messages")), "{}", answer.body);
}
