//! Pins of answers and edits of texts over HTTP.

use serde_json::{Value, json};

use crate::harness::{Server, golden_model};
use crate::infilling::llada;

fn canvas() -> Value {
    json!([
        {"text": "Name: "},
        {"hole": {"name": "name", "max_tokens": 6, "regex": "[a-z]{2,5}"}},
        {"text": ", sure: "},
        {"hole": {"name": "sure", "max_tokens": 4, "choices": ["yes", "no"]}},
        {"text": ". Thank "},
        {"draft": "you all very much", "strength": 0.5},
        {"text": "!\n"},
    ])
}

fn check_edit(server: &Server, sees_right: bool) {
    for temperature in [0.0, 1.0] {
        let body = json!({"canvas": canvas(), "prompt": "Fill in.\n", "temperature": temperature, "seed": 3});
        let answer = server.post("/v1/edits", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let edit = answer.json();
        let text = edit["text"].as_str().unwrap();
        let span = |nth: usize| edit["spans"][nth]["text"].as_str().unwrap();
        let (name, sure, draft) = (span(0), span(1), span(2));
        assert_eq!(text, format!("Name: {name}, sure: {sure}. Thank {draft}!\n"), "{edit}");
        assert!((2..=5).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase()), "{edit}");
        assert!(["yes", "no"].contains(&sure), "{edit}");
        let chars: Vec<char> = text.chars().collect();
        for span in edit["spans"].as_array().unwrap() {
            let at = |name: &str| span[name].as_u64().unwrap() as usize;
            assert_eq!(chars[at("start")..at("end")].iter().collect::<String>(), span["text"].as_str().unwrap());
            assert!((0.0..=1.0).contains(&span["confidence"].as_f64().unwrap()), "{span}");
        }
        assert_eq!((&edit["spans"][1]["name"], &edit["spans"][2]["type"]), (&json!("sure"), &json!("draft")));
        assert_eq!(edit["sees_right"], sees_right);
        assert!(edit["diffulex"]["constraint"]["states"].as_u64().unwrap() > 4, "{edit}");
        // The same seed, the same text.
        assert_eq!(server.post("/v1/edits", &body).json()["text"], edit["text"]);
    }
    let kept = json!({"canvas": [{"text": "a"}, {"draft": "b c d", "strength": 0}]});
    assert_eq!(server.post("/v1/edits", &kept).json()["text"], "ab c d");
}

#[test]
fn an_edit_fills_holes_rewrites_drafts_and_leaves_the_rest() {
    let (_folder, server) = llada();
    check_edit(&server, true);
    let server = Server::of(&golden_model(), &[]);
    check_edit(&server, false);
}

#[test]
fn pins_stay_in_answers_of_every_route_and_bad_ones_are_refused() {
    let server = Server::of(&golden_model(), &[]);
    let pins = json!([{"position": 2, "ids": [100, 101]}, {"position": 7, "ids": [102]}]);
    let plain = json!({"prompt": "hello", "max_tokens": 8, "temperature": 0, "pins": pins});
    let answer = server.post("/generate", &plain).json();
    let ids = answer["token_ids"].as_array().unwrap();
    assert_eq!((&ids[2..4], &ids[7]), (&[json!(100), json!(101)][..], &json!(102)), "{answer}");
    let chat =
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0, "pins": pins});
    assert_eq!(server.post("/v1/chat/completions", &chat).status, 200);
    for (pins, message) in [
        (json!([{"position": 7, "ids": [1, 2]}]), "a pin ends at position 9 of the answer, which has at most 8"),
        (json!([{"position": 1, "ids": [1]}, {"position": 1, "ids": [2]}]), "two pins take the same position"),
    ] {
        let refused = server.post("/generate", &json!({"prompt": "hello", "max_tokens": 8, "pins": pins}));
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!("pins")), "{error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }
}

#[test]
fn what_an_edit_cannot_do_is_refused_by_name() {
    let server = Server::of(&golden_model(), &[]);
    let hole = |hole: Value| json!({"canvas": [{"text": "a"}, {"hole": hole}]});
    for (body, param) in [
        (json!({"canvas": []}), "canvas"),
        (json!({"canvas": [{"text": "a"}]}), "canvas"),
        (json!({"canvas": [{"hole": {"max_tokens": 3}}]}), "canvas"),
        (json!({"canvas": [{"text": "a", "draft": "b"}]}), "canvas[0]"),
        (json!({"canvas": [{"text": "a", "strength": 0.5}]}), "canvas[0].strength"),
        (json!({"canvas": [{"draft": "a", "strength": 1.5}]}), "canvas[0].strength"),
        (hole(json!({})), "canvas[1].hole.max_tokens"),
        (hole(json!({"max_tokens": 3, "regex": "a(?=b)"})), "canvas[1].hole.regex"),
        (hole(json!({"max_tokens": 3, "regex": "a", "choices": ["b"]})), "canvas[1].hole.choices"),
        (hole(json!({"max_tokens": 2, "choices": ["far too long"]})), "canvas"),
        (json!({"canvas": canvas(), "stream": true}), "stream"),
        (json!({"canvas": canvas(), "stop": ["x"]}), "stop"),
    ] {
        let refused = server.post("/v1/edits", &body);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)), "{}", refused.body);
    }
}
