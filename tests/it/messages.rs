//! `POST /v1/messages` and its count of tokens: the order and the shape of events, stop reasons, and what is refused.

use serde_json::{Value, json};

use crate::harness::{Server, idle, joined, read_until, wait_until};

fn tiny() -> Server {
    Server::start(&["--served-model-name", "tiny"])
}

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "seed": 7,
                          "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn payloads(events: &[(String, Value)], name: &str) -> Vec<Value> {
    events.iter().filter(|(of, _)| of == name).map(|(_, data)| data.clone()).collect()
}

#[test]
fn a_message_is_the_answer_of_a_chat_with_the_same_messages() {
    let server = tiny();
    let system = json!([{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": " brief"}]);
    let turns = json!([{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b"},
                       {"role": "user", "content": "hello"}]);
    let asked = json!({"system": system, "messages": turns});
    let message = server.post("/v1/messages", &body(asked.clone())).json();
    let messages = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"},
                          {"role": "assistant", "content": "b"}, {"role": "user", "content": "hello"}]);
    let chat = json!({"messages": messages, "max_tokens": 12, "seed": 7, "ignore_eos": true});
    let chat = server.post("/v1/chat/completions", &chat).json();
    // Without `citations`: clients take a list there, and no null.
    assert_eq!(message["content"], json!([{"type": "text", "text": chat["choices"][0]["message"]["content"]}]));
    assert!(message["id"].as_str().unwrap().starts_with("msg_diffulex-"), "{message}");
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!("tiny"))
    );
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    // Anthropic counts what was in the cache beside the input.
    let usage = &message["usage"];
    let prompt = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!((json!(prompt), &usage["output_tokens"]), (chat["usage"]["prompt_tokens"].clone(), &json!(12)));
    let count =
        server.post("/v1/messages/count_tokens", &json!({"model": "tiny", "system": "be brief", "messages": turns}));
    assert_eq!(count.json(), json!({"input_tokens": prompt}));
    // The whole body of a message, as some clients send it.
    let mut whole = body(asked);
    whole["stop_sequences"] = json!(["x"]);
    whole["stream"] = json!(true);
    assert_eq!(server.post("/v1/messages/count_tokens", &whole).json(), json!({"input_tokens": prompt}));
}

#[test]
fn tokens_of_the_cache_are_counted_beside_the_input_once_they_are_known() {
    let server = Server::start(&["--served-model-name", "tiny", "--page-size", "8"]);
    let extra = json!({"messages": [{"role": "user", "content": "one two three four five six seven eight nine ten"}]});
    let count = |usage: &Value| {
        let of = |name: &str| usage[name].as_u64().unwrap();
        (of("input_tokens"), of("cache_read_input_tokens"))
    };
    let (prompt, cached) = count(&server.post("/v1/messages", &body(extra.clone())).json()["usage"]);
    assert_eq!(cached, 0);
    let (input, cached) = count(&server.post("/v1/messages", &body(extra.clone())).json()["usage"]);
    assert!(cached >= 8, "{cached}");
    assert_eq!(input + cached, prompt);
    let mut extra = extra;
    extra["stream"] = json!(true);
    let events = server.post("/v1/messages", &body(extra)).events();
    assert_eq!(count(&payloads(&events, "message_start")[0]["message"]["usage"]), (prompt, 0));
    assert_eq!(count(&payloads(&events, "message_delta")[0]["usage"]), (input, cached));
}

#[test]
fn a_message_that_meets_a_limit_has_its_name() {
    let server = Server::start(&["--served-model-name", "tiny", "--max-model-len", "64"]);
    for (limit, reason) in
        [(json!({"max_tokens": 500}), "model_context_window_exceeded"), (json!({"max_nfe": 2}), "max_tokens")]
    {
        assert_eq!(server.post("/v1/messages", &body(limit.clone())).json()["stop_reason"], reason);
        let mut limit = limit;
        limit["stream"] = json!(true);
        let events = server.post("/v1/messages", &body(limit)).events();
        assert_eq!(payloads(&events, "message_delta")[0]["delta"]["stop_reason"], reason);
    }
}

#[test]
fn events_are_in_anthropics_order() {
    let server = tiny();
    let whole = server.post("/v1/messages", &body(json!({}))).json();
    let answer = server.post("/v1/messages", &body(json!({"stream": true})));
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = answer.events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let n_deltas = names.iter().filter(|name| **name == "content_block_delta").count();
    // The template knows thoughts, so a block begins with what it is made of.
    let mut expected = vec!["message_start", "ping", "content_block_start"];
    expected.extend(vec!["content_block_delta"; n_deltas]);
    expected.extend(["content_block_stop", "message_delta", "message_stop"]);
    assert_eq!(names, expected);
    assert!(events.iter().all(|(name, data)| data["type"] == *name));
    let start = &events[0].1["message"];
    assert_eq!(
        (&start["content"], &start["stop_reason"], &start["usage"]["output_tokens"]),
        (&json!([]), &Value::Null, &json!(0))
    );
    assert!(start["usage"]["input_tokens"].as_u64().unwrap() > 0);
    assert_eq!(payloads(&events, "content_block_start")[0]["content_block"], json!({"type": "text", "text": ""}));
    assert_eq!(
        joined(&payloads(&events, "content_block_delta"), "/delta/text"),
        whole["content"][0]["text"].as_str().unwrap()
    );
    let end = &payloads(&events, "message_delta")[0];
    assert_eq!(end["delta"], json!({"stop_reason": "max_tokens", "stop_sequence": null}));
    assert_eq!(end["usage"]["output_tokens"], 12);
}

#[test]
fn the_stop_sequence_that_matched_is_named() {
    let server = tiny();
    let long = json!({"max_tokens": 40, "temperature": 0});
    let text =
        server.post("/v1/messages", &body(long.clone())).json()["content"][0]["text"].as_str().unwrap().to_owned();
    let characters: Vec<char> = text.chars().collect();
    assert!(characters.len() > 8, "{text:?}");
    let stop: String = characters[5..7].iter().collect();
    let expected = text.split(&stop).next().unwrap();
    let mut asked = long;
    asked["stop_sequences"] = json!(["never written", stop, format!("{stop}never")]);
    let message = server.post("/v1/messages", &body(asked.clone())).json();
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    assert_eq!(message["content"][0]["text"], expected);
    asked["stream"] = json!(true);
    let events = server.post("/v1/messages", &body(asked)).events();
    assert_eq!(
        payloads(&events, "message_delta")[0]["delta"],
        json!({"stop_reason": "stop_sequence", "stop_sequence": stop})
    );
    assert_eq!(joined(&payloads(&events, "content_block_delta"), "/delta/text"), expected);
}

#[test]
fn denoise_events_are_between_and_change_no_text() {
    let server = tiny();
    let append = server.post("/v1/messages", &body(json!({"stream": true}))).events();
    assert!(payloads(&append, "diffulex_denoise").is_empty());
    let denoise = server.post("/v1/messages", &body(json!({"stream": true, "stream_mode": "denoise"}))).events();
    let text = |events: &[(String, Value)]| joined(&payloads(events, "content_block_delta"), "/delta/text");
    assert_eq!(text(&append), text(&denoise));
    let snapshots = payloads(&denoise, "diffulex_denoise");
    assert!(!snapshots.is_empty() && snapshots.iter().all(|snapshot| snapshot["mask_positions"].is_array()));
    assert_eq!(joined(&snapshots, "/committed_text"), text(&denoise));
}

#[test]
fn characters_of_several_tokens_arrive_whole() {
    let server = tiny();
    let mut n_wide = 0;
    for seed in 0..12 {
        let mut extra = json!({"seed": seed, "temperature": 1.0, "max_tokens": 48});
        let whole = server.post("/v1/messages", &body(extra.clone())).json();
        let text = whole["content"][0]["text"].as_str().unwrap().to_owned();
        extra["stream"] = json!(true);
        let events = server.post("/v1/messages", &body(extra)).events();
        assert_eq!(joined(&payloads(&events, "content_block_delta"), "/delta/text"), text);
        n_wide += text.chars().filter(|character| character.len_utf8() > 1).count();
    }
    assert!(n_wide > 0, "no text had a character of several bytes");
}

#[test]
fn fields_without_support_are_refused_by_name() {
    let server = tiny();
    for (extra, field) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "tool", "content": "a"}]}), "messages[0].role"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}),
            "messages[0].content[0].tool_use_id",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "f"}]}]}),
            "messages[0].content[0].type",
        ),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0]"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"thinking": {"type": "sometimes"}}), "thinking.type"),
        (json!({"output_config": {"effort": "high"}}), "output_config.effort"),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"prompt": "x"}), "prompt"),
        (json!({"n": 2}), "n"),
    ] {
        let answer = server.post("/v1/messages", &body(extra.clone()));
        let error = answer.json();
        assert_eq!((answer.status, &error["type"]), (400, &json!("error")), "{extra} {error}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().unwrap().starts_with(field), "{extra} {error}");
    }
}

#[test]
fn answers_and_errors_have_the_header_that_anthropics_clients_read() {
    let server = tiny();
    for (path, body, status) in [
        ("/v1/messages", body(json!({})), 200),
        ("/v1/messages", body(json!({"stream": true})), 200),
        ("/v1/messages", body(json!({"max_tokens": 0})), 400),
        ("/v1/messages/count_tokens", json!({"messages": [{"role": "user", "content": "a"}]}), 200),
        ("/v1/messages/nobody", json!({}), 404),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, status, "{path} {}", answer.body);
        let id = answer.header("request-id").unwrap_or_else(|| panic!("{path} {status}: no request-id"));
        assert_eq!(Some(id), answer.header("x-request-id"), "{path}");
        if status != 200 {
            assert_eq!(answer.json()["request_id"].as_str().map(str::to_ascii_lowercase).as_deref(), Some(id));
        }
    }
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    assert_eq!(server.post("/v1/chat/completions", &chat).header("request-id"), None);
}

#[test]
fn a_client_that_leaves_aborts_its_message() {
    let server = tiny();
    let mut socket = server.open("/v1/messages", &body(json!({"max_tokens": 1900, "stream": true})));
    read_until(&mut socket, "content_block_delta");
    drop(socket);
    wait_until("no request", || idle(&server));
}
