//! The table of routes as an OpenAPI document and as a page, made once, at the start.
//!
//! A request body's schema is derived from the struct that is read. Never here: handlers.

use axum::body::Bytes;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::page;
use crate::http::access::root_path::RootPath;
use crate::http::answer::error::ErrorForm;
use crate::http::entry::{BodySchema, Route};

/// OpenAPI's version: the first whose schemas are those of JSON Schema.
const OPENAPI: &str = "3.1.0";

/// Where schemas of their own are in the document.
const COMPONENTS: &str = "/components/schemas";

/// The documents of a table of routes.
pub(in crate::http) struct Documents {
    pub(super) openapi: Bytes,
    pub(super) page: Bytes,
}

impl Documents {
    /// Those of `routes`, most of which ask for a key where there is one. Behind a proxy they are below `root_path`.
    pub(in crate::http) fn of(routes: &[Route], has_key: bool, root_path: &RootPath) -> Self {
        let mut document = document(routes, has_key);
        if !root_path.as_str().is_empty() {
            document["servers"] = json!([{"url": root_path}]);
        }
        Self { openapi: document.to_string().into(), page: page::of(&document, &PURPOSES).into() }
    }
}

/// The document of `routes`.
fn document(routes: &[Route], has_key: bool) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = COMPONENTS.into());
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for route in routes {
        let path = route.path.replace("{*", "{");
        let item = paths.entry(path).or_insert_with(|| json!({}));
        let body = route.entry.body.as_ref().map(|BodySchema { schema, is_required, fields }| {
            let mut schema = schema(&mut generator);
            if !fields.is_empty() {
                schema.insert("required".to_owned(), json!(fields));
            }
            json!({"required": is_required, "content": {"application/json": {"schema": schema}}})
        });
        for method in &route.methods {
            let mut operation = json!({
                "operationId": operation_id(method.as_str(), route.path),
                "tags": [purpose(route.path)],
                "summary": route.entry.summary,
                "responses": responses(route),
            });
            if let Some(body) = &body {
                operation["requestBody"] = body.clone();
            }
            let parameters = parameters(route.path);
            if !parameters.is_empty() {
                operation["parameters"] = parameters.into();
            }
            if has_key && !route.entry.is_open {
                operation["security"] = json!([{"bearer": []}, {"header": []}]);
            }
            item[method.as_str().to_ascii_lowercase()] = operation;
        }
    }
    let mut schemas = generator.take_definitions(true);
    for form in ErrorForm::ALL {
        schemas.insert(form.schema_name().to_owned(), form.schema());
    }
    json!({
        "openapi": OPENAPI,
        "info": {"title": "Diffulex", "version": env!("CARGO_PKG_VERSION"), "description": env!("CARGO_PKG_DESCRIPTION")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

/// Purposes of routes, in the order of the page.
const PURPOSES: [&str; 7] =
    ["OpenAI", "Anthropic", "Ollama", "Generation and tokenizer", "Contexts and Parrot", "Operation", "Pages"];

/// The purpose of the route with this path: the interface that it belongs to, or its use.
fn purpose(path: &str) -> &'static str {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| path.starts_with(prefix));
    let [openai, anthropic, ollama, native, contexts, operation, pages] = PURPOSES;
    if path == "/v1/complete" || starts(&["/v1/messages", "/v1/complete/"]) {
        anthropic
    } else if starts(&[
        "/v1/contexts",
        "/fill",
        "/generate_stream",
        "/free_context",
        "/ping",
        "/register_engine",
        "/engine",
        "/v1/session",
    ]) {
        contexts
    } else if ["_lora_adapter", "_profile"].iter().any(|end| path.ends_with(end))
        || starts(&["/health", "/ready", "/metrics", "/version", "/abort", "/flush", "/admin"])
    {
        operation
    } else if starts(&["/api/"]) {
        ollama
    } else if starts(&["/v1/"]) {
        openai
    } else if starts(&["/generate", "/tokenize", "/detokenize"]) {
        native
    } else {
        pages
    }
}

/// A name made of the method and the path, such as `post_v1_chat_completions`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(method.to_ascii_lowercase(), |name, word| format!("{name}_{word}"))
}

fn parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names
        .map(|name| name.trim_start_matches('*'))
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect()
}

fn responses(route: &Route) -> Value {
    let form = ErrorForm::of_path(route.path);
    let error = json!({"$ref": format!("#{COMPONENTS}/{}", form.schema_name())});
    let mut responses = Map::new();
    for status in route.statuses() {
        let reason = status.canonical_reason().unwrap_or_default();
        let response = if status.is_success() {
            let content = route.entry.content.iter().map(|kind| ((*kind).to_owned(), json!({})));
            json!({"description": reason, "content": content.collect::<Map<_, _>>()})
        } else if route.entry.reports_itself {
            json!({"description": reason, "content": {"application/json": {}}})
        } else {
            json!({"description": reason, "content": {"application/json": {"schema": error}}})
        };
        responses.insert(status.as_str().to_owned(), response);
    }
    responses.into()
}
