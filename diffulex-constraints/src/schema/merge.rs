//! Two schemas that must both hold, as one.

use std::collections::HashMap;

use super::keywords::{Role, role};
use crate::json::Json;

/// The members of a schema.
pub(super) type Members = Vec<(String, Json)>;

/// The keywords of both. The error is the keyword whose two values have no common form.
pub(super) fn merged(first: &[(String, Json)], second: &[(String, Json)]) -> Result<Members, String> {
    let value = |schema: &[(String, Json)], keyword: &str| {
        schema.iter().find(|(name, _)| name == keyword).map(|(_, value)| value.clone())
    };
    // `items` is about what follows the `prefixItems` of its own schema.
    let crosses = |a, b| value(a, "items").is_some() && value(b, "prefixItems").is_some();
    if (crosses(first, second) || crosses(second, first)) && value(first, "prefixItems") != value(second, "prefixItems")
    {
        return Err("prefixItems".to_owned());
    }
    let mut all = first.to_vec();
    close(&mut all, second)?;
    let mut second = second.to_vec();
    close(&mut second, first)?;
    for (keyword, value) in second {
        match all.iter_mut().find(|(name, _)| *name == keyword) {
            None => all.push((keyword, value)),
            Some((_, old)) if *old == value || matches!(role(&keyword), Some(Role::Annotation)) => {}
            Some((_, old)) => *old = both(&keyword, old, &value).ok_or(keyword)?,
        }
    }
    Ok(all)
}

/// Forbids the members that only the other schema declares, if this one allows no others.
fn close(schema: &mut Members, other: &[(String, Json)]) -> Result<(), String> {
    let member = |schema: &[(String, Json)], keyword: &str| {
        schema.iter().find(|(name, _)| name == keyword).map(|(_, value)| value.clone())
    };
    let Some(Json::Object(theirs)) = member(other, "properties") else { return Ok(()) };
    let additional = match member(schema, "additionalProperties") {
        None | Some(Json::Bool(true)) => return Ok(()),
        Some(additional) => additional,
    };
    let mut properties = match member(schema, "properties") {
        Some(Json::Object(properties)) => properties,
        _ => Vec::new(),
    };
    let names: std::collections::HashSet<String> = properties.iter().map(|(key, _)| key.clone()).collect();
    properties
        .extend(theirs.into_iter().filter(|(key, _)| !names.contains(key)).map(|(key, _)| (key, additional.clone())));
    schema.retain(|(keyword, _)| keyword != "properties");
    schema.push(("properties".to_owned(), Json::Object(properties)));
    Ok(())
}

fn both(keyword: &str, first: &Json, second: &Json) -> Option<Json> {
    let number = |value: &Json| match value {
        Json::Number(number) => number.as_f64(),
        _ => None,
    };
    let conjunction = || Json::Object(vec![("allOf".to_owned(), Json::Array(vec![first.clone(), second.clone()]))]);
    Some(match (keyword, first, second) {
        ("minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties", ..) => {
            if number(first)? >= number(second)? { first.clone() } else { second.clone() }
        }
        ("maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties", ..) => {
            if number(first)? <= number(second)? { first.clone() } else { second.clone() }
        }
        ("required", Json::Array(a), Json::Array(b)) => {
            let more = b.iter().filter(|name| !a.contains(name));
            Json::Array(a.iter().chain(more).cloned().collect())
        }
        ("properties", Json::Object(a), Json::Object(b)) => Json::Object(properties(a, b)),
        ("enum", Json::Array(a), Json::Array(b)) => {
            Json::Array(a.iter().filter(|value| b.iter().any(|other| other.equals(value))).cloned().collect())
        }
        ("type", ..) => Json::Array(types(first, second)),
        ("items" | "additionalProperties", ..) => conjunction(),
        _ => return None,
    })
}

fn properties(first: &[(String, Json)], second: &[(String, Json)]) -> Members {
    let mut all = first.to_vec();
    let places: HashMap<&str, usize> =
        first.iter().enumerate().map(|(place, (key, _))| (key.as_str(), place)).collect();
    for (key, value) in second {
        match places.get(key.as_str()).map(|place| &mut all[*place].1) {
            None => all.push((key.clone(), value.clone())),
            Some(old) if old == value => {}
            Some(old) => {
                let both = Json::Array(vec![old.clone(), value.clone()]);
                *old = Json::Object(vec![("allOf".to_owned(), both)]);
            }
        }
    }
    all
}

/// The names of types in both; `integer` is a part of `number`.
fn types(first: &Json, second: &Json) -> Vec<Json> {
    let list = |value: &Json| match value {
        Json::Array(names) => names.clone(),
        name => vec![name.clone()],
    };
    let (first, second) = (list(first), list(second));
    let is_in = |name: &Json, names: &[Json]| {
        names.contains(name)
            || *name == Json::Text("integer".to_owned()) && names.contains(&Json::Text("number".to_owned()))
    };
    let mut both: Vec<Json> = first.iter().filter(|name| is_in(name, &second)).cloned().collect();
    both.extend(second.into_iter().filter(|name| is_in(name, &first) && !first.contains(name)));
    both
}
