//! JSON objects and arrays, of the languages of their values.

use super::numbers::any_number;
use super::strings::any_string;
use crate::json::{COLON, COMMA, quoted};
use crate::language::{Item, Language, Node};

/// A declared member of an object.
pub(super) struct Member {
    pub(super) key: String,
    pub(super) value: Language,
    pub(super) is_required: bool,
}

/// An object with these members in this order. A member without any value is never present.
pub(super) fn object(members: Vec<Member>) -> Language {
    if members.iter().any(|member| member.is_required && member.value == Language::Nothing) {
        return Language::Nothing;
    }
    let present = members.into_iter().filter(|member| member.value != Language::Nothing);
    let items = present.map(|member| Item {
        language: Language::sequence(vec![Language::text(&format!("{}{COLON}", quoted(&member.key))), member.value]),
        is_required: member.is_required,
    });
    let items = Language::Items { items: items.collect(), separator: Box::new(Language::text(COMMA)) };
    Language::sequence(vec![Language::text("{"), items, Language::text("}")])
}

/// An object of `least` to `most` members with any keys and such values.
pub(super) fn map(value: Language, least: u32, most: Option<u32>) -> Language {
    let member = Language::sequence(vec![any_string(), Language::text(COLON), value]);
    Language::sequence(vec![Language::text("{"), Language::comma_list(member, least, most), Language::text("}")])
}

/// An array of `least` to `most` values: the first are those of `prefix`, the others `rest`.
pub(super) fn array(mut prefix: Vec<Language>, mut rest: Language, least: u32, mut most: Option<u32>) -> Language {
    if let Some(n_possible) = prefix.iter().position(|value| *value == Language::Nothing) {
        prefix.truncate(n_possible);
        rest = Language::Nothing;
        most = Some(most.unwrap_or(u32::MAX).min(n_possible as u32));
    }
    let body = if prefix.is_empty() {
        Language::comma_list(rest, least, most)
    } else {
        with_prefix(prefix, rest, least, most)
    };
    Language::sequence(vec![Language::text("["), body, Language::text("]")])
}

/// Node n stands behind the first n values of the prefix, the last node behind the whole array.
fn with_prefix(prefix: Vec<Language>, rest: Language, least: u32, most: Option<u32>) -> Language {
    let n_prefix = prefix.len() as u32;
    let is_long = most.is_none_or(|most| most > n_prefix) && rest != Language::Nothing;
    if most.is_some_and(|most| most < least) || (least > n_prefix && !is_long) {
        return Language::Nothing;
    }
    let mut nodes = Vec::new();
    let accepts = |n_values: u32| n_values >= least && most.is_none_or(|most| n_values <= most);
    for (value_idx, value) in (0..).zip(prefix) {
        let comma = Language::text(if value_idx == 0 { "" } else { COMMA });
        let edge = (Language::sequence(vec![comma, value]), nodes.len() + 1);
        let edges = if most.is_some_and(|most| value_idx >= most) { Vec::new() } else { vec![edge] };
        nodes.push(Node { edges, accepts: accepts(value_idx) });
    }
    let mut end = Node { edges: Vec::new(), accepts: accepts(n_prefix) };
    if is_long {
        let others = Language::sequence(vec![Language::text(COMMA), rest]);
        let fewest = least.saturating_sub(n_prefix).max(1);
        end.edges.push((Language::repeat(others, fewest, most.map(|most| most - n_prefix)), nodes.len() + 1));
        nodes.push(end);
        end = Node { edges: Vec::new(), accepts: true };
    }
    nodes.push(end);
    Language::Graph(nodes)
}

/// Any JSON in which at most `depth` arrays and objects are nested.
pub(crate) fn any_value(depth: u32) -> Language {
    let mut parts =
        vec![any_string(), any_number(), Language::text("true"), Language::text("false"), Language::text("null")];
    if depth > 0 {
        parts.push(array(Vec::new(), any_value(depth - 1), 0, None));
        parts.push(any_object(depth));
    }
    Language::either(parts)
}

/// Any JSON object in which at most `depth` arrays and objects are nested, itself included; at least one.
pub(crate) fn any_object(depth: u32) -> Language {
    map(any_value(depth.saturating_sub(1)), 0, None)
}
