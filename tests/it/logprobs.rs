//! Log-probabilities on every interface that has them: as many alternatives as OpenAI's limit, and the same numbers everywhere.

use serde_json::{Value, json};

use crate::harness::Server;

const CHAT: &str = "/v1/chat/completions";

/// OpenAI's limit.
const MOST: usize = 20;

fn tiny() -> Server {
    Server::start(&["--served-model-name", "tiny"])
}

fn extended(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is not a list"))
}

fn user() -> Value {
    json!([{"role": "user", "content": "hello"}])
}

fn chat(extra: Value) -> Value {
    extended(json!({"messages": user(), "max_tokens": 12, "temperature": 0, "ignore_eos": true}), extra)
}

/// Chat's entries with `n` alternatives.
fn entries(server: &Server, n: usize) -> Value {
    let body = chat(json!({"logprobs": true, "top_logprobs": n}));
    server.post(CHAT, &body).json()["choices"][0]["logprobs"]["content"].clone()
}

#[test]
fn twenty_alternatives_are_reported_and_more_are_refused() {
    let server = tiny();
    let entries = entries(&server, MOST);
    for entry in list(&entries) {
        let tops: Vec<f64> = list(&entry["top_logprobs"]).iter().map(|top| top["logprob"].as_f64().unwrap()).collect();
        assert_eq!(tops.len(), MOST);
        assert!(tops.is_sorted_by(|a, b| a >= b), "{tops:?}");
        assert_eq!(entry["top_logprobs"][0]["token"], entry["token"]);
        let sum: f64 = tops.iter().map(|logprob| logprob.exp()).sum();
        assert!(sum > tops[0].exp() && sum < 1.0 + 1e-5, "{sum}");
    }
    let fewer = self::entries(&server, 3);
    for (few, all) in list(&fewer).iter().zip(list(&entries)) {
        assert_eq!(list(&few["top_logprobs"])[..], list(&all["top_logprobs"])[..3]);
    }
    let prompt = |extra: Value| extended(json!({"prompt": "hello world", "max_tokens": 4, "temperature": 0}), extra);
    let completion = server.post("/v1/completions", &prompt(json!({"logprobs": MOST, "ignore_eos": true}))).json();
    let tops = list(&completion["choices"][0]["logprobs"]["top_logprobs"]);
    // Tokens that look alike share a name.
    assert!(tops.iter().all(|top| top.as_object().unwrap().len() > MOST / 2), "{tops:?}");
    let scored = server.post("/v1/completions", &prompt(json!({"prompt_logprobs": MOST}))).json();
    let scored = list(&scored["choices"][0]["prompt_logprobs"]);
    assert!(scored[1..].iter().all(|entry| entry.as_object().unwrap().len() >= MOST), "{scored:?}");
    let native = prompt(json!({"logprobs": true, "top_logprobs": MOST, "ignore_eos": true}));
    assert_eq!(list(&server.post("/generate", &native).json()["alternatives"][0]).len(), MOST);
    for (path, body, field) in [
        (CHAT, chat(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs"),
        ("/v1/completions", prompt(json!({"logprobs": 21})), "logprobs"),
        ("/v1/completions", prompt(json!({"prompt_logprobs": 21})), "prompt_logprobs"),
        (
            "/v1/responses",
            json!({"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 21}),
            "top_logprobs",
        ),
    ] {
        let answer = server.post(path, &body);
        assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some(field)), "{path} {}", answer.body);
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("at most 20, got 21"), "{}", answer.body);
    }
}

#[test]
fn a_response_has_the_log_probabilities_of_a_chat_streamed_or_not() {
    let server = tiny();
    let expected = entries(&server, 3);
    let body = |extra: Value| {
        let body = json!({"input": "hello", "max_output_tokens": 12, "temperature": 0, "ignore_eos": true});
        extended(body, extra)
    };
    let asked = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 3});
    let response = server.post("/v1/responses", &body(asked.clone())).json();
    assert_eq!(response["output"][0]["content"][0]["logprobs"], expected, "{response}");
    assert_eq!(response["top_logprobs"], 3);
    let plain = server.post("/v1/responses", &body(json!({"include": ["reasoning.encrypted_content"]}))).json();
    assert_eq!(plain["output"][0]["content"][0]["logprobs"], json!([]));
    assert_eq!(plain["top_logprobs"], 0);
    for mode in ["block_append", "denoise"] {
        let streamed = extended(asked.clone(), json!({"stream": true, "stream_mode": mode}));
        let events = server.post("/v1/responses", &body(streamed)).events();
        let deltas: Vec<Value> = events
            .iter()
            .filter(|(name, _)| name == "response.output_text.delta")
            .flat_map(|(_, data)| list(&data["logprobs"]).clone())
            .collect();
        assert_eq!(json!(deltas), expected, "{mode}");
        for (name, place) in [
            ("response.output_text.done", "/logprobs"),
            ("response.content_part.done", "/part/logprobs"),
            ("response.output_item.done", "/item/content/0/logprobs"),
            ("response.incomplete", "/response/output/0/content/0/logprobs"),
        ] {
            let (_, data) = events.iter().find(|(of, _)| of == name).unwrap();
            assert_eq!(data.pointer(place), Some(&expected), "{mode} {name}");
        }
    }
    let alone = server.post("/v1/responses", &body(json!({"top_logprobs": 3})));
    assert_eq!((alone.status, alone.error_param().as_deref()), (400, Some("top_logprobs")), "{}", alone.body);
    assert!(alone.json()["error"]["message"].as_str().unwrap().contains("message.output_text.logprobs"));
}

#[test]
fn ollamas_lines_have_the_log_probabilities_of_a_chat() {
    let server = tiny();
    let expected = entries(&server, 3);
    let options = json!({"num_predict": 12, "temperature": 0, "ignore_eos": true});
    for (path, input) in [("/api/chat", json!({"messages": user()})), ("/api/generate", json!({"prompt": "hello"}))] {
        let body = |extra: Value| {
            extended(extended(json!({"model": "tiny", "options": options, "stream": false}), input.clone()), extra)
        };
        assert!(server.post(path, &body(json!({}))).json().get("logprobs").is_none());
        let whole = server.post(path, &body(json!({"logprobs": true, "top_logprobs": 3}))).json();
        assert_eq!(whole["logprobs"], expected, "{path}");
        let plain = server.post(path, &body(json!({"logprobs": true}))).json();
        let first = &plain["logprobs"][0];
        assert_eq!((&first["token"], &first["logprob"]), (&expected[0]["token"], &expected[0]["logprob"]));
        for mode in ["block_append", "denoise"] {
            let streamed = json!({"logprobs": true, "top_logprobs": 3, "stream": true, "stream_mode": mode});
            let lines = server.post(path, &body(streamed)).lines();
            let of_lines = lines.iter().filter_map(|line| line.get("logprobs")?.as_array().cloned()).flatten();
            assert_eq!(json!(of_lines.collect::<Vec<_>>()), expected, "{path} {mode}");
        }
        for (extra, field) in [
            (json!({"top_logprobs": 3}), "top_logprobs"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"logprobs": "yes"}), "logprobs"),
        ] {
            let answer = server.post(path, &body(extra));
            let message = answer.json()["error"].as_str().unwrap().to_owned();
            assert!(answer.status == 400 && message.starts_with(field), "{path} {message}");
        }
    }
}
