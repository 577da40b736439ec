//! Ollama's routes: lines and answers, options, names, and what is refused.

use serde_json::{Value, json};

use crate::harness::{Server, idle, joined, read_until, wait_until};

fn tiny() -> Server {
    Server::start(&["--served-model-name", "tiny"])
}

fn with(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn options() -> Value {
    json!({"num_predict": 12, "seed": 7, "ignore_eos": true, "temperature": 0})
}

fn chat(extra: Value) -> Value {
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "options": options()});
    with(body, extra)
}

fn prompt(extra: Value) -> Value {
    with(json!({"model": "tiny", "prompt": "hello", "options": options()}), extra)
}

/// The text of OpenAI's route for the same messages.
fn openai(server: &Server, messages: Value) -> Value {
    let body = json!({"messages": messages, "max_tokens": 12, "seed": 7, "ignore_eos": true, "temperature": 0});
    server.post("/v1/chat/completions", &body).json()["choices"][0]["message"]["content"].clone()
}

#[test]
fn lines_are_the_default_and_join_to_the_answer() {
    let server = tiny();
    for (path, body, text) in
        [("/api/chat", chat(json!({})), "/message/content"), ("/api/generate", prompt(json!({})), "/response")]
    {
        let whole = server.post(path, &with(body.clone(), json!({"stream": false}))).json();
        let answer = server.post(path, &body);
        assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
        let lines = answer.lines();
        let (last, others) = lines.split_last().unwrap();
        assert!(others.iter().all(|line| line["done"] == false && line["model"] == "tiny"), "{lines:?}");
        assert_eq!(joined(&lines, text), whole.pointer(text).unwrap().as_str().unwrap());
        for end in [last, &whole] {
            assert_eq!(
                (&end["done"], &end["done_reason"], &end["eval_count"]),
                (&json!(true), &json!("length"), &json!(12))
            );
            for field in
                ["total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_duration"]
            {
                assert!(end[field].is_u64(), "{field} {end}");
            }
            let parts = end["prompt_eval_duration"].as_u64().unwrap() + end["eval_duration"].as_u64().unwrap();
            assert!(parts <= end["total_duration"].as_u64().unwrap());
            let time = end["created_at"].as_str().unwrap();
            assert!(time.len() == 20 && time.starts_with("20") && time.ends_with('Z'), "{time}");
        }
    }
}

#[test]
fn both_routes_answer_as_a_chat_unless_the_prompt_is_raw() {
    let server = tiny();
    let expected = openai(&server, json!([{"role": "user", "content": "hello"}]));
    let off = json!({"stream": false});
    assert_eq!(server.post("/api/chat", &chat(off.clone())).json()["message"]["content"], expected);
    assert_eq!(server.post("/api/generate", &prompt(off.clone())).json()["response"], expected);
    let system = openai(&server, json!([{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]));
    let asked = prompt(json!({"stream": false, "system": "s"}));
    assert_eq!(server.post("/api/generate", &asked).json()["response"], system);
    let plain = json!({"prompt": "hello", "max_tokens": 12, "seed": 7, "ignore_eos": true, "temperature": 0});
    let plain = server.post("/v1/completions", &plain).json()["choices"][0]["text"].clone();
    let raw = prompt(json!({"stream": false, "raw": true}));
    assert_eq!(server.post("/api/generate", &raw).json()["response"], plain);
}

#[test]
fn an_empty_request_asks_for_the_model_alone() {
    let server = tiny();
    for (path, body) in [
        ("/api/chat", json!({"model": "tiny"})),
        ("/api/generate", json!({"model": "tiny:latest", "keep_alive": "5m"})),
    ] {
        let answer = server.post(path, &body).json();
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("load")), "{answer}");
    }
    assert_eq!(server.post("/api/generate", &json!({"model": "nobody"})).status, 404);
}

#[test]
fn names_match_with_and_without_the_tag() {
    let server = tiny();
    for name in ["tiny", "tiny:latest"] {
        let answer = server.post("/api/chat", &chat(json!({"model": name, "stream": false}))).json();
        assert_eq!(answer["model"], name);
        let shown = server.post("/api/show", &json!({"model": name})).json();
        assert_eq!(shown["capabilities"], json!(["completion"]));
        let info = &shown["model_info"];
        let arch = info["general.architecture"].as_str().unwrap();
        assert!(info[format!("{arch}.context_length")].as_u64().unwrap() > 0, "{info}");
    }
    let tags = server.get("/api/tags").json();
    let listed = &tags["models"][0];
    assert_eq!((&listed["name"], &listed["model"]), (&json!("tiny:latest"), &json!("tiny:latest")));
    assert_eq!(listed["digest"].as_str().unwrap().len(), 64);
    assert!(listed["size"].as_u64().unwrap() > 0 && listed["details"]["family"].is_string());
    let running = server.get("/api/ps").json();
    assert_eq!(running["models"][0]["digest"], listed["digest"]);
    assert!(running["models"][0]["context_length"].as_u64().unwrap() > 0);
    assert_eq!(server.get("/api/version").json()["version"], "0.35.0");
}

#[test]
fn options_act_and_unknown_ones_are_ignored() {
    let server = tiny();
    let ask = |options: Value| server.post("/api/chat", &chat(json!({"stream": false, "options": options})));
    let base = ask(options()).json();
    let same = ask(with(
        options(),
        json!({"num_ctx": 4096, "num_gpu": 99, "nobody": true, "repeat_penalty": 1.0, "mirostat": 0}),
    ));
    assert_eq!(same.json()["message"], base["message"]);
    assert_eq!(ask(with(options(), json!({"num_predict": 3}))).json()["eval_count"], 3);
    let text = base["message"]["content"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(2).collect();
    let stopped = ask(with(options(), json!({"stop": [stop]}))).json();
    assert_eq!(stopped["message"]["content"].as_str(), text.split(&stop).next());
    assert_eq!(stopped["done_reason"], "stop");
    // To the end of the context.
    let to_the_end = ask(json!({"num_predict": -1, "ignore_eos": true, "temperature": 0})).json();
    assert_eq!(to_the_end["done_reason"], "length");
    let length = server.get("/api/ps").json()["models"][0]["context_length"].clone();
    let n_tokens = to_the_end["eval_count"].as_u64().unwrap() + to_the_end["prompt_eval_count"].as_u64().unwrap();
    assert_eq!(json!(n_tokens), length);
}

#[test]
fn fields_that_clients_always_send_pass() {
    let server = tiny();
    let routine = json!({"tools": [], "images": [], "options": {}, "format": "", "think": false, "keep_alive": -1, "stream": false,
                         "template": "", "context": null, "suffix": ""});
    assert_eq!(server.post("/api/generate", &prompt(routine.clone())).status, 200);
    let message = json!([{"role": "user", "content": "hi", "images": [], "tool_calls": []}]);
    assert_eq!(server.post("/api/chat", &chat(with(routine, json!({"messages": message})))).status, 200);
}

#[test]
fn fields_without_support_are_refused_by_name() {
    let server = tiny();
    for (extra, field) in [
        (json!({"format": "json"}), "format"),
        (json!({"format": {"type": "object"}}), "format"),
        (json!({"think": true}), "think"),
        (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), "tools"),
        (json!({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}), "messages[0].images"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
        (json!({"options": {"num_predict": 0}}), "options.num_predict"),
        (json!({"options": {"num_predict": -7}}), "options.num_predict"),
        (json!({"options": {"temperature": 9}}), "temperature"),
        (json!({"model": null}), "model"),
        (json!({"max_tokens": 5}), "max_tokens"),
        (json!({"logprobs": true}), "logprobs"),
    ] {
        let answer = server.post("/api/chat", &chat(extra.clone()));
        let error = answer.json();
        assert_eq!(answer.status, 400, "{extra} {error}");
        assert!(error["error"].as_str().unwrap().starts_with(field), "{extra} {error}");
    }
    for (extra, field) in [
        (json!({"images": ["aGk="]}), "images"),
        (json!({"template": "{{ .Prompt }}"}), "template"),
        (json!({"context": [1, 2]}), "context"),
    ] {
        let error = server.post("/api/generate", &prompt(extra.clone())).json();
        assert!(error["error"].as_str().unwrap().starts_with(field), "{extra} {error}");
    }
}

#[test]
fn the_registry_is_not_implemented() {
    let server = tiny();
    for path in ["/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"] {
        let answer = server.post(path, &json!({"model": "tiny"}));
        assert_eq!(answer.status, 501);
        assert!(answer.json()["error"].as_str().unwrap().starts_with(path), "{}", answer.body);
    }
}

#[test]
fn denoise_lines_have_no_text_of_their_own() {
    let server = tiny();
    let append = server.post("/api/chat", &chat(json!({}))).lines();
    // At top level, and where Ollama's own clients can say it.
    for extra in
        [json!({"stream_mode": "denoise"}), json!({"options": with(options(), json!({"stream_mode": "denoise"}))})]
    {
        let lines = server.post("/api/chat", &chat(extra)).lines();
        assert_eq!(joined(&lines, "/message/content"), joined(&append, "/message/content"));
        let snapshots: Vec<Value> =
            lines.into_iter().filter(|line| line.pointer("/diffulex/mask_positions").is_some()).collect();
        assert!(!snapshots.is_empty());
        assert!(snapshots.iter().all(|line| line["message"]["content"] == "" && line["done"] == false));
        assert_eq!(joined(&snapshots, "/diffulex/committed_text"), joined(&append, "/message/content"));
    }
    assert!(append.iter().all(|line| line.pointer("/diffulex/mask_positions").is_none()));
}

#[test]
fn characters_of_several_tokens_arrive_whole() {
    let server = tiny();
    let mut n_wide = 0;
    for seed in 0..12 {
        let options = json!({"seed": seed, "temperature": 1.0, "num_predict": 48, "ignore_eos": true});
        let whole = server.post("/api/chat", &chat(json!({"options": options, "stream": false}))).json();
        let text = whole["message"]["content"].as_str().unwrap().to_owned();
        let lines = server.post("/api/chat", &chat(json!({"options": options}))).lines();
        assert_eq!(joined(&lines, "/message/content"), text);
        n_wide += text.chars().filter(|character| character.len_utf8() > 1).count();
    }
    assert!(n_wide > 0, "no text had a character of several bytes");
}

#[test]
fn a_client_that_leaves_aborts_its_request() {
    let server = tiny();
    let mut socket = server.open("/api/chat", &chat(json!({"options": {"num_predict": 1900, "ignore_eos": true}})));
    read_until(&mut socket, "\"done\":false");
    drop(socket);
    wait_until("no request", || idle(&server));
}
