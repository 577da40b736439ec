//! `GET /openapi.json`: the table of routes as an OpenAPI document, and `GET /docs`, the same for people.
//!
//! A request body's schema is derived from the struct that is read. Both are made once, at the start. Never here: handlers.

use std::fmt::Write as _;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::App;
use super::error::ErrorForm;
use super::routes::{BodySchema, JSON, Route};

/// OpenAPI's version: the first whose schemas are those of JSON Schema.
const OPENAPI: &str = "3.1.0";

/// Where schemas of their own are in the document.
const COMPONENTS: &str = "/components/schemas";

pub(super) const HTML: &str = "text/html; charset=utf-8";

/// The page shows text and has a style of its own.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The documents of a table of routes.
pub(super) struct Documents {
    openapi: Bytes,
    page: Bytes,
}

impl Documents {
    /// Those of `routes`, most of which ask for a key where there is one.
    pub(super) fn of(routes: &[Route], has_key: bool) -> Self {
        let document = document(routes, has_key);
        Self { openapi: document.to_string().into(), page: page(&document).into() }
    }
}

/// The document.
pub(super) async fn openapi(State(app): State<App>) -> Response {
    ([(header::CONTENT_TYPE, JSON)], app.documents.openapi.clone()).into_response()
}

/// The page.
pub(super) async fn docs(State(app): State<App>) -> Response {
    let headers = [(header::CONTENT_TYPE, HTML), (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY)];
    (headers, app.documents.page.clone()).into_response()
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

/// The page: each route with the fields of its body and its statuses.
fn page(document: &Value) -> String {
    let mut page = String::from(HEAD);
    let routes = document["paths"].as_object().into_iter().flatten();
    for (path, item) in routes {
        for (method, operation) in item.as_object().into_iter().flatten() {
            // Writing to a string cannot fail.
            let _ = write!(
                page,
                "<section><h2><code>{} {}</code></h2><p>{}</p>",
                method.to_ascii_uppercase(),
                escaped(path),
                escaped(operation["summary"].as_str().unwrap_or_default())
            );
            if let Some(schema) = operation.pointer("/requestBody/content/application~1json/schema") {
                push_fields(&mut page, document, schema);
            }
            let statuses: Vec<&str> =
                operation["responses"].as_object().into_iter().flatten().map(|(status, _)| status.as_str()).collect();
            let _ = write!(page, "<p>Statuses: {}</p></section>", statuses.join(", "));
        }
    }
    page.push_str("</main></body></html>\n");
    page
}

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Diffulex: HTTP API</title>\
     <style>body{font:16px/1.4 system-ui,sans-serif;max-width:60rem;margin:auto;padding:1rem}table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.2rem 1rem .2rem 0}code,td,h2{overflow-wrap:anywhere}</style></head><body><main><h1>HTTP API</h1>\
     <p>The same as <a href=\"/openapi.json\">OpenAPI document</a>.</p>\n";

fn push_fields(page: &mut String, document: &Value, schema: &Value) {
    let Some(fields) = resolved(document, schema)["properties"].as_object().filter(|fields| !fields.is_empty()) else {
        return;
    };
    let required = [schema, resolved(document, schema)].into_iter().filter_map(|schema| schema["required"].as_array());
    let required: Vec<&str> = required.flatten().filter_map(Value::as_str).collect();
    page.push_str("<table><tr><th>field</th><th>type</th><th></th></tr>");
    for (name, field) in fields {
        let mark = if required.contains(&name.as_str()) { " (required)" } else { "" };
        let description = field["description"].as_str().or_else(|| resolved(document, field)["description"].as_str());
        let _ = write!(
            page,
            "<tr><td><code>{}</code>{mark}</td><td>{}</td><td>{}</td></tr>",
            escaped(name),
            escaped(&kind(document, field)),
            escaped(description.unwrap_or_default())
        );
    }
    page.push_str("</table>");
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let target = schema["$ref"].as_str().and_then(|reference| document.pointer(reference.strip_prefix('#')?));
    target.unwrap_or(schema)
}

/// The types of a schema, such as `string, list or null`.
fn kind(document: &Value, schema: &Value) -> String {
    let schema = resolved(document, schema);
    let names: Vec<String> = match (&schema["type"], schema.get("anyOf").or_else(|| schema.get("oneOf"))) {
        (Value::String(name), _) => vec![name.clone()],
        (Value::Array(names), _) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        (_, Some(Value::Array(parts))) => parts.iter().map(|part| kind(document, part)).collect(),
        _ => Vec::new(),
    };
    names.into_iter().filter(|name| name != "null").collect::<Vec<_>>().join(" or ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
