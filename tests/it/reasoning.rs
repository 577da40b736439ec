//! Thinking on every interface: apart from the text, whole and in a stream, with an engine that writes what a test tells it to.

use diffulex_protocol::{After, Constraint};
use diffulex_server::http::{HttpOptions, ReasoningParser};
use serde_json::{Value, json};

use crate::harness::joined;
use crate::speaker::Fixture;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";
const PATHS: [&str; 4] = [CHAT, RESPONSES, MESSAGES, OLLAMA];

/// A template that opens the block of thoughts unless thinking is off.
const OPENS: &str = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content | default('-') }}:{{ m.content }};{% endfor %}\
                     {% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}";

const ANSWER: &str = "<think>\nGröße < 5?\n\nYes.\n</think>\n\nIt is <b>small</b>.";
const THOUGHTS: &str = "Größe < 5?\n\nYes.";
const TEXT: &str = "It is <b>small</b>.";

async fn golden() -> Fixture {
    Fixture::with(None, |options| options).await
}

async fn of_template(template: &str) -> Fixture {
    Fixture::with(Some(template), |options| options).await
}

/// A request on `path` with the fields `extra`.
fn body(path: &str, extra: &Value) -> Value {
    let messages = json!([{"role": "user", "content": "Big?"}]);
    let mut body = match path {
        RESPONSES => json!({"input": "Big?"}),
        MESSAGES => json!({"messages": messages, "max_tokens": 2000}),
        OLLAMA => json!({"model": "script", "messages": messages, "stream": false}),
        _ => json!({"messages": messages}),
    };
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Thoughts and text of a whole answer.
async fn whole(fixture: &Fixture, path: &str, extra: &Value) -> (String, String) {
    let answer = fixture.ok(path, &body(path, extra)).await.json();
    match path {
        RESPONSES => of_items(&answer["output"]),
        MESSAGES => {
            let of = |kind: &str, field: &str| -> String {
                let blocks = list(&answer["content"]).iter().filter(|block| block["type"] == kind);
                blocks.map(|block| text_of(&block[field])).collect()
            };
            (of("thinking", "thinking"), of("text", "text"))
        }
        OLLAMA => (text_of(&answer["message"]["thinking"]), text_of(&answer["message"]["content"])),
        _ => {
            let message = &answer["choices"][0]["message"];
            assert_eq!(message.get("reasoning"), message.get("reasoning_content"));
            (text_of(&message["reasoning_content"]), text_of(&message["content"]))
        }
    }
}

fn of_items(output: &Value) -> (String, String) {
    let of = |kind: &str| -> String {
        let items = list(output).iter().filter(|item| item["type"] == kind);
        items.map(|item| text_of(&item["content"][0]["text"])).collect()
    };
    (of("reasoning"), of("message"))
}

/// Thoughts and text of a stream.
async fn streamed(fixture: &Fixture, path: &str, stream_mode: &str) -> (String, String) {
    let asked = body(path, &json!({"stream": true, "stream_mode": stream_mode}));
    let answer = fixture.ok(path, &asked).await;
    match path {
        RESPONSES => {
            let events = answer.events();
            let of = |name: &str, field: &str| -> String {
                let of_name = events.iter().filter(|(of, _)| of == name);
                of_name.map(|(_, event)| text_of(&event[field])).collect()
            };
            let deltas = (of("response.reasoning_text.delta", "delta"), of("response.output_text.delta", "delta"));
            assert_eq!(deltas, (of("response.reasoning_text.done", "text"), of("response.output_text.done", "text")));
            let (_, last) = events.iter().find(|(name, _)| name == "response.completed").unwrap();
            assert_eq!(of_items(&last["response"]["output"]), deltas);
            deltas
        }
        MESSAGES => of_blocks(&answer.events()),
        OLLAMA => {
            let lines = answer.lines();
            let thoughts = lines.iter().map(|line| text_of(&line["message"]["thinking"])).collect();
            (thoughts, joined(&lines, "/message/content"))
        }
        _ => {
            let frames = answer.frames();
            let of = |field: &str| -> String {
                frames.iter().map(|frame| text_of(&frame["choices"][0]["delta"][field])).collect()
            };
            assert_eq!(of("reasoning"), of("reasoning_content"));
            (of("reasoning_content"), of("content"))
        }
    }
}

/// Blocks of a message come one behind the other, thoughts with their signature.
fn of_blocks(events: &[(String, Value)]) -> (String, String) {
    let (mut thoughts, mut text, mut n_blocks, mut open) = (String::new(), String::new(), 0, None);
    for (name, event) in events {
        match name.as_str() {
            "content_block_start" => {
                assert!(open.is_none() && event["index"] == n_blocks, "{event}");
                open = Some(event["content_block"]["type"].clone());
                n_blocks += 1;
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let is_thought = delta["type"] == "thinking_delta" || delta["type"] == "signature_delta";
                assert_eq!(open, Some(if is_thought { json!("thinking") } else { json!("text") }));
                thoughts.push_str(&text_of(&delta["thinking"]));
                text.push_str(&text_of(&delta["text"]));
            }
            "content_block_stop" => assert!(open.take().is_some()),
            _ => {}
        }
    }
    (thoughts, text)
}

fn expected(thoughts: &str, text: &str) -> (String, String) {
    (thoughts.to_owned(), text.to_owned())
}

#[tokio::test]
async fn thoughts_are_apart_from_the_text_on_every_interface() {
    let fixture = golden().await;
    fixture.tell(ANSWER);
    for path in PATHS {
        assert_eq!(whole(&fixture, path, &json!({})).await, expected(THOUGHTS, TEXT), "{path}");
    }
    fixture.tell("Plain.");
    for path in PATHS {
        assert_eq!(whole(&fixture, path, &json!({})).await, expected("", "Plain."), "{path}");
    }
    let plain = fixture.ok(CHAT, &body(CHAT, &json!({}))).await.json();
    assert!(plain["choices"][0]["message"].get("reasoning_content").is_none(), "{plain}");
}

#[tokio::test]
async fn a_stream_has_the_same_thoughts_wherever_it_is_cut() {
    let fixture = golden().await;
    fixture.tell(ANSWER);
    for path in PATHS {
        for stream_mode in ["block_append", "denoise"] {
            for n_piece in 1..=ANSWER.chars().count() {
                fixture.told.lock().unwrap().n_piece = n_piece;
                let told = streamed(&fixture, path, stream_mode).await;
                assert_eq!(told, expected(THOUGHTS, TEXT), "{path} {stream_mode} {n_piece}");
            }
        }
    }
}

#[tokio::test]
async fn a_prompt_that_opens_the_block_is_followed_by_thoughts() {
    let fixture = of_template(OPENS).await;
    for (answer, thoughts, text) in
        [("Hm.\n</think>\n\nYes.", "Hm.", "Yes."), ("Hm, never closed", "Hm, never closed", "")]
    {
        fixture.tell(answer);
        for path in PATHS {
            assert_eq!(whole(&fixture, path, &json!({})).await, expected(thoughts, text), "{path}");
            assert!(fixture.prompt().ends_with("Big?;<think>"), "{}", fixture.prompt());
            for stream_mode in ["block_append", "denoise"] {
                for n_piece in 1..=answer.chars().count() {
                    fixture.told.lock().unwrap().n_piece = n_piece;
                    assert_eq!(
                        streamed(&fixture, path, stream_mode).await,
                        expected(thoughts, text),
                        "{path} {n_piece}"
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn usage_counts_the_tokens_of_thoughts() {
    let fixture = of_template(OPENS).await;
    let text = fixture.engine.frontend().text();
    for (thoughts, rest) in [("Hm, is it?\n</think>", "\n\nIt is."), ("Hm, never closed", ""), ("", "")] {
        fixture.tell(&format!("{thoughts}{rest}"));
        let n_thought = json!(text.encode_with(thoughts, false).unwrap().len());
        let whole = fixture.ok(CHAT, &body(CHAT, &json!({}))).await.json();
        assert_eq!(whole["usage"]["completion_tokens_details"], json!({"reasoning_tokens": n_thought}), "{thoughts}");
        let streamed = fixture.ok(CHAT, &body(CHAT, &json!({"stream": true}))).await;
        let n_streamed = streamed.frames().pop().unwrap()["usage"]["completion_tokens_details"].take();
        assert_eq!(n_streamed, whole["usage"]["completion_tokens_details"]);
        let several = fixture.ok(CHAT, &body(CHAT, &json!({"n": 2}))).await.json();
        let n_of_both = &several["usage"]["completion_tokens_details"]["reasoning_tokens"];
        assert_eq!(n_of_both.as_u64(), n_thought.as_u64().map(|n| 2 * n), "{several}");
        let of_response = &json!({"output_tokens_details": {"reasoning_tokens": n_thought}});
        let whole = fixture.ok(RESPONSES, &body(RESPONSES, &json!({}))).await.json();
        assert_eq!(whole["usage"]["output_tokens_details"], of_response["output_tokens_details"]);
        let events = fixture.ok(RESPONSES, &body(RESPONSES, &json!({"stream": true}))).await.events();
        let n_streamed = &events.last().unwrap().1["response"]["usage"]["output_tokens_details"];
        assert_eq!(*n_streamed, whole["usage"]["output_tokens_details"]);
    }
    // Marks that the answer may open but does not: no thoughts.
    let fixture = golden().await;
    fixture.tell("Yes.</think>");
    let plain = fixture.ok(CHAT, &body(CHAT, &json!({}))).await.json();
    assert_eq!(plain["usage"]["completion_tokens_details"]["reasoning_tokens"], json!(0), "{plain}");
    fixture.tell("<think>Hm.</think>Yes.");
    let n_thought = fixture.engine.frontend().text().encode_with("<think>Hm.</think>", false).unwrap().len();
    let opened = fixture.ok(CHAT, &body(CHAT, &json!({}))).await.json();
    assert_eq!(opened["usage"]["completion_tokens_details"]["reasoning_tokens"], json!(n_thought), "{opened}");
}

#[tokio::test]
async fn each_interface_turns_thinking_off_in_its_own_field() {
    let fixture = of_template(OPENS).await;
    fixture.tell("Yes.</think>");
    for (path, extra) in [
        (CHAT, json!({"enable_thinking": false})),
        (CHAT, json!({"chat_template_kwargs": {"enable_thinking": false}})),
        (CHAT, json!({"reasoning_effort": "none"})),
        (RESPONSES, json!({"reasoning": {"effort": "minimal"}})),
        (MESSAGES, json!({"thinking": {"type": "disabled"}})),
        (OLLAMA, json!({"think": false})),
    ] {
        assert_eq!(whole(&fixture, path, &extra).await, expected("", "Yes.</think>"), "{path} {extra}");
        assert!(fixture.prompt().ends_with("<think></think>"), "{path} {extra} {}", fixture.prompt());
    }
    for (path, extra) in [
        (CHAT, json!({"enable_thinking": true})),
        (MESSAGES, json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})),
        (OLLAMA, json!({"think": "high"})),
    ] {
        assert_eq!(whole(&fixture, path, &extra).await, expected("Yes.", ""), "{path} {extra}");
        assert!(fixture.prompt().ends_with(";<think>"), "{path} {extra} {}", fixture.prompt());
    }
}

#[tokio::test]
async fn thoughts_can_be_left_out_or_left_in_the_text() {
    let fixture = golden().await;
    fixture.tell(ANSWER);
    let hidden = json!({"include_reasoning": false});
    assert_eq!(whole(&fixture, CHAT, &hidden).await, expected("", TEXT));
    let omitted = json!({"thinking": {"type": "adaptive", "display": "omitted"}});
    assert_eq!(whole(&fixture, MESSAGES, &omitted).await, expected("", TEXT));
    assert_eq!(whole(&fixture, CHAT, &json!({"separate_reasoning": false})).await, expected("", ANSWER));
    let none = |options| HttpOptions { reasoning_parser: Some(ReasoningParser::None), ..options };
    let fixture = Fixture::with(None, none).await;
    fixture.tell(ANSWER);
    assert_eq!(whole(&fixture, CHAT, &json!({})).await, expected("", ANSWER));
}

#[tokio::test]
async fn a_constraint_is_about_what_follows_the_thoughts() {
    let fixture = of_template(OPENS).await;
    fixture.tell("Hm.</think>{}");
    let format = json!({"response_format": {"type": "json_object"}});
    fixture.ok(CHAT, &body(CHAT, &format)).await;
    let after = After { begin: String::new(), end: "</think>".to_owned(), then: Constraint::JsonObject };
    assert_eq!(fixture.asked().constraint, Some(Constraint::After(Box::new(after))));
    let off = json!({"response_format": {"type": "json_object"}, "enable_thinking": false});
    fixture.ok(CHAT, &body(CHAT, &off)).await;
    assert_eq!(fixture.asked().constraint, Some(Constraint::JsonObject));
}

#[tokio::test]
async fn thoughts_go_back_to_the_model_from_every_interface() {
    let fixture = of_template(OPENS).await;
    fixture.tell("Yes.");
    let user = json!({"role": "user", "content": "Sure?"});
    let turns = |thinking: Value| json!({"messages": [user, thinking, user]});
    let cases = [
        (CHAT, turns(json!({"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}))),
        (CHAT, turns(json!({"role": "assistant", "content": "Yes", "reasoning": "Hm"}))),
        (OLLAMA, turns(json!({"role": "assistant", "content": "Yes", "thinking": "Hm"}))),
        (
            MESSAGES,
            turns(json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm", "signature": ""}, {"type": "text", "text": "Yes"}
            ]})),
        ),
        (
            RESPONSES,
            json!({"input": [
                user,
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
                {"role": "assistant", "content": "Yes"},
                user,
            ]}),
        ),
    ];
    for (path, extra) in cases {
        fixture.ok(path, &body(path, &extra)).await;
        let prompt = fixture.prompt();
        assert!(prompt.ends_with("user:-:Sure?;assistant:Hm:Yes;user:-:Sure?;<think>"), "{path} {prompt}");
    }
}

#[tokio::test]
async fn what_a_model_cannot_think_is_refused_by_name() {
    let always = of_template("{{ messages[0].content }}<think>\n").await;
    let never = of_template("{{ messages[0].content }}").await;
    let golden = golden().await;
    let (off, on) = (json!({"enable_thinking": false}), json!({"enable_thinking": true}));
    let effort = json!({"reasoning": {"effort": "high"}});
    let native =
        json!({"include_reasoning": false, "stream": true, "stream_mode": "denoise", "denoise": {"form": "diffulex"}});
    for (fixture, path, extra, field) in [
        (&always, CHAT, off, "enable_thinking"),
        (&always, OLLAMA, json!({"think": false}), "think"),
        (&never, CHAT, on.clone(), "enable_thinking"),
        (&never, MESSAGES, json!({"thinking": {"type": "enabled"}}), "thinking"),
        (&golden, "/v1/completions", json!({"prompt": "a", "enable_thinking": true}), "enable_thinking"),
        (&golden, CHAT, json!({"enable_thinking": true, "reasoning_effort": "none"}), "reasoning_effort"),
        (&golden, CHAT, json!({"chat_template_kwargs": {"bos_token": "x"}}), "chat_template_kwargs.bos_token"),
        (&golden, CHAT, json!({"reasoning_effort": "high"}), "reasoning_effort"),
        (&golden, CHAT, native, "include_reasoning"),
        (&golden, RESPONSES, effort, "reasoning.effort"),
        (&golden, RESPONSES, json!({"reasoning": {"summary": "detailed"}}), "reasoning.summary"),
        (&golden, MESSAGES, json!({"thinking": {"type": "enabled", "budget_tokens": 5}}), "thinking.budget_tokens"),
        (&golden, MESSAGES, json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}), "thinking.budget_tokens"),
        (&golden, OLLAMA, json!({"think": "a lot"}), "think"),
    ] {
        let asked = if path == "/v1/completions" { extra.clone() } else { body(path, &extra) };
        let answer = fixture.post(path, &asked).await;
        assert_eq!(answer.status, 400, "{path} {extra} {}", answer.body);
        assert!(answer.body.contains(field), "{path} {extra} {}", answer.body);
    }
}
