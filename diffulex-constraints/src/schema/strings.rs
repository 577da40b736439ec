//! JSON strings: any text, text of a counted length, and text of another language, written in quotes.

use crate::json::{escape, quoted};
use crate::language::{Item, Language, Node};

/// Characters that stand for themselves inside a JSON string (RFC 8259, section 7).
const PLAIN: &[(char, char)] = &[(' ', '!'), ('#', '['), (']', char::MAX)];

/// As [`PLAIN`], without the planes 4 to 16 of Unicode, which have tags and what nobody has assigned: three states less of ten for each
/// character that is counted.
const COUNTED: &[(char, char)] = &[(' ', '!'), ('#', '['), (']', '\u{3ffff}')];

/// Any JSON string: every escape, surrogates only in pairs.
pub(super) fn any_string() -> Language {
    let character = Language::either(vec![
        Language::characters(PLAIN),
        Language::sequence(vec![Language::text("\\"), Language::either(vec![short_escape(), unicode_escape()])]),
    ]);
    in_quotes(Language::repeat(character, 0, None))
}

/// A JSON string of `least` to `most` characters, each written as itself or with a backslash and one letter. Counting needs a copy of
/// the states for each character, so the long escapes are left out, and with them the control characters that have no other form.
pub(super) fn counted_string(least: u32, most: Option<u32>) -> Language {
    let character = Language::either(vec![
        Language::characters(COUNTED),
        Language::sequence(vec![Language::text("\\"), short_escape()]),
    ]);
    in_quotes(Language::repeat(character, least, most))
}

/// `inner` between quotes.
pub(super) fn in_quotes(inner: Language) -> Language {
    Language::sequence(vec![Language::text("\""), inner, Language::text("\"")])
}

fn short_escape() -> Language {
    Language::Characters("\"/\\bfnrt".chars().map(|letter| (letter, letter)).collect())
}

/// What follows the backslash: four hexadecimal digits of a character, or two times four of a pair of surrogates.
fn unicode_escape() -> Language {
    let hex = |count| Language::repeat(Language::characters(&[('0', '9'), ('A', 'F'), ('a', 'f')]), count, Some(count));
    let d = || Language::characters(&[('D', 'D'), ('d', 'd')]);
    let low =
        Language::sequence(vec![Language::text("\\u"), d(), Language::characters(&[('C', 'F'), ('c', 'f')]), hex(2)]);
    let after_d = Language::either(vec![
        Language::sequence(vec![Language::characters(&[('0', '7')]), hex(2)]),
        Language::sequence(vec![Language::characters(&[('8', '9'), ('A', 'B'), ('a', 'b')]), hex(2), low]),
    ]);
    let other = Language::characters(&[('0', '9'), ('A', 'C'), ('E', 'F'), ('a', 'c'), ('e', 'f')]);
    Language::sequence(vec![
        Language::text("u"),
        Language::either(vec![Language::sequence(vec![other, hex(3)]), Language::sequence(vec![d(), after_d])]),
    ])
}

/// `language` as it is written inside a JSON string: what must be escaped is, in its shortest form. It holds no byte ranges.
pub(super) fn escaped(language: Language) -> Language {
    let boxed = |part: Box<Language>| Box::new(escaped(*part));
    let all = |parts: Vec<Language>| parts.into_iter().map(escaped).collect::<Vec<_>>();
    match language {
        Language::Nothing | Language::ByteRanges(_) => language,
        Language::Bytes(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let quoted = quoted(&text);
            Language::text(&quoted[1..quoted.len() - 1])
        }
        Language::Characters(ranges) => escaped_characters(&ranges),
        Language::Sequence(parts) => Language::Sequence(all(parts)),
        Language::Either(parts) => Language::Either(all(parts)),
        Language::Repeat { part, least, most } => Language::Repeat { part: boxed(part), least, most },
        Language::List { part, separator, least, most } => {
            Language::List { part: boxed(part), separator: boxed(separator), least, most }
        }
        Language::Items { items, separator } => Language::Items {
            items: items.into_iter().map(|item| Item { language: escaped(item.language), ..item }).collect(),
            separator: boxed(separator),
        },
        Language::Graph(nodes) => {
            let edges = |node: Node| node.edges.into_iter().map(|(part, to)| (escaped(part), to)).collect();
            Language::Graph(nodes.into_iter().map(|node| Node { accepts: node.accepts, edges: edges(node) }).collect())
        }
    }
}

fn escaped_characters(ranges: &[(char, char)]) -> Language {
    let mut plain = Vec::new();
    let mut parts = Vec::new();
    for &(first, last) in ranges {
        plain.extend(
            PLAIN.iter().map(|&(low, high)| (first.max(low), last.min(high))).filter(|(low, high)| low <= high),
        );
        let special = ('\0'..='\u{1f}').chain(['"', '\\']).filter(|character| (first..=last).contains(character));
        parts.extend(special.filter_map(escape).map(|text| Language::text(&text)));
    }
    if !plain.is_empty() {
        parts.push(Language::Characters(plain));
    }
    Language::either(parts)
}
