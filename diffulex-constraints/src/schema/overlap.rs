//! Whether two schemas of `oneOf` may hold for one value.

use super::keywords::{Keywords, Kind};
use super::merge::Members;
use crate::json::Json;

/// Most schemas of one `oneOf` that are compared. Chosen by us: each is compared with each.
const MAX_COMPARED: usize = 256;

/// Two schemas that may hold for one value, if there are any. They are known not to if their types differ, if both list their values,
/// or if an object needs a property whose listed values differ.
pub(super) fn overlap(choices: &[Members]) -> Option<(usize, usize)> {
    if choices.len() > MAX_COMPARED {
        return Some((0, MAX_COMPARED));
    }
    let pairs = (0..choices.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    pairs.into_iter().find(|&(first, second)| !are_disjoint(&choices[first], &choices[second]))
}

fn are_disjoint(first: &Members, second: &Members) -> bool {
    let (first, second) = (keywords(first), keywords(second));
    if let (Some(a), Some(b)) = (values(first), values(second)) {
        return !a.iter().any(|value| b.iter().any(|other| value.equals(other)));
    }
    let (Ok(a), Ok(b)) = (kinds(first), kinds(second)) else { return false };
    let is_both =
        |a: Kind, b: Kind| a == b || matches!((a, b), (Kind::Integer, Kind::Number) | (Kind::Number, Kind::Integer));
    let shared: Vec<Kind> = a.iter().copied().filter(|a| b.iter().any(|b| is_both(*a, *b))).collect();
    match shared.as_slice() {
        [] => true,
        [Kind::Object] => tells_apart(first, second),
        _ => false,
    }
}

/// The types of what the keywords allow; here a missing `type` allows all.
fn kinds(keywords: Keywords<'_>) -> Result<Vec<Kind>, ()> {
    if let Some(values) = values(keywords) {
        return Ok(Kind::ALL.into_iter().filter(|kind| values.iter().any(|value| kind.holds(value))).collect());
    }
    match keywords.get("type") {
        Some(_) => keywords.kinds().map_err(|_| ()),
        None => Ok(Kind::ALL.to_vec()),
    }
}

fn keywords(members: &Members) -> Keywords<'_> {
    Keywords { members, path: "" }
}

/// The values of `const` or `enum`.
fn values(keywords: Keywords<'_>) -> Option<Vec<&Json>> {
    match (keywords.get("const"), keywords.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Json::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// Whether one property that both need has values in one that it does not have in the other.
fn tells_apart(first: Keywords<'_>, second: Keywords<'_>) -> bool {
    let Some(Json::Object(properties)) = first.get("properties") else { return false };
    let needs = |schema: Keywords<'_>, key: &str| match schema.get("required") {
        Some(Json::Array(names)) => names.iter().any(|name| matches!(name, Json::Text(name) if name == key)),
        _ => false,
    };
    properties.iter().filter(|(key, _)| needs(first, key) && needs(second, key)).any(|(key, a)| {
        let b = second.get("properties").and_then(|properties| properties.get(key));
        let (Json::Object(a), Some(Json::Object(b))) = (a, b) else { return false };
        match (values(keywords(a)), values(keywords(b))) {
            (Some(a), Some(b)) => !a.iter().any(|value| b.iter().any(|other| value.equals(other))),
            _ => false,
        }
    })
}
