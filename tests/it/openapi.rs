//! The OpenAPI document and its page: what they say of each route is what it does.

use serde_json::{Value, json};

use crate::harness::Server;

/// `(method, path, operation)` of every route.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    let of_path = |(path, item): (&String, &Value)| -> Vec<(String, String, Value)> {
        let methods = item.as_object().unwrap().iter();
        methods.map(|(method, operation)| (method.to_uppercase(), path.clone(), operation.clone())).collect()
    };
    paths.flat_map(of_path).collect()
}

/// The schema of a body, references followed.
fn body<'a>(document: &'a Value, path: &str) -> &'a Value {
    let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
        None => schema,
    }
}

#[test]
fn every_answer_has_a_status_that_the_document_names() {
    let server = Server::start(&["--served-model-name", "tiny"]);
    let document = server.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let operations = operations(&document);
    assert!(operations.len() > 50, "{} operations", operations.len());
    for (method, path, operation) in operations {
        let target = path.replace("{id}", "nobody").replace("{rest}", "a/b");
        for body in ["", "{", "[]", "{}", r#"{"messages": 5, "prompt": 5, "input": 5, "model": "nobody"}"#] {
            let head = format!("{method} {target} HTTP/1.1\r\nhost: {}\r\nconnection: close", server.address);
            let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
            let answer = server.send(&format!("{head}\r\n{kind}content-length: {}\r\n\r\n{body}", body.len()));
            let status = answer.status.to_string();
            let documented = &operation["responses"][&status];
            assert!(documented.is_object(), "{method} {path} with {body:?}: {status} is not documented");
            let kind = answer.header("content-type").unwrap();
            assert!(documented["content"][kind].is_object(), "{method} {path}: {status} of type {kind}");
        }
    }
}

#[test]
fn bodies_have_the_fields_that_are_read() {
    let server = Server::start(&["--served-model-name", "tiny"]);
    let document = server.get("/openapi.json").json();
    let chat = body(&document, "/v1/chat/completions");
    assert_eq!(chat["properties"]["stream_mode"]["enum"], json!(["block_append", "denoise", null]));
    assert!(chat["properties"]["messages"].is_object() && chat["properties"]["others"].is_null());
    let embeddings = body(&document, "/v1/embeddings");
    assert_eq!(embeddings["properties"]["encoding_format"]["enum"], json!(["float", "base64", null]));
    // Those of the interface, and those that it shares with chat.
    for (path, own) in [("/v1/responses", "instructions"), ("/v1/messages", "system"), ("/api/chat", "keep_alive")] {
        let fields = &body(&document, path)["properties"];
        assert!(fields[own].is_object() && fields["seed"].is_object(), "{path}: {fields}");
    }
    assert_eq!(body(&document, "/v1/load_lora_adapter")["required"], json!(["lora_name", "lora_path"]));
    // Every reference leads somewhere.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
}

#[test]
fn the_page_shows_every_route_and_loads_nothing() {
    let server = Server::start(&["--served-model-name", "tiny", "--api-key", "secret"]);
    // Open: neither tells anything of this server but its version.
    let (document, page) = (server.get("/openapi.json").json(), server.get("/docs"));
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    for (method, path, operation) in operations(&document) {
        assert!(page.body.contains(&format!("<code>{method} {path}</code>")), "{method} {path}");
        let asks_for_key = operation["security"].is_array();
        let target = path.replace("{id}", "tiny").replace("{rest}", "0");
        if method == "GET" {
            assert_eq!(server.get(&target).status == 401, asks_for_key, "{path}");
        }
    }
    // Unsupported routes are folded into one list for each interface.
    let (_, refused) = page.body.split_once("<summary>Not supported</summary>").unwrap();
    let (refused, _) = refused.split_once("</details>").unwrap();
    assert!(refused.contains("<code>POST /api/pull</code>") || refused.contains("/v1/files"), "{refused}");
    assert!(!page.body.contains("<script") && !page.body.contains("src=") && !page.body.contains("://"));
}

#[test]
fn every_field_of_a_body_has_a_description() {
    let server = Server::start(&[]);
    let document = server.get("/openapi.json").json();
    let resolved = |schema: &Value| -> Value {
        let target = schema["$ref"].as_str().and_then(|reference| document.pointer(&reference[1..]));
        target.unwrap_or(schema).clone()
    };
    let mut bare = std::collections::BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let Some(schema) = operation.pointer("/requestBody/content/application~1json/schema") else { continue };
        for (name, field) in resolved(schema)["properties"].as_object().into_iter().flatten() {
            let is_described = |schema: &Value| schema["description"].is_string();
            let parts = field["anyOf"].as_array().into_iter().flatten();
            if !is_described(field) && !parts.chain([field]).any(|part| is_described(&resolved(part))) {
                bare.insert(format!("{method} {path}: {name}"));
            }
        }
    }
    assert!(bare.is_empty(), "{bare:#?}");
}
