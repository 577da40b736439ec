//! Tools on every interface, with an engine that writes what a test tells it to.

use diffulex_server::http::{HttpOptions, ToolCallParser};
use serde_json::{Value, json};

use crate::harness::{Answer, joined};
use crate::speaker::{Fixture, golden_template};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";

/// Two calls of one tool between texts, in Hermes' form.
const TWO_CALLS: &str = "Größe: let me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>\n\
                         <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": [1, 2]}}\n</tool_call>";
const BEFORE: &str = "Größe: let me look.";
const ARGUMENTS: [&str; 2] = ["{\"city\": \"Köln\"}", "{\"city\": \"Rome\", \"days\": [1, 2]}"];

/// With the template in Qwen's form, which knows tools.
async fn qwen() -> Fixture {
    with(Some("tools/chat_template.jinja"), None).await
}

/// With a template of the golden data, or that of the golden checkpoint, which knows no tools.
async fn with(template: Option<&str>, tool_call_parser: Option<ToolCallParser>) -> Fixture {
    let template = template.map(golden_template);
    Fixture::with(template.as_deref(), |options| HttpOptions { tool_call_parser, ..options }).await
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {}}, "required": ["city"]})
}

fn function() -> Value {
    json!({"name": "get_weather", "description": "Weather", "parameters": schema()})
}

/// A request for the weather on `path`, with the fields `extra`.
fn body(path: &str, extra: Value) -> Value {
    let tools = match path {
        RESPONSES => {
            let mut tool = function();
            tool["type"] = json!("function");
            tool
        }
        MESSAGES => json!({"name": "get_weather", "description": "Weather", "input_schema": schema()}),
        _ => json!({"type": "function", "function": function()}),
    };
    let messages = json!([{"role": "user", "content": "Weather?"}]);
    let mut body = match path {
        RESPONSES => json!({"input": "Weather?", "tools": [tools]}),
        MESSAGES => json!({"messages": messages, "max_tokens": 100, "tools": [tools]}),
        OLLAMA => json!({"model": "script", "messages": messages, "tools": [tools], "stream": false}),
        _ => json!({"messages": messages, "tools": [tools]}),
    };
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Calls of a stream of chat, put together as clients do it: the message's `tool_calls`.
fn gathered(frames: &[Value]) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for call in frames.iter().flat_map(|frame| list(&frame["choices"][0]["delta"]["tool_calls"])) {
        let index = call["index"].as_u64().unwrap() as usize;
        let more = call["function"]["arguments"].as_str().unwrap();
        if index == calls.len() {
            assert!(call["function"]["name"].is_string() && call["id"].is_string() && more.is_empty(), "{call}");
            calls.push(json!({"id": call["id"], "type": call["type"], "function": call["function"]}));
        } else {
            assert!(call.get("id").is_none() && call["function"].get("name").is_none(), "{call}");
            let arguments = format!("{}{more}", calls[index]["function"]["arguments"].as_str().unwrap());
            calls[index]["function"]["arguments"] = json!(arguments);
        }
    }
    calls
}

#[tokio::test]
async fn a_chat_has_its_calls_apart_from_its_text() {
    let fixture = qwen().await;
    fixture.tell(TWO_CALLS);
    let answer = fixture.ok(CHAT, &body(CHAT, json!({}))).await.json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &json!(BEFORE)));
    let calls = list(&choice["message"]["tool_calls"]);
    assert_eq!(calls.len(), 2);
    for (call, arguments) in calls.iter().zip(ARGUMENTS) {
        assert_eq!(call["function"], json!({"name": "get_weather", "arguments": arguments}));
        assert_eq!(call["type"], "function");
        assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
    }
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(fixture.tags(), None, "nobody asked for a form");
    let prompt = fixture.prompt();
    assert!(
        prompt.contains(
            "{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Weather\""
        )
    );

    // Calls alone have no content, and without tools the text is text.
    fixture.tell("<tool_call>{\"name\": \"get_weather\", \"arguments\": {}}</tool_call>");
    let alone = fixture.ok(CHAT, &body(CHAT, json!({}))).await.json();
    assert_eq!(alone["choices"][0]["message"]["content"], Value::Null);
    for extra in [json!({"tools": []}), json!({"tool_choice": "none"})] {
        let plain = fixture.ok(CHAT, &body(CHAT, extra)).await.json();
        let message = &plain["choices"][0]["message"];
        assert!(message["content"].as_str().unwrap().starts_with("<tool_call>"), "{message}");
        assert!(message.get("tool_calls").is_none() && plain["choices"][0]["finish_reason"] == "stop");
        assert!(!fixture.prompt().contains("get_weather"));
    }
}

#[tokio::test]
async fn a_streamed_chat_gives_the_same_calls_wherever_it_is_cut() {
    let fixture = qwen().await;
    fixture.tell(TWO_CALLS);
    for stream_mode in ["block_append", "denoise"] {
        for n_piece in 1..=TWO_CALLS.chars().count() {
            fixture.told.lock().unwrap().n_piece = n_piece;
            let extra = json!({"stream": true, "stream_mode": stream_mode});
            let answer = fixture.ok(CHAT, &body(CHAT, extra)).await;
            let frames = answer.frames();
            assert!(answer.is_done());
            assert_eq!(joined(&frames, "/choices/0/delta/content"), BEFORE, "{n_piece}");
            let calls = gathered(&frames);
            let arguments: Vec<&str> =
                calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
            assert_eq!(arguments, ARGUMENTS, "{n_piece}");
            let reasons = frames.iter().filter_map(|frame| frame["choices"][0]["finish_reason"].as_str());
            assert_eq!(reasons.collect::<Vec<_>>(), ["tool_calls"]);
        }
    }
}

#[tokio::test]
async fn one_call_at_a_time_is_the_first() {
    let fixture = qwen().await;
    fixture.tell(TWO_CALLS);
    let single = json!({"parallel_tool_calls": false});
    let answer = fixture.ok(CHAT, &body(CHAT, single)).await.json();
    assert_eq!(list(&answer["choices"][0]["message"]["tool_calls"]).len(), 1);
    let single = json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
    let answer = fixture.ok(MESSAGES, &body(MESSAGES, single)).await.json();
    assert_eq!(list(&answer["content"]).len(), 2);
}

#[tokio::test]
async fn a_choice_that_asks_for_a_call_holds_the_answer_to_it() {
    let fixture = qwen().await;
    fixture.tell(TWO_CALLS);
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    let cases = [
        (CHAT, json!({"tool_choice": "required"}), true),
        (CHAT, json!({"tool_choice": "required", "parallel_tool_calls": false}), false),
        (CHAT, json!({"tool_choice": named}), false),
        (RESPONSES, json!({"tool_choice": "required"}), true),
        (RESPONSES, json!({"tool_choice": {"type": "function", "name": "get_weather"}}), false),
        (MESSAGES, json!({"tool_choice": {"type": "any"}}), true),
        (MESSAGES, json!({"tool_choice": {"type": "any", "disable_parallel_tool_use": true}}), false),
        (MESSAGES, json!({"tool_choice": {"type": "tool", "name": "get_weather"}}), false),
    ];
    for (path, extra, repeats) in cases {
        fixture.ok(path, &body(path, extra.clone())).await;
        let tags = fixture.tags().unwrap_or_else(|| panic!("{path} {extra}"));
        assert_eq!((tags.allows_text, tags.least, tags.repeats), (false, 1, repeats), "{path} {extra}");
        let tag = &tags.tags[0];
        assert_eq!(tag.begin, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ");
        assert_eq!((tag.end.as_str(), tags.separator.as_str()), ("}\n</tool_call>", "\n"));
        // In the order of the client.
        let schema = r#"{"type":"object","properties":{"city":{"type":"string"},"days":{}},"required":["city"]}"#;
        assert_eq!(tag.schema, schema);
    }
    let mut strict = body(CHAT, json!({}));
    strict["tools"][0]["function"]["strict"] = json!(true);
    strict["tools"].as_array_mut().unwrap().push(json!({"type": "function", "function": {"name": "loose"}}));
    fixture.ok(CHAT, &strict).await;
    let tags = fixture.tags().unwrap();
    assert_eq!((tags.tags.len(), tags.allows_text, tags.least, tags.repeats), (1, true, 0, true));
}

#[tokio::test]
async fn arguments_that_fit_a_schema_are_streamed_while_they_are_written() {
    let fixture = qwen().await;
    fixture.tell(TWO_CALLS);
    let n_chunks = async |choice: &str| {
        // Unread snapshots wait for their reader, where deltas are merged.
        let extra = json!({"stream": true, "stream_mode": "denoise", "tool_choice": choice});
        let frames = fixture.ok(CHAT, &body(CHAT, extra)).await.frames();
        assert_eq!(gathered(&frames).len(), 2);
        frames.iter().filter(|frame| !list(&frame["choices"][0]["delta"]["tool_calls"]).is_empty()).count()
    };
    fixture.told.lock().unwrap().n_piece = 3;
    assert_eq!(n_chunks("auto").await, 4);
    assert!(n_chunks("required").await > 8);
}

#[tokio::test]
async fn an_answer_that_is_cut_inside_of_a_call_says_so() {
    let fixture = qwen().await;
    let cut = &TWO_CALLS[..TWO_CALLS.find("Köln").unwrap()];
    fixture.tell(cut);
    fixture.told.lock().unwrap().is_cut = true;
    let choice = |answer: &Answer| answer.json()["choices"][0].clone();
    // Nothing says that it is a call.
    let free = choice(&fixture.ok(CHAT, &body(CHAT, json!({}))).await);
    assert_eq!((&free["finish_reason"], &free["message"]["content"]), (&json!("length"), &json!(cut)));
    let held = choice(&fixture.ok(CHAT, &body(CHAT, json!({"tool_choice": "required"}))).await);
    assert_eq!(held["finish_reason"], "length");
    assert_eq!(held["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"");
    let any = json!({"tool_choice": {"type": "any"}});
    let message = fixture.ok(MESSAGES, &body(MESSAGES, any)).await.json();
    assert_eq!((&message["stop_reason"], &message["content"][1]["input"]), (&json!("max_tokens"), &json!({})));
    let required = json!({"tool_choice": "required"});
    let response = fixture.ok(RESPONSES, &body(RESPONSES, required)).await.json();
    assert_eq!((&response["status"], &response["output"][1]["status"]), (&json!("incomplete"), &json!("incomplete")));
}

#[tokio::test]
async fn a_response_has_an_item_for_each_text_and_call() {
    let fixture = qwen().await;
    fixture.tell(TWO_CALLS);
    let asked = body(RESPONSES, json!({"parallel_tool_calls": true}));
    let response = fixture.ok(RESPONSES, &asked).await.json();
    assert_eq!((&response["tool_choice"], &response["tools"][0]["name"]), (&json!("auto"), &json!("get_weather")));
    let shape = |output: &Value| {
        let item = |item: &Value| match item["type"].as_str().unwrap() {
            "message" => item["content"][0]["text"].clone(),
            _ => json!([item["name"], item["arguments"], item["status"]]),
        };
        list(output).iter().map(item).collect::<Vec<_>>()
    };
    let expected = vec![
        json!(BEFORE),
        json!(["get_weather", ARGUMENTS[0], "completed"]),
        json!(["get_weather", ARGUMENTS[1], "completed"]),
    ];
    assert_eq!(shape(&response["output"]), expected);
    for stream_mode in ["block_append", "denoise"] {
        for n_piece in 1..=TWO_CALLS.chars().count() {
            fixture.told.lock().unwrap().n_piece = n_piece;
            let extra = json!({"stream": true, "stream_mode": stream_mode});
            let events = fixture.ok(RESPONSES, &body(RESPONSES, extra)).await.events();
            for (number, (_, event)) in events.iter().enumerate() {
                assert_eq!(event["sequence_number"], number);
            }
            let of = |name: &str| -> Vec<&Value> {
                events.iter().filter(|(of, _)| of == name).map(|(_, event)| event).collect()
            };
            let last = of("response.completed")[0];
            assert_eq!(shape(&last["response"]["output"]), expected, "{n_piece}");
            let done: Vec<Value> = of("response.output_item.done").iter().map(|event| event["item"].clone()).collect();
            assert_eq!(json!(done), last["response"]["output"]);
            for (index, item) in done.iter().enumerate().skip(1) {
                let deltas = of("response.function_call_arguments.delta");
                let deltas = deltas.iter().filter(|event| event["output_index"] == index);
                let arguments: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
                let whole = of("response.function_call_arguments.done")[index - 1];
                assert_eq!((json!(arguments), &item["arguments"]), (whole["arguments"].clone(), &whole["arguments"]));
                let added = of("response.output_item.added")[index];
                assert_eq!((&added["item"]["arguments"], &added["item"]["call_id"]), (&json!(""), &item["call_id"]));
            }
        }
    }
}

#[tokio::test]
async fn a_message_has_a_block_for_each_text_and_call() {
    let fixture = qwen().await;
    fixture.tell(TWO_CALLS);
    let message = fixture.ok(MESSAGES, &body(MESSAGES, json!({}))).await.json();
    assert_eq!(message["stop_reason"], "tool_use");
    let content = list(&message["content"]);
    assert_eq!(content[0], json!({"type": "text", "text": BEFORE}));
    let inputs: Vec<Value> = ARGUMENTS.iter().map(|arguments| serde_json::from_str(arguments).unwrap()).collect();
    for (block, input) in content[1..].iter().zip(&inputs) {
        assert_eq!(
            (&block["type"], &block["name"], &block["input"]),
            (&json!("tool_use"), &json!("get_weather"), input)
        );
        assert!(block["id"].as_str().unwrap().starts_with("toolu_"), "{block}");
    }
    for stream_mode in ["block_append", "denoise"] {
        for n_piece in 1..=TWO_CALLS.chars().count() {
            fixture.told.lock().unwrap().n_piece = n_piece;
            let extra = json!({"stream": true, "stream_mode": stream_mode});
            let events = fixture.ok(MESSAGES, &body(MESSAGES, extra)).await.events();
            let mut blocks: Vec<(Value, String)> = Vec::new();
            let mut is_open = false;
            for (name, event) in &events {
                match name.as_str() {
                    "content_block_start" => {
                        assert!(!is_open && event["index"] == blocks.len());
                        is_open = true;
                        blocks.push((event["content_block"].clone(), String::new()));
                    }
                    "content_block_delta" => {
                        assert!(is_open && event["index"] == blocks.len() - 1);
                        let delta = &event["delta"];
                        let more = delta["text"].as_str().or(delta["partial_json"].as_str()).unwrap();
                        blocks.last_mut().unwrap().1.push_str(more);
                    }
                    "content_block_stop" => {
                        assert!(is_open && event["index"] == blocks.len() - 1);
                        is_open = false;
                    }
                    "message_delta" => assert_eq!(event["delta"]["stop_reason"], "tool_use"),
                    _ => {}
                }
            }
            let texts: Vec<&str> = blocks.iter().map(|(_, text)| text.as_str()).collect();
            assert_eq!(texts, [BEFORE, ARGUMENTS[0], ARGUMENTS[1]], "{n_piece}");
            assert!(blocks[1..].iter().all(|(block, _)| block["input"] == json!({}) && block["type"] == "tool_use"));
        }
    }
    // An answer of no text has a block, too.
    fixture.tell("");
    let events = fixture.ok(MESSAGES, &body(MESSAGES, json!({"stream": true}))).await.events();
    assert_eq!(events.iter().filter(|(name, _)| name == "content_block_start").count(), 1);
}

#[tokio::test]
async fn ollama_gets_whole_calls_with_arguments_as_objects() {
    let fixture = qwen().await;
    fixture.tell(TWO_CALLS);
    let answer = fixture.ok(OLLAMA, &body(OLLAMA, json!({}))).await.json();
    assert_eq!((&answer["message"]["content"], &answer["done_reason"]), (&json!(BEFORE), &json!("stop")));
    let objects = |calls: &[Value]| -> Vec<Value> {
        let object = |call: &Value| json!([call["function"]["name"], call["function"]["arguments"]]);
        calls.iter().map(object).collect()
    };
    let whole = objects(list(&answer["message"]["tool_calls"]));
    let arguments = |nth: usize| serde_json::from_str::<Value>(ARGUMENTS[nth]).unwrap();
    assert_eq!(whole, [json!(["get_weather", arguments(0)]), json!(["get_weather", arguments(1)])]);
    for stream_mode in ["block_append", "denoise"] {
        for n_piece in 1..=TWO_CALLS.chars().count() {
            fixture.told.lock().unwrap().n_piece = n_piece;
            let lines =
                fixture.ok(OLLAMA, &body(OLLAMA, json!({"stream": true, "stream_mode": stream_mode}))).await.lines();
            assert_eq!(joined(&lines, "/message/content"), BEFORE);
            let calls: Vec<Value> =
                lines.iter().flat_map(|line| list(&line["message"]["tool_calls"]).to_vec()).collect();
            assert_eq!(objects(&calls), whole, "{n_piece}");
        }
    }
}

#[tokio::test]
async fn calls_and_results_go_back_to_the_model_from_every_interface() {
    let fixture = qwen().await;
    fixture.tell("Sunny.");
    let call = json!({"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}});
    let user = json!({"role": "user", "content": "Weather?"});
    let cases = [
        (
            CHAT,
            json!({"messages": [user, {"role": "assistant", "content": null, "tool_calls": [call]},
                                   {"role": "tool", "tool_call_id": "c1", "content": "12"}]}),
        ),
        (
            OLLAMA,
            json!({"messages": [user,
            {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]},
            {"role": "tool", "tool_name": "get_weather", "content": "12"}]}),
        ),
        (
            MESSAGES,
            json!({"messages": [user,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Rome"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "12"}]}]}]}),
        ),
        (
            RESPONSES,
            json!({"input": [user,
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Rome\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "12"}]}),
        ),
    ];
    for (path, extra) in cases {
        fixture.ok(path, &body(path, extra)).await;
        let prompt = fixture.prompt();
        let expected = "assistant\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n\
                        user\n<tool_response>\nget_weather: 12\n</tool_response>\nassistant\n";
        assert!(prompt.ends_with(expected), "{path} {prompt}");
    }
    // Beside a text of the same turn, results are first.
    let turns = json!({"messages": [user,
        {"role": "assistant", "content": [{"type": "text", "text": "Hm."}, {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "12"}, {"type": "text", "text": "And?"}]}]});
    fixture.ok(MESSAGES, &body(MESSAGES, turns.clone())).await;
    assert!(
        fixture.prompt().ends_with("get_weather: 12\n</tool_response>\nuser\nAnd?\nassistant\n"),
        "{}",
        fixture.prompt()
    );
    let count = fixture.ok("/v1/messages/count_tokens", &body(MESSAGES, turns)).await.json();
    assert_eq!(count["input_tokens"], fixture.asked().prompt.len());
}

#[tokio::test]
async fn a_template_without_tools_gets_them_as_text() {
    let fixture = with(None, None).await;
    fixture.tell(TWO_CALLS);
    let answer = fixture.ok(CHAT, &body(CHAT, json!({}))).await.json();
    assert_eq!(list(&answer["choices"][0]["message"]["tool_calls"]).len(), 2);
    let prompt = fixture.prompt();
    assert!(prompt.starts_with("system\n# Tools"), "{prompt}");
    assert!(prompt.contains("\"name\":\"get_weather\"") && prompt.contains("<tool_call>\n{\"name\": NAME"), "{prompt}");
    let n_tokens = fixture.asked().prompt.len();
    let asked = body(CHAT, json!({}));
    let tokens = fixture.ok("/tokenize", &json!({"messages": asked["messages"], "tools": asked["tools"]})).await.json();
    assert_eq!(tokens["count"], n_tokens);
    let call = json!({"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}});
    let messages = json!([{"role": "user", "content": "Weather?"}, {"role": "assistant", "tool_calls": [call]},
                          {"role": "tool", "tool_call_id": "c1", "content": "12"}]);
    fixture.ok(CHAT, &json!({"messages": messages})).await;
    assert!(
        fixture.prompt().ends_with("user\n<tool_response>\n12\n</tool_response>\nassistant\n"),
        "{}",
        fixture.prompt()
    );
}

#[tokio::test]
async fn the_form_of_calls_can_be_chosen() {
    let fixture = with(Some("tools/chat_template.jinja"), Some(ToolCallParser::Mistral)).await;
    fixture.tell("[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}]");
    let answer = fixture.ok(CHAT, &body(CHAT, json!({"tool_choice": "required"}))).await.json();
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(
        (call["id"].as_str().unwrap().len(), &call["function"]["arguments"]),
        (9, &json!("{\"city\": \"Rome\"}"))
    );
    assert_eq!(fixture.tags().unwrap().tags[0].begin, "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": ");
}

#[tokio::test]
async fn notations_that_are_not_json_are_calls_on_every_interface() {
    let qwen3_coder =
        "Look:\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>";
    let gemma4 = "Look:<|tool_call>call:get_weather{city:<|\"|>Rome<|\"|>}<tool_call|>";
    // Templates name their form; what else they hold does not matter here.
    for (mark, answer) in [("<tool_call><function=", qwen3_coder), ("<|tool_call>call:", gemma4)] {
        let template = format!("{{{{ tools }}}}{{{{ '{mark}' }}}}{{{{ messages[0].content }}}}");
        let fixture = Fixture::with(Some(&template), |options| options).await;
        fixture.tell(answer);
        let chat = fixture.ok(CHAT, &body(CHAT, json!({}))).await.json();
        let message = &chat["choices"][0]["message"];
        let expected = json!({"name": "get_weather", "arguments": "{\"city\":\"Rome\"}"});
        assert_eq!(
            (&message["content"], &message["tool_calls"][0]["function"]),
            (&json!("Look:"), &expected),
            "{mark}"
        );
        let frames = fixture.ok(CHAT, &body(CHAT, json!({"stream": true}))).await.frames();
        assert_eq!(gathered(&frames)[0]["function"], expected);
        let response = fixture.ok(RESPONSES, &body(RESPONSES, json!({}))).await.json();
        assert_eq!(response["output"][1]["arguments"], expected["arguments"], "{response}");
        let message = fixture.ok(MESSAGES, &body(MESSAGES, json!({}))).await.json();
        assert_eq!(message["content"][1]["input"], json!({"city": "Rome"}), "{message}");
        let chat = fixture.ok(OLLAMA, &body(OLLAMA, json!({"stream": false}))).await.json();
        assert_eq!(chat["message"]["tool_calls"][0]["function"]["arguments"], json!({"city": "Rome"}), "{chat}");
        // Where a call must fit its schema, it is written as JSON.
        fixture.tell("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>");
        let chat = fixture.ok(CHAT, &body(CHAT, json!({"tool_choice": "required"}))).await.json();
        assert_eq!(list(&chat["choices"][0]["message"]["tool_calls"]).len(), 1);
        assert!(fixture.tags().unwrap().tags[0].begin.starts_with("<tool_call>\n{\"name\": "));
        let mut strict = json!({"type": "function", "function": function()});
        strict["function"]["strict"] = json!(true);
        let refused = fixture.post(CHAT, &body(CHAT, json!({"tools": [strict]}))).await;
        assert_eq!((refused.status, refused.json()["error"]["param"].clone()), (400, json!("tools[0]")));
    }
}

#[tokio::test]
async fn what_cannot_be_offered_is_refused_by_name() {
    let fixture = qwen().await;
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    let many: Vec<Value> = (0..129).map(|n| function(&format!("f{n}"))).collect();
    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let begun = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [call]}]);
    let diffulex = json!({"stream": true, "stream_mode": "denoise", "denoise": {"form": "diffulex"}});
    let cases = [
        (CHAT, json!({"tools": [function("a b")]}), "tools[0].function.name"),
        (CHAT, json!({"tools": [function("f"), function("f")]}), "tools[1]"),
        (CHAT, json!({"tools": many}), "tools"),
        (CHAT, json!({"tools": [{"type": "web_search"}]}), "tools[0]"),
        (
            CHAT,
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}),
            "tools[0].function.parameters.type",
        ),
        (CHAT, json!({"tool_choice": "sometimes"}), "tool_choice"),
        (CHAT, json!({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}), "tool_choice"),
        (CHAT, json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (
            CHAT,
            json!({"messages": begun, "continue_final_message": true, "add_generation_prompt": false}),
            "messages[1].tool_calls",
        ),
        (CHAT, diffulex, "denoise.form"),
        (RESPONSES, json!({"tools": [{"type": "mcp", "server_url": "x"}]}), "tools[0]"),
        (RESPONSES, json!({"tool_choice": {"type": "file_search"}}), "tool_choice"),
        ("/v1/completions", json!({"messages": null, "prompt": "x"}), "tools"),
    ];
    for (path, extra, param) in cases {
        let answer = fixture.post(path, &body(path, extra.clone())).await;
        assert_eq!(
            (answer.status, answer.error_param().as_deref()),
            (400, Some(param)),
            "{path} {extra} {}",
            answer.body
        );
    }
}
