//! Gemma 4's notation: `call:NAME{key:<|"|>text<|"|>,n:3,flag:true,list:[1,2],object:{}}`.

use serde_json::{Map, Value};

use super::cursor::{Cursor, Miss};
use crate::http::tools::forms::QUOTE;

/// Deepest nesting. Chosen by us: that of `serde_json`.
const MAX_DEPTH: usize = 128;

/// Passes a call; its name and its arguments.
pub(super) fn call(cursor: &mut Cursor<'_>) -> Result<(String, Map<String, Value>), Miss> {
    cursor.literal("call:")?;
    let name = cursor.name_up_to('{')?.to_owned();
    Ok((name, members(cursor, MAX_DEPTH)?))
}

/// Passes the members of an object, and its end.
fn members(cursor: &mut Cursor<'_>, depth: usize) -> Result<Map<String, Value>, Miss> {
    let mut members = Map::new();
    while !ends(cursor, "}", members.is_empty())? {
        let key = if cursor.takes(QUOTE)? {
            let key = cursor.up_to(QUOTE)?;
            cursor.token(":")?;
            key
        } else {
            cursor.name_up_to(':')?
        };
        let value = value(cursor, depth)?;
        members.insert(key.to_owned(), value);
    }
    Ok(members)
}

/// Passes the values of a list, and its end.
fn values(cursor: &mut Cursor<'_>, depth: usize) -> Result<Vec<Value>, Miss> {
    let mut values = Vec::new();
    while !ends(cursor, "]", values.is_empty())? {
        values.push(value(cursor, depth)?);
    }
    Ok(values)
}

/// Passes `end`, or else what separates the next part from the one before.
fn ends(cursor: &mut Cursor<'_>, end: &str, is_first: bool) -> Result<bool, Miss> {
    cursor.skip_space();
    let is_end = cursor.takes(end)?;
    if !is_end && !is_first {
        cursor.literal(",")?;
        cursor.skip_space();
    }
    Ok(is_end)
}

fn value(cursor: &mut Cursor<'_>, depth: usize) -> Result<Value, Miss> {
    let depth = depth.checked_sub(1).ok_or(Miss::Other)?;
    cursor.skip_space();
    if cursor.takes(QUOTE)? {
        return Ok(cursor.up_to(QUOTE)?.into());
    }
    if cursor.takes("{")? {
        return Ok(members(cursor, depth)?.into());
    }
    if cursor.takes("[")? {
        return Ok(values(cursor, depth)?.into());
    }
    bare(cursor)
}

/// Passes what is written without marks: a number, a word of JSON, or a text that has none of the signs.
fn bare(cursor: &mut Cursor<'_>) -> Result<Value, Miss> {
    let rest = cursor.rest();
    let length = rest.find([',', '}', ']']).ok_or(cursor.beyond())?;
    let text = rest[..length].trim();
    if text.is_empty() || text.contains(QUOTE) {
        return Err(Miss::Other);
    }
    cursor.at += length;
    Ok(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
}
