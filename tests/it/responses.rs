//! `POST /v1/responses`: the order and the shape of events, and what is refused.

use serde_json::{Value, json};

use crate::harness::{Server, idle, joined, read_until, wait_until};

fn tiny() -> Server {
    Server::start(&["--served-model-name", "tiny"])
}

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "input": "hello", "max_output_tokens": 12, "seed": 7, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn payloads(events: &[(String, Value)], name: &str) -> Vec<Value> {
    events.iter().filter(|(of, _)| of == name).map(|(_, data)| data.clone()).collect()
}

#[test]
fn a_response_has_every_field_that_clients_miss_otherwise() {
    let server = tiny();
    let extra = json!({"instructions": "be brief", "metadata": {"a": "b"}, "store": true, "top_p": 0.5,
                       "reasoning": {"effort": "none"}, "text": {"format": {"type": "text"}}, "tools": []});
    let response = server.post("/v1/responses", &body(extra)).json();
    assert!(response["id"].as_str().unwrap().starts_with("resp_diffulex-"), "{response}");
    assert_eq!((&response["object"], &response["model"]), (&json!("response"), &json!("tiny")));
    assert_eq!((&response["store"], &response["background"]), (&json!(false), &json!(false)));
    assert_eq!((&response["instructions"], &response["metadata"]), (&json!("be brief"), &json!({"a": "b"})));
    assert_eq!((&response["top_p"], &response["max_output_tokens"]), (&json!(0.5), &json!(12)));
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let item = &response["output"][0];
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("assistant"), &json!("incomplete"))
    );
    assert_eq!((&item["content"][0]["type"], &item["content"][0]["annotations"]), (&json!("output_text"), &json!([])));
    let usage = &response["usage"];
    assert_eq!(usage["output_tokens"], 12);
    assert_eq!(usage["total_tokens"].as_u64().unwrap(), usage["input_tokens"].as_u64().unwrap() + 12);
    assert_eq!(usage["input_tokens_details"], json!({"cached_tokens": 0, "cache_write_tokens": 0}));
    assert_eq!(usage["output_tokens_details"], json!({"reasoning_tokens": 0}));
    for field in
        ["error", "previous_response_id", "tools", "tool_choice", "parallel_tool_calls", "truncation", "temperature"]
    {
        assert!(response.get(field).is_some(), "{field}");
    }
}

#[test]
fn the_answer_is_that_of_a_chat_with_the_same_messages() {
    let server = tiny();
    let items = json!([{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                       {"type": "message", "id": "m", "status": "completed", "role": "assistant",
                        "content": [{"type": "output_text", "text": "b", "annotations": []}]},
                       {"role": "user", "content": [{"type": "text", "text": "hello"}]}]);
    let response = server.post("/v1/responses", &body(json!({"input": items, "instructions": "c"}))).json();
    let messages = json!([{"role": "system", "content": "c"}, {"role": "user", "content": "a"},
                          {"role": "assistant", "content": "b"}, {"role": "user", "content": "hello"}]);
    let chat = json!({"messages": messages, "max_tokens": 12, "seed": 7, "ignore_eos": true});
    let chat = server.post("/v1/chat/completions", &chat).json();
    assert_eq!(response["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
}

#[test]
fn events_are_in_order_numbered_and_name_one_response() {
    let server = tiny();
    let whole = server.post("/v1/responses", &body(json!({}))).json();
    let answer = server.post("/v1/responses", &body(json!({"stream": true})));
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert!(!answer.body.contains("[DONE]"));
    let events = answer.events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let n_deltas = names.iter().filter(|name| **name == "response.output_text.delta").count();
    let mut expected =
        vec!["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"];
    expected.extend(vec!["response.output_text.delta"; n_deltas]);
    expected.extend([
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]);
    assert_eq!(names, expected);
    let (id, item_id) = (&events[0].1["response"]["id"], &events[2].1["item"]["id"]);
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        for (found, expected) in
            [(data.pointer("/response/id"), id), (data.get("item_id"), item_id), (data.pointer("/item/id"), item_id)]
        {
            assert!(found.is_none_or(|found| found == expected), "{data}");
        }
    }
    let text = &whole["output"][0]["content"][0]["text"];
    let deltas = payloads(&events, "response.output_text.delta");
    assert_eq!(joined(&deltas, "/delta"), text.as_str().unwrap());
    let last = &events.last().unwrap().1["response"];
    assert_eq!((&last["output"][0]["content"][0]["text"], &last["usage"]), (text, &whole["usage"]));
}

#[test]
fn a_response_that_meets_any_limit_is_incomplete() {
    let server = Server::start(&["--served-model-name", "tiny", "--max-model-len", "64"]);
    for (limit, finish) in
        [(json!({"max_output_tokens": 500}), "max_model_len_reached"), (json!({"max_nfe": 2}), "max_nfe_reached")]
    {
        let whole = server.post("/v1/responses", &body(limit.clone())).json();
        assert_eq!((&whole["status"], &whole["diffulex"]["finish_reason"]), (&json!("incomplete"), &json!(finish)));
        let mut limit = limit;
        limit["stream"] = json!(true);
        let events = server.post("/v1/responses", &body(limit)).events();
        let (name, last) = events.last().unwrap();
        assert_eq!((name.as_str(), &last["response"]["status"]), ("response.incomplete", &json!("incomplete")));
        for response in [&whole, &last["response"]] {
            assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}), "{finish}");
        }
    }
}

#[test]
fn a_denoise_stream_has_its_snapshots_in_legal_deltas() {
    let server = tiny();
    let append = server.post("/v1/responses", &body(json!({"stream": true}))).events();
    let denoise = server.post("/v1/responses", &body(json!({"stream": true, "stream_mode": "denoise"}))).events();
    let deltas = |events: &[(String, Value)]| payloads(events, "response.output_text.delta");
    let (plain, snapshots) = (deltas(&append), deltas(&denoise));
    assert!(plain.iter().all(|delta| delta.get("diffulex").is_none()));
    assert!(!snapshots.is_empty());
    assert_eq!(joined(&snapshots, "/delta"), joined(&plain, "/delta"));
    for delta in &snapshots {
        assert!(delta["diffulex"]["mask_positions"].is_array(), "{delta}");
        assert_eq!(delta["diffulex"]["committed_text"], delta["delta"]);
    }
    let names = |events: &[(String, Value)]| {
        let mut names: Vec<String> = events.iter().map(|(name, _)| name.clone()).collect();
        names.dedup();
        names
    };
    assert_eq!(names(&append), names(&denoise));
    for (number, (_, data)) in denoise.iter().enumerate() {
        assert_eq!(data["sequence_number"], number);
    }
}

#[test]
fn characters_of_several_tokens_arrive_whole() {
    let server = tiny();
    let mut n_wide = 0;
    for seed in 0..12 {
        let extra = json!({"seed": seed, "temperature": 1.0, "max_output_tokens": 48});
        let whole = server.post("/v1/responses", &body(extra.clone())).json();
        let text = whole["output"][0]["content"][0]["text"].as_str().unwrap().to_owned();
        let mut extra = extra;
        extra["stream"] = json!(true);
        let events = server.post("/v1/responses", &body(extra)).events();
        assert_eq!(joined(&payloads(&events, "response.output_text.delta"), "/delta"), text);
        n_wide += text.chars().filter(|character| character.len_utf8() > 1).count();
    }
    assert!(n_wide > 0, "no text had a character of several bytes");
}

#[test]
fn fields_without_support_are_refused_by_name() {
    let server = tiny();
    for (extra, param) in [
        (json!({"background": true}), "background"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0]"),
        (json!({"tools": [{"type": "function", "name": "f g"}]}), "tools[0].name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        (json!({"reasoning": {"effort": "high"}}), "reasoning.effort"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"input": []}), "input"),
        (
            json!({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}]}),
            "input[0].arguments",
        ),
        (json!({"input": [{"type": "web_search_call", "id": "w"}]}), "input[0].type"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"input": [{"role": "tool", "content": "x"}]}), "input[0].role"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"temperature": 9}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"n": 2}), "n"),
        (json!({"max_tokens": 5}), "max_tokens"),
        (json!({"messages": [{"role": "user", "content": "x"}]}), "messages"),
        (json!({"decoding": {"nobody": 1}}), "decoding.nobody"),
    ] {
        let answer = server.post("/v1/responses", &body(extra.clone()));
        assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some(param)), "{extra} {}", answer.body);
        assert!(answer.json()["error"]["message"].as_str().unwrap().starts_with(param), "{}", answer.body);
    }
    let answer = server.post("/v1/responses", &body(json!({"previous_response_id": "resp_1"})));
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (404, Some("previous_response_not_found")));
}

#[test]
fn a_client_that_leaves_aborts_its_response_and_so_does_its_id() {
    let server = tiny();
    let long = body(json!({"max_output_tokens": 1900, "stream": true}));
    let mut socket = server.open("/v1/responses", &long);
    read_until(&mut socket, "response.output_text.delta");
    drop(socket);
    wait_until("no request", || idle(&server));

    let mut socket = server.open("/v1/responses", &long);
    let begun = String::from_utf8_lossy(&read_until(&mut socket, "response.output_text.delta")).into_owned();
    let id = begun.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(server.post("/abort_request", &json!({"rid": id})).status, 200, "{id}");
    let rest = String::from_utf8_lossy(&crate::harness::read_to_close(&mut socket)).into_owned();
    assert!(rest.contains("event: response.completed"), "{rest}");
}
