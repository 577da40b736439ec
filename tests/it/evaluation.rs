//! What evaluation harnesses ask for: prompts that are echoed and scored, answers of no token, and the tokenizer.

use serde_json::{Value, json};

use crate::harness::{Server, golden_model};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Of the golden tokenizer.
const EOS: u64 = 501;

fn asked(prompt: Value, extra: Value) -> Value {
    let mut body = json!({"prompt": prompt, "temperature": 0, "ignore_eos": true, "max_tokens": 4});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn choices(server: &Server, body: &Value) -> Vec<Value> {
    let answer = server.post(COMPLETIONS, body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"].as_array().unwrap().clone()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

#[test]
fn an_echo_is_the_prompt_before_the_answer() {
    let server = Server::start(&[]);
    let text = "hello größe 🙂 <|endoftext|>";
    for prompt in [json!(text), server.post("/tokenize", &json!({"prompt": text})).json()["tokens"].take()] {
        let plain = choices(&server, &asked(prompt.clone(), json!({})));
        let echoed = choices(&server, &asked(prompt.clone(), json!({"echo": true})));
        assert_eq!(echoed[0]["text"], json!(format!("{text}{}", plain[0]["text"].as_str().unwrap())));
        assert_eq!(echoed[0]["logprobs"], Value::Null);
        let empty = server.post(COMPLETIONS, &asked(prompt.clone(), json!({"echo": true, "max_tokens": 0}))).json();
        let of = |field: &str| empty["choices"][0][field].clone();
        assert_eq!((of("text"), of("finish_reason")), (json!(text), json!("length")));
        assert_eq!((&empty["usage"]["completion_tokens"], &empty["diffulex"]["nfe"]), (&json!(0), &json!(0)));
        for stream_mode in ["block_append", "denoise"] {
            let streamed =
                asked(prompt.clone(), json!({"echo": true, "stream": true, "stream_mode": stream_mode, "n": 2}));
            let mut texts = [String::new(), String::new()];
            for frame in server.post(COMPLETIONS, &streamed).frames() {
                for choice in list(&frame["choices"]) {
                    texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
                }
            }
            assert_eq!(texts[0], echoed[0]["text"].as_str().unwrap());
            assert!(texts[1].starts_with(text));
        }
    }
}

#[test]
fn an_echo_with_logprobs_scores_every_token_but_the_first() {
    let server = Server::start(&[]);
    let (text, other) = ("hello größe 🙂", "world is");
    let body = asked(json!([text, other]), json!({"echo": true, "logprobs": 2, "n": 2}));
    let all = choices(&server, &body);
    assert_eq!(all.len(), 4);
    let plain = choices(&server, &asked(json!([text, other]), json!({"logprobs": 2, "n": 2})));
    for (index, (choice, plain)) in all.iter().zip(&plain).enumerate() {
        let prompt = [text, other][index / 2];
        let n_prompt = list(&server.post("/tokenize", &json!({"prompt": prompt})).json()["tokens"]).len();
        let [tokens, logprobs, tops, offsets] =
            ["tokens", "token_logprobs", "top_logprobs", "text_offset"].map(|field| list(&choice["logprobs"][field]));
        assert_eq!([tokens, logprobs, tops, offsets].map(Vec::len), [n_prompt + 4; 4]);
        assert_eq!((&logprobs[0], &tops[0]), (&Value::Null, &Value::Null));
        for (place, top) in tops.iter().enumerate().skip(1) {
            let most = top.as_object().unwrap().values().map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max);
            assert!(logprobs[place].as_f64().unwrap() <= most && most <= 0.0, "{place} {top}");
            assert!((1..=3).contains(&top.as_object().unwrap().len()), "{place} {top}");
        }
        assert_eq!(&logprobs[n_prompt..], &list(&plain["logprobs"]["token_logprobs"])[..]);
        assert_eq!(&tops[n_prompt..], &list(&plain["logprobs"]["top_logprobs"])[..]);
        assert_eq!(offsets[n_prompt], json!(prompt.chars().count()));
        // Greedy choices of a prompt are one answer, and share its scores.
        assert_eq!(choice["logprobs"], all[index / 2 * 2]["logprobs"]);
    }
    let alone = asked(json!(other), json!({"echo": true, "logprobs": 2, "max_tokens": 0}));
    let alone = choices(&server, &alone);
    let scores = list(&alone[0]["logprobs"]["token_logprobs"]);
    assert_eq!(scores[..], list(&all[2]["logprobs"]["token_logprobs"])[..scores.len()]);
    assert_eq!((&alone[0]["text"], &alone[0]["finish_reason"]), (&json!(other), &json!("length")));
}

#[test]
fn a_token_is_as_likely_as_the_likeliest_where_it_is_that() {
    let server = Server::start(&[]);
    let mut ids = vec![json!(7)];
    // Each time the likeliest token is taken, so all of the text is greedy.
    for _ in 0..9 {
        let longer = [&ids[..], &[json!(0)]].concat();
        let body = asked(json!(longer), json!({"prompt_logprobs": 1, "max_tokens": 0}));
        let listed = choices(&server, &body)[0]["prompt_logprobs"].clone();
        let last = list(&listed).last().unwrap().as_object().unwrap();
        let best = last.iter().find(|(_, entry)| entry["rank"] == json!(1)).unwrap().0;
        ids.push(json!(best.parse::<u32>().unwrap()));
    }
    let scored = choices(&server, &asked(json!(ids), json!({"echo": true, "logprobs": 1, "max_tokens": 1})));
    let logprobs = &scored[0]["logprobs"];
    for (score, top) in list(&logprobs["token_logprobs"]).iter().zip(list(&logprobs["top_logprobs"])).skip(1).take(9) {
        assert_eq!(top.as_object().unwrap().values().collect::<Vec<_>>(), [score]);
    }
}

#[test]
fn the_end_token_of_an_echoed_answer_has_an_entry() {
    let server = Server::start(&[]);
    let ending = json!({"echo": true, "logprobs": 1, "ignore_eos": false, "logit_bias": {EOS.to_string(): 100}});
    let body = asked(json!([5, 6, 7]), ending);
    let choice = &choices(&server, &body)[0];
    let tokens = list(&choice["logprobs"]["tokens"]);
    assert_eq!((tokens.len(), &tokens[3]), (4, &json!("<|endoftext|>")));
    assert_eq!(choice["finish_reason"], json!("stop"));
    for field in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(&choice["logprobs"][field]).len(), 4, "{field}");
    }
    assert!(!choice["text"].as_str().unwrap().contains("endoftext"));
    // With `ignore_eos` the answer goes on behind it.
    let going_on = asked(json!([5, 6, 7]), json!({"logit_bias": {EOS.to_string(): 100}}));
    assert_eq!(server.post("/generate", &going_on).json()["token_ids"], json!([EOS, EOS, EOS, EOS]));
}

#[test]
fn prompt_logprobs_are_vllms_lists_on_chat_and_completions() {
    let server = Server::start(&[]);
    let extra = json!({"prompt_logprobs": 2});
    let ids = json!([5, 6, 7, 300]);
    let choice = &choices(&server, &asked(ids.clone(), extra.clone()))[0];
    let listed = list(&choice["prompt_logprobs"]);
    assert_eq!((listed.len(), &listed[0]), (4, &Value::Null));
    let echoed = choices(&server, &asked(ids, json!({"echo": true, "logprobs": 2})));
    for (place, id) in [(1, "6"), (2, "7"), (3, "300")] {
        let entry = &listed[place][id];
        assert_eq!(entry["logprob"], echoed[0]["logprobs"]["token_logprobs"][place]);
        let entries = listed[place].as_object().unwrap();
        let mut ranks: Vec<u64> = entries.values().filter_map(|entry| entry["rank"].as_u64()).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [1, 2], "{place}");
        assert!(entries.values().all(|entry| entry["decoded_token"].is_string()));
        assert_eq!(entry["rank"].is_null(), entries.len() == 3);
    }

    let said = json!({"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 2,
                      "prompt_logprobs": 0, "n": 2});
    let answer = server.post(CHAT, &said).json();
    let tokens = server.post("/tokenize", &json!({"messages": said["messages"]})).json()["tokens"].take();
    let listed = list(&answer["prompt_logprobs"]);
    assert_eq!(listed.len(), list(&tokens).len());
    for (entry, id) in listed.iter().zip(list(&tokens)).skip(1) {
        assert_eq!(entry.as_object().unwrap().keys().collect::<Vec<_>>(), [&id.to_string()]);
    }
    let nfe = &answer["diffulex"];
    assert_eq!(nfe["nfe_score"], json!(listed.len() - 1));
    let parts: u64 =
        ["nfe_denoise", "nfe_prefill", "nfe_commit", "nfe_score"].iter().map(|f| nfe[*f].as_u64().unwrap()).sum();
    assert_eq!(nfe["nfe"], json!(parts));
    assert!(answer["choices"][1]["diffulex"].get("nfe_score").is_none(), "choices share the scores");
}

#[test]
fn what_cannot_be_scored_is_refused_by_name() {
    let server = Server::start(&[]);
    let messages = json!([{"role": "user", "content": "hello"}]);
    let refused = |path: &str, body: Value, field: &str, what: &str| {
        let answer = server.post(path, &body);
        assert_eq!(
            (answer.status, answer.error_param().as_deref()),
            (400, Some(field)),
            "{path} {body} {}",
            answer.body
        );
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains(what), "{}", answer.body);
    };
    refused("/generate", asked(json!("a"), json!({"echo": true})), "echo", "/v1/completions");
    refused("/generate", asked(json!("a"), json!({"prompt_logprobs": 1})), "prompt_logprobs", CHAT);
    refused(CHAT, json!({"messages": messages, "echo": true}), "echo", COMPLETIONS);
    for (extra, field, what) in [
        (json!({"max_tokens": 0}), "max_tokens", "at least 1"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens", "at least 1"),
        (json!({"prompt_logprobs": -1}), "prompt_logprobs", "between 0 and 20, got -1"),
        (json!({"prompt_logprobs": 21}), "prompt_logprobs", "at most 20, got 21"),
        (json!({"echo": true, "logprobs": 21}), "logprobs", "at most 20, got 21"),
        (json!({"prompt_logprobs": 1, "stream": true}), "prompt_logprobs", "stream"),
        (json!({"echo": true, "logprobs": 1, "stream": true}), "echo", "stream"),
        (json!({"echo": true, "min_tokens": 1, "max_tokens": 0}), "min_tokens", "at most 0"),
    ] {
        refused(COMPLETIONS, asked(json!("a"), extra), field, what);
    }
    for (path, body, field) in [
        ("/v1/responses", json!({"input": "a", "prompt_logprobs": 1}), "prompt_logprobs"),
        ("/v1/responses", json!({"input": "a", "echo": true}), "echo"),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 4, "echo": true}), "echo"),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 4, "prompt_logprobs": 1}), "prompt_logprobs"),
        ("/api/chat", json!({"model": "x", "messages": messages, "prompt_logprobs": 1}), "prompt_logprobs"),
        ("/api/generate", json!({"model": "x", "prompt": "a", "echo": true}), "echo"),
    ] {
        let mut body = body;
        if body.get("model").is_some() {
            body["model"] = server.get("/v1/models").json()["data"][0]["id"].clone();
        }
        let answer = server.post(path, &body);
        let said = answer.json();
        let message = said["error"].as_str().or_else(|| said["error"]["message"].as_str()).unwrap();
        assert!(answer.status == 400 && message.starts_with(field), "{path} {}", answer.body);
    }
}

#[test]
fn a_model_whose_prompts_have_no_order_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let golden = golden_model().join("..");
    for (from, names) in [
        ("diffusion_gemma", &["config.json", "model.safetensors"][..]),
        ("tokenizer", &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]),
    ] {
        for name in names {
            std::fs::copy(golden.join(from).join(name), folder.path().join(name)).unwrap();
        }
    }
    let server = Server::of(folder.path(), &[]);
    let answer = server.post(COMPLETIONS, &asked(json!([5, 6, 7]), json!({"echo": true, "logprobs": 1})));
    assert_eq!((answer.status, answer.error_param().as_deref()), (400, Some("prompt_logprobs")), "{}", answer.body);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("echo with logprobs"), "{}", answer.body);
    assert_eq!(server.post(COMPLETIONS, &asked(json!([5, 6, 7]), json!({"echo": true}))).status, 200);
}

#[test]
fn clients_that_tokenise_by_themselves_get_what_they_need() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(golden_model()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let place = folder.path().join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(&place).unwrap()).unwrap();
    file["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|startoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|startoftext|>": {"id": "<|startoftext|>", "ids": [503], "tokens": ["<|startoftext|>"]}},
    });
    std::fs::write(&place, file.to_string()).unwrap();
    let server = Server::of(folder.path(), &[]);
    let tokenised = |extra: Value| {
        let mut body = json!({"prompt": "hello world"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/tokenize", &body).json()
    };
    let plain = tokenised(json!({}));
    assert_eq!(plain, tokenised(json!({"add_special_tokens": false})));
    assert_eq!(plain["token_strs"], Value::Null);
    let whole = tokenised(json!({"add_special_tokens": true, "return_token_strs": true}));
    let mut want = vec![json!(503)];
    want.extend(plain["tokens"].as_array().unwrap().clone());
    assert_eq!(whole["tokens"], json!(want));
    assert_eq!(whole["count"], want.len());
    let strings = whole["token_strs"].as_array().unwrap();
    assert_eq!((strings.len(), &strings[0]), (want.len(), &json!("<|startoftext|>")));
    assert!(!strings[1].as_str().unwrap().is_empty());
    let said = json!({"messages": [{"role": "user", "content": "hello"}], "return_token_strs": true});
    let chat = server.post("/tokenize", &said).json();
    assert_eq!(list(&chat["token_strs"]).len(), chat["count"].as_u64().unwrap() as usize);
    let closed = json!({"messages": said["messages"], "add_generation_prompt": false});
    let (closed, open) = (server.post("/tokenize", &closed).json()["tokens"].take(), list(&chat["tokens"]));
    assert!(list(&closed).len() < open.len() && open.starts_with(list(&closed)));

    let template = std::fs::read_to_string(folder.path().join("chat_template.jinja")).unwrap();
    let want = json!({"eos_token": "<|endoftext|>", "bos_token": "<|startoftext|>", "pad_token": "<|pad|>",
                      "chat_template": template});
    assert_eq!(server.get("/tokenizer_info").json(), want);

    // A generation adds no special token either.
    let n_prompt = |path: &str, body: Value| server.post(path, &body).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(n_prompt(COMPLETIONS, json!({"prompt": "hello world", "max_tokens": 1})), plain["count"]);
    assert_eq!(n_prompt(CHAT, json!({"messages": said["messages"], "max_tokens": 1})), chat["count"]);
}

#[test]
fn a_special_token_that_the_model_lacks_is_null() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(golden_model()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let place = folder.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&place).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("pad_token").expect("the golden model has one");
    std::fs::write(&place, config.to_string()).unwrap();
    std::fs::remove_file(folder.path().join("special_tokens_map.json")).unwrap();
    let told = Server::of(folder.path(), &[]).get("/tokenizer_info").json();
    assert_eq!(told.get("pad_token"), Some(&Value::Null));
    assert_eq!(told["eos_token"], "<|endoftext|>");
}
