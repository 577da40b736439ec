//! Routes of OpenAI, Anthropic and Ollama that this server does not have: each says so, why, and what to use instead.

use serde_json::Value;

use crate::harness::Server;

/// Requests that published clients send, and the beginning of what to use instead.
const ASKED: [(&str, &str); 38] = [
    ("POST /v1/files", "diffulex-server batch"),
    ("GET /v1/files/file-1/content", "diffulex-server batch"),
    ("POST /v1/batches", "diffulex-server batch"),
    ("POST /v1/batches/batch_1/cancel", "diffulex-server batch"),
    ("POST /v1/messages/batches", "diffulex-server batch"),
    ("GET /v1/messages/batches/msgbatch_1/results", "diffulex-server batch"),
    ("POST /v1/moderations", ""),
    ("POST /v1/conversations", "/v1/contexts"),
    ("GET /v1/conversations/conv_1/items", "/v1/contexts"),
    ("GET /v1/responses/resp_1", "input"),
    ("DELETE /v1/responses/resp_1", "input"),
    ("POST /v1/responses/resp_1/cancel", "/abort_request"),
    ("GET /v1/chat/completions/chatcmpl-1", ""),
    ("POST /v1/images/generations", ""),
    ("POST /v1/images/edits", ""),
    ("POST /v1/audio/transcriptions", ""),
    ("POST /v1/audio/translations", ""),
    ("POST /v1/fine_tuning/jobs", "/v1/load_lora_adapter"),
    ("POST /v1/vector_stores", "/v1/embeddings"),
    ("POST /v1/threads/t/runs", "/v1/responses"),
    ("POST /v1/assistants", "/v1/responses"),
    ("POST /v1/uploads", ""),
    ("POST /v1/complete", "/v1/messages"),
    ("POST /api/pull", "--model"),
    ("DELETE /api/delete", "--model"),
    ("POST /api/push", "--model"),
    ("POST /api/create", "--model"),
    ("POST /api/copy", "--model"),
    ("POST /api/blobs/sha256:0", "--model"),
    ("POST /api/me", "no account"),
    ("POST /api/signout", "no account"),
    ("POST /api/web_search", "no other service"),
    ("POST /api/web_fetch", "no other service"),
    ("GET /v1/videos", "text only"),
    ("POST /v1/realtime/sessions", "text only"),
    ("GET /v1/images", "text only"),
    ("GET /v1/fine_tuning", "/v1/load_lora_adapter"),
    ("GET /api/blobs", "--model"),
];

#[test]
fn a_route_that_is_not_here_says_why_and_what_to_use_instead() {
    let server = Server::start(&["--served-model-name", "tiny"]);
    for (asked, instead) in ASKED {
        let head = format!("{asked} HTTP/1.1\r\nhost: {}\r\nconnection: close", server.address);
        let answer = server.send(&format!("{head}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"));
        let error = answer.json();
        assert_eq!(answer.status, 501, "{asked} {error}");
        let path = asked.split(' ').nth(1).unwrap();
        let message = match &error["error"] {
            Value::String(message) if path.starts_with("/api/") => message,
            Value::Object(fields) if ["/v1/messages/", "/v1/complete"].iter().any(|start| path.starts_with(start)) => {
                assert_eq!((error["type"].as_str(), fields["type"].as_str()), (Some("error"), Some("api_error")));
                fields["message"].as_str().unwrap()
            }
            fields => {
                assert_eq!(fields["code"], "not_implemented", "{asked}");
                fields["message"].as_str().unwrap()
            }
        };
        assert!(message.starts_with(path) && message.contains(instead), "{asked}: {message}");
        // Clients send a 5xx again otherwise.
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{asked}");
    }
}

fn page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/http-api.md")).unwrap()
}

#[test]
fn each_route_of_the_page_and_every_path_below_it_is_refused_by_any_method() {
    let page = page();
    let (_, section) = page.split_once("### Routes that are not implemented\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let roots: Vec<&str> = cells.flat_map(|cell| cell.split('`').step_by(2)).filter(|root| !root.is_empty()).collect();
    assert!(roots.len() > 25 && roots.iter().all(|root| root.starts_with('/')), "{roots:?}");
    let server = Server::start(&[]);
    for root in roots {
        let root = root.replace("{id}", "some");
        for below in ["", "/x", "/x/y:z"] {
            for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"] {
                let line = format!("{method} {root}{below} HTTP/1.1");
                let answer = server.send(&format!("{line}\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
                assert_eq!(answer.status, 501, "{line}: {}", answer.body);
                assert_eq!(answer.header("x-should-retry"), Some("false"), "{line}");
            }
        }
    }
}

#[test]
fn the_page_lists_every_route_that_is_not_here() {
    let page = page();
    let server = Server::start(&["--served-model-name", "tiny"]);
    let document = server.get("/openapi.json").json();
    let mut n_paths = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let is_missing = |operation: &Value| operation["responses"].get("200").is_none();
        if methods.as_object().unwrap().values().all(is_missing) {
            n_paths += 1;
            let start = path.split("/{").next().unwrap();
            assert!(page.contains(&format!("`{start}`")), "{path} is not in docs/http-api.md");
        }
    }
    assert!(n_paths > 25, "{n_paths}");
}
