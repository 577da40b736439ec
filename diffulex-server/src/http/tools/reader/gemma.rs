//! Gemma 4's notation: `call:NAME{key:<|"|>text<|"|>,n:3,flag:true,list:[1,2],object:{}}`.

use serde_json::{Map, Value};

use super::cursor::{Cursor, Match};
use crate::http::tools::forms::QUOTE;

/// Deepest nesting. Chosen by us: that of `serde_json`.
const MAX_DEPTH: usize = 128;

/// Passes a call; its name and its arguments.
pub(super) fn call(cursor: &mut Cursor<'_>) -> Match<(String, Map<String, Value>)> {
    match cursor.literal("call:") {
        Match::Yes(()) => {}
        Match::No => return Match::No,
        Match::Open => return Match::Open,
    }
    let name = match cursor.name_up_to('{') {
        Match::Yes(name) => name.to_owned(),
        Match::No => return Match::No,
        Match::Open => return Match::Open,
    };
    members(cursor, MAX_DEPTH).map(|arguments| (name, arguments))
}

/// Passes the members of an object, and its end.
fn members(cursor: &mut Cursor<'_>, depth: usize) -> Match<Map<String, Value>> {
    let mut members = Map::new();
    loop {
        match cursor.token("}") {
            Match::Yes(()) => return Match::Yes(members),
            Match::Open => return Match::Open,
            Match::No => {}
        }
        if !members.is_empty() {
            match cursor.token(",") {
                Match::Yes(()) => cursor.skip_space(),
                Match::No => return Match::No,
                Match::Open => return Match::Open,
            }
        }
        let key = match quoted(cursor) {
            Match::Yes(key) => match cursor.token(":") {
                Match::Yes(()) => key,
                Match::No => return Match::No,
                Match::Open => return Match::Open,
            },
            Match::Open => return Match::Open,
            Match::No => match cursor.name_up_to(':') {
                Match::Yes(key) => key.to_owned(),
                Match::No => return Match::No,
                Match::Open => return Match::Open,
            },
        };
        match value(cursor, depth) {
            Match::Yes(value) => members.insert(key, value),
            Match::No => return Match::No,
            Match::Open => return Match::Open,
        };
    }
}

/// Passes the values of a list, and its end.
fn values(cursor: &mut Cursor<'_>, depth: usize) -> Match<Vec<Value>> {
    let mut values = Vec::new();
    loop {
        match cursor.token("]") {
            Match::Yes(()) => return Match::Yes(values),
            Match::Open => return Match::Open,
            Match::No => {}
        }
        if !values.is_empty() {
            match cursor.token(",") {
                Match::Yes(()) => {}
                Match::No => return Match::No,
                Match::Open => return Match::Open,
            }
        }
        match value(cursor, depth) {
            Match::Yes(value) => values.push(value),
            Match::No => return Match::No,
            Match::Open => return Match::Open,
        }
    }
}

fn value(cursor: &mut Cursor<'_>, depth: usize) -> Match<Value> {
    let Some(depth) = depth.checked_sub(1) else { return Match::No };
    cursor.skip_space();
    match quoted(cursor) {
        Match::Yes(text) => return Match::Yes(text.into()),
        Match::Open => return Match::Open,
        Match::No => {}
    }
    if matches!(cursor.literal("{"), Match::Yes(())) {
        return members(cursor, depth).map(Value::from);
    }
    if matches!(cursor.literal("["), Match::Yes(())) {
        return values(cursor, depth).map(Value::from);
    }
    bare(cursor)
}

/// Passes a text between two marks.
fn quoted(cursor: &mut Cursor<'_>) -> Match<String> {
    cursor.literal(QUOTE).and(|| cursor.up_to(QUOTE)).map(str::to_owned)
}

/// Passes what is written without marks: a number, a word of JSON, or a text that has none of the signs.
fn bare(cursor: &mut Cursor<'_>) -> Match<Value> {
    let rest = cursor.rest();
    let Some(length) = rest.find([',', '}', ']']) else { return if cursor.is_end { Match::No } else { Match::Open } };
    let text = rest[..length].trim();
    if text.is_empty() || text.contains(QUOTE) {
        return Match::No;
    }
    cursor.at += length;
    Match::Yes(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
}
