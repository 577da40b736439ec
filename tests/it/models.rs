//! `GET /v1/models`: OpenAI's form, and Anthropic's for its clients.

use serde_json::{Value, json};

use crate::adapters::write_adapter;
use crate::harness::{Answer, Server};

fn get(server: &Server, path: &str, headers: &str) -> Answer {
    server.send(&format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{headers}\r\n", server.address))
}

fn anthropic(server: &Server, path: &str) -> Answer {
    get(server, path, "anthropic-version: 2023-06-01\r\n")
}

fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect()
}

#[test]
fn anthropics_clients_get_anthropics_form() {
    let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let server = Server::start(&["--served-model-name", "tiny"]);
    let openai = server.get("/v1/models").json();
    assert_eq!((&openai["object"], &openai["data"][0]["object"]), (&json!("list"), &json!("model")));
    let list = anthropic(&server, "/v1/models");
    assert!(list.header("request-id").is_some(), "{}", list.head);
    let list = list.json();
    assert_eq!(
        (&list["has_more"], &list["first_id"], &list["last_id"]),
        (&json!(false), &json!("tiny"), &json!("tiny"))
    );
    assert!(list.get("object").is_none(), "{list}");
    let model = &list["data"][0];
    assert_eq!(
        (&model["type"], &model["id"], &model["display_name"]),
        (&json!("model"), &json!("tiny"), &json!("tiny"))
    );
    let created = model["created_at"].as_str().unwrap();
    assert!(created.len() == 20 && created.starts_with("20") && created.ends_with('Z'), "{created}");
    // The start of the server, in seconds since 1970 in the other form.
    let started = openai["data"][0]["created"].as_u64().unwrap();
    let output = std::process::Command::new("date").args(["-u", "-d", &format!("@{started}"), "+%FT%TZ"]).output();
    assert_eq!(created, String::from_utf8(output.unwrap().stdout).unwrap().trim());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((began..=now).contains(&started), "{began} {started} {now}");
    for name in ["max_input_tokens", "max_tokens"] {
        assert_eq!(model[name], openai["data"][0]["max_model_len"], "{name}");
    }
    assert!(model["diffulex"].is_object());
    assert_eq!(model["diffulex"], openai["data"][0]["diffulex"]);
    assert_eq!(anthropic(&server, "/v1/models/tiny").json(), *model);
    let unknown = anthropic(&server, "/v1/models/nobody");
    assert_eq!((unknown.status, &unknown.json()["type"]), (404, &json!("error")), "{}", unknown.body);
    assert_eq!(unknown.json()["error"]["type"], "not_found_error");
}

/// A server with adapters of these names.
fn with_adapters(names: &[String]) -> Server {
    let folder = tempfile::tempdir().unwrap();
    write_adapter(folder.path());
    let server = Server::start(&["--served-model-name", "tiny", "--max-loaded-loras", "30"]);
    for name in names {
        let body = json!({"lora_name": name, "lora_path": folder.path()});
        assert_eq!(server.post("/v1/load_lora_adapter", &body).status, 200);
    }
    server
}

#[test]
fn anthropics_list_has_twenty_models_unless_a_limit_is_sent() {
    let server = with_adapters(&Vec::from_iter((0..21).map(|nth| format!("a{nth:02}"))));
    for (query, n_models, has_more) in [("", 20, true), ("?limit=21", 21, true), ("?limit=1000", 22, false)] {
        let list = anthropic(&server, &format!("/v1/models{query}")).json();
        assert_eq!((ids(&list).len(), &list["has_more"]), (n_models, &json!(has_more)), "{query}");
    }
}

#[test]
fn anthropics_list_comes_in_pages() {
    let server = with_adapters(&["a", "b", "c"].map(str::to_owned));
    let page = |query: &str| anthropic(&server, &format!("/v1/models{query}"));
    assert_eq!(ids(&page("").json()), ["tiny", "a", "b", "c"]);
    let first = page("?limit=2").json();
    assert_eq!((ids(&first), &first["has_more"], &first["last_id"]), (vec!["tiny", "a"], &json!(true), &json!("a")));
    let second = page("?limit=2&after_id=a").json();
    assert_eq!((ids(&second), &second["has_more"]), (vec!["b", "c"], &json!(false)));
    let before = page("?limit=2&before_id=c").json();
    assert_eq!((ids(&before), &before["has_more"]), (vec!["a", "b"], &json!(true)));
    let empty = page("?after_id=c").json();
    assert_eq!((ids(&empty), &empty["first_id"], &empty["last_id"]), (vec![], &Value::Null, &Value::Null));
    for (query, field) in
        [("?limit=0", "limit"), ("?limit=x", "limit"), ("?limit=1001", "limit"), ("?after_id=nobody", "after_id")]
    {
        let answer = page(query);
        let error = answer.json();
        assert_eq!((answer.status, &error["type"]), (400, &json!("error")), "{query} {error}");
        assert!(error["error"]["message"].as_str().unwrap().starts_with(field), "{query} {error}");
    }
}
