//! A model's own files: what they may not do to requests, and to the front end.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Server, golden_model, program};

/// A copy of the tiny checkpoint with a changed tokenizer.json.
fn with_tokenizer(change: impl FnOnce(&mut Value)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(golden_model()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let place = folder.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&place).unwrap()).unwrap();
    change(&mut tokenizer);
    std::fs::write(&place, tokenizer.to_string()).unwrap();
    folder
}

#[test]
fn all_tokens_count_whatever_the_tokenizers_file_says_of_truncation_and_padding() {
    let folder = with_tokenizer(|tokenizer| {
        tokenizer["truncation"] =
            json!({"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0});
        tokenizer["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
                                      "pad_id": 502, "pad_type_id": 0, "pad_token": "<pad>"});
    });
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = program();
    command.args(["--port", "0", "--log-level", "warn", "--model"]).arg(folder.path());
    command.stderr(log.reopen().unwrap());
    let server = Server::of_command(command);
    crate::harness::wait_until("a ready server", || server.get("/ready").status == 200);
    let plain = Server::start(&[]);
    let prompt = "the quick brown fox jumps over the lazy dog and then goes home again";
    let messages = json!([{"role": "user", "content": prompt}]);
    for (path, body, count) in [
        ("/tokenize", json!({"prompt": prompt}), "/count"),
        ("/tokenize", json!({"messages": messages}), "/count"),
        ("/generate", json!({"prompt": prompt, "max_tokens": 1, "stream": false}), "/usage/prompt_tokens"),
        ("/v1/completions", json!({"prompt": prompt, "max_tokens": 1}), "/usage/prompt_tokens"),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 1}), "/usage/prompt_tokens"),
        (
            "/v1/completions",
            json!({"prompt": prompt, "max_tokens": 1, "truncate_prompt_tokens": 5}),
            "/usage/prompt_tokens",
        ),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1}), "/usage/prompt_tokens"),
    ] {
        let [answer, want] = [&server, &plain].map(|server| server.post(path, &body));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let (answer, want) = (answer.json(), want.json());
        assert!(want.pointer(count).is_some(), "{path}: {want}");
        assert_eq!(answer.pointer(count), want.pointer(count), "{path} {body}");
    }
    let log = std::fs::read_to_string(log.path()).unwrap();
    for setting in ["truncation", "padding"] {
        let said = format!("tokenizer.json sets {setting}, which is not used");
        assert_eq!(log.matches(&said).count(), 1, "{log}");
    }
}

#[test]
fn a_chat_template_cannot_take_the_front_ends_memory() {
    let folder = with_tokenizer(|_| {});
    let place = folder.path().join("chat_template.jinja");
    std::fs::write(
        &place,
        "{% set ns = namespace(x='ab', l=[1]) %}{% for i in range(60) %}\
         {% if messages[0].content == 'text' %}{% set ns.x = ns.x ~ ns.x %}\
         {% elif messages[0].content == 'list' %}{% set ns.l = [ns.l, ns.l] %}{{ ns.l|string|length }}\
         {% elif messages[0].content == 'replace' %}{% set long = 'a' * 1000000 %}{% set ns.x = long.replace('a', long) %}\
         {% endif %}{% endfor %}fine",
    )
    .unwrap();
    let server = Server::of(folder.path(), &[]);
    let ask = |content: &str| {
        let messages = json!([{"role": "user", "content": content}]);
        server.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1}))
    };
    assert_eq!(ask("hello").status, 200);
    let before = server.resident_bytes();
    for attack in ["text", "list", "replace"].repeat(4) {
        let answer = ask(attack);
        assert_eq!(answer.status, 400, "{attack}: {}", answer.body);
        assert!(answer.body.contains("bytes of values"), "{attack}: {}", answer.body);
    }
    // 64 MiB of values each, and what the allocator keeps of them.
    let grown = server.peak_bytes() - before;
    assert!(grown < 300 << 20, "{grown} bytes");
    assert_eq!(ask("hello").status, 200);
}
