//! The OpenAPI document as a page: routes by purpose, each folded over the fields of its body.
//!
//! In: the document. Out: HTML without scripts. Never here: what a route takes.

use std::fmt::Write as _;

use serde_json::Value;

/// An operation of the document: method, path, description.
type Operation<'a> = (&'a str, &'a str, &'a Value);

/// The page of `document`, with its routes by these purposes.
pub(super) fn of(document: &Value, purposes: &[&str]) -> String {
    let operations: Vec<Operation<'_>> = document["paths"]
        .as_object()
        .into_iter()
        .flatten()
        .flat_map(|(path, item)| {
            item.as_object().into_iter().flatten().map(move |(method, of)| (&**method, &**path, of))
        })
        .collect();
    let mut page = String::from(HEAD);
    for purpose in purposes {
        let (served, refused): (Vec<_>, Vec<_>) =
            operations.iter().filter(|(_, _, of)| of["tags"][0] == *purpose).partition(|(_, _, of)| is_served(of));
        if served.is_empty() && refused.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = write!(page, "<h2>{purpose}</h2>");
        for operation in served {
            push_operation(&mut page, document, operation);
        }
        push_refused(&mut page, &refused);
    }
    page.push_str("</main></body></html>\n");
    page
}

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Diffulex: HTTP API</title>\
     <meta name=\"viewport\" content=\"width=device-width\"><style>:root{color-scheme:light dark}\
     body{font:16px/1.4 system-ui,sans-serif;max-width:60rem;margin:auto;padding:1rem}details{padding:.2rem 0}summary{cursor:pointer}\
     table{border-collapse:collapse;margin:.5rem 1rem}th,td{text-align:left;vertical-align:top;padding:.2rem 1rem .2rem 0}\
     p{margin:.3rem 1rem}code,td,summary{overflow-wrap:anywhere}</style></head><body><main><h1>HTTP API</h1>\
     <p>Open a route for the fields of its body. The same as an <a href=\"openapi.json\">OpenAPI document</a>; \
     <a href=\"./\">the playground</a>.</p>\n";

/// True for a route that can succeed.
fn is_served(operation: &Value) -> bool {
    operation["responses"].as_object().into_iter().flatten().any(|(status, _)| status.starts_with('2'))
}

fn push_operation(page: &mut String, document: &Value, (method, path, operation): &Operation<'_>) {
    let _ = write!(
        page,
        "<details><summary><code>{} {}</code> {}</summary>",
        method.to_ascii_uppercase(),
        escaped(path),
        escaped(operation["summary"].as_str().unwrap_or_default())
    );
    if let Some(schema) = operation.pointer("/requestBody/content/application~1json/schema") {
        push_fields(page, document, schema);
    }
    let statuses: Vec<&str> =
        operation["responses"].as_object().into_iter().flatten().map(|(status, _)| status.as_str()).collect();
    let _ = write!(page, "<p>Statuses: {}</p></details>", statuses.join(", "));
}

/// Routes that only say why they are refused.
fn push_refused(page: &mut String, refused: &[&Operation<'_>]) {
    if refused.is_empty() {
        return;
    }
    page.push_str("<details><summary>Not supported</summary><p>");
    for (method, path, _) in refused {
        let _ = write!(page, "<code>{} {}</code><br>", method.to_ascii_uppercase(), escaped(path));
    }
    page.push_str("</p></details>");
}

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
