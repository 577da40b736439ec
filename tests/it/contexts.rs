//! `/v1/contexts`: texts that are filled, extended, forked and freed, and what is refused.

use serde_json::{Value, json};

use crate::harness::{Answer, Server};

fn tiny() -> Server {
    Server::start(&["--page-size", "8"])
}

fn ids(n: u32, from: u32) -> Vec<u32> {
    (from..from + n).collect()
}

fn create(server: &Server, body: Value) -> Value {
    let answer = server.post("/v1/contexts", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn at(context: &Value, what: &str) -> String {
    format!("/v1/contexts/{}{what}", context["context_id"])
}

fn delete(server: &Server, path: &str) -> Answer {
    server.send(&format!("DELETE {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.address))
}

fn params(extra: Value) -> Value {
    let mut body = json!({"max_tokens": 9, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn error(answer: &Answer) -> (u16, String, Option<String>) {
    let code = answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
    (answer.status, code, answer.error_param())
}

#[test]
fn an_answer_on_a_context_is_that_of_the_whole_text_and_becomes_a_part_of_it() {
    let server = tiny();
    let context = create(&server, json!({"token_ids": ids(13, 5)}));
    assert_eq!((&context["filled_len"], &context["context_len"]), (&json!(13), &json!(13)));
    assert_eq!((&context["committed_len"], &context["tail_len"]), (&json!(8), &json!(5)));
    let filled = server.post(&at(&context, "/fill"), &json!({"token_ids": ids(6, 90)})).json();
    assert_eq!(
        (&filled["filled_len"], &filled["context_len"], &filled["committed_len"]),
        (&json!(6), &json!(19), &json!(16))
    );
    let whole: Vec<u32> = [ids(13, 5), ids(6, 90), ids(2, 40)].concat();
    let want = server.post("/generate", &params(json!({"prompt": whole}))).json();
    let got = server.post(&at(&context, "/generate"), &params(json!({"prompt": ids(2, 40)}))).json();
    assert_eq!((&got["token_ids"], &got["text"]), (&want["token_ids"], &want["text"]));
    assert_eq!((&got["context"]["context_len"], &got["context"]["rebuilt"]), (&json!(30), &json!(false)));
    assert_eq!(got["usage"]["prompt_tokens"], 21);
    // What was written is a part of it, and no prompt is needed.
    let mut whole = whole;
    whole.extend(got["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32));
    for mode in ["denoise", "block_append"] {
        let body = params(json!({"stream": true, "stream_mode": mode}));
        let fork = server.post(&at(&context, "/fork"), &json!({})).json();
        assert_eq!((&fork["context_len"], &fork["parent_context_id"]), (&json!(30), &context["context_id"]));
        let frames = server.post(&at(&fork, "/generate"), &body).frames();
        let last = frames.last().unwrap();
        let want = server.post("/generate", &params(json!({"prompt": whole}))).json();
        assert_eq!((&last["event"], &last["token_ids"]), (&json!("final"), &want["token_ids"]), "{mode}");
        assert_eq!(last["context"]["context_len"], 39, "{mode}");
    }
    assert_eq!(server.get(&at(&context, "")).json()["context_len"], 30);
    assert_eq!(server.get("/v1/contexts").json()["data"].as_array().unwrap().len(), 3);
    let freed = delete(&server, &at(&context, ""));
    assert_eq!((freed.status, &freed.json()["context_len"]), (200, &json!(30)));
    assert_eq!(error(&server.get(&at(&context, ""))).0, 410);
}
