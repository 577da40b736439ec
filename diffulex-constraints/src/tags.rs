//! Text with structured parts: calls of tools.

use std::collections::{BTreeSet, VecDeque};

use diffulex_protocol::Tags;

use crate::error::ConstraintError;
use crate::language::{Language, Node};
use crate::schema::language_of_schema;

/// Most tags. Chosen by us.
const MAX_TAGS: usize = 256;
/// Longest `begin` of all tags together, in bytes. Chosen by us: the automaton of the text has a state for each character.
const MAX_BEGIN_BYTES: usize = 16_384;
/// Longest `end` of all tags together, and longest separator, in bytes. Chosen by us.
const MAX_END_BYTES: usize = 16_384;
/// Most edges of the automaton of the text that do not lead back to its start. Chosen by us.
const MAX_EDGES: usize = 100_000;
/// Largest `least`. Chosen by us: each part has its own states.
const MAX_LEAST: u32 = 64;

/// Text of parts as `tags` describes them.
pub(crate) fn language_of_tags(tags: &Tags) -> Result<Language, ConstraintError> {
    check(tags)?;
    let mut parts = Vec::new();
    for (tag_idx, tag) in tags.tags.iter().enumerate() {
        let schema = language_of_schema(&tag.schema)
            .map_err(|error| ConstraintError::new(format!("tags[{tag_idx}].schema: {}", error.message)))?;
        if schema == Language::Nothing {
            return Err(ConstraintError::new(format!("tags[{tag_idx}].schema allows no value")));
        }
        parts.push(Language::Sequence(vec![Language::text(&tag.begin), schema, Language::text(&tag.end)]));
    }
    let most = if tags.repeats { None } else { Some(1) };
    if !tags.allows_text {
        let separator = Box::new(Language::text(&tags.separator));
        let part = Box::new(Language::either(parts));
        return Ok(Language::List { part, separator, least: tags.least, most });
    }
    let begins: Vec<&str> = tags.tags.iter().map(|tag| tag.begin.as_str()).collect();
    let text = Text::without(&begins)?;
    let alone = Language::Graph(text.nodes(true));
    let part = text.then(&begins, parts);
    Ok(Language::Sequence(vec![Language::Repeat { part: Box::new(part), least: tags.least, most }, alone]))
}

/// Text without `mark`, then the mark.
pub(crate) fn text_up_to(mark: &str) -> Result<Language, ConstraintError> {
    Ok(Text::without(&[mark])?.then(&[mark], vec![Language::text(mark)]))
}

fn check(tags: &Tags) -> Result<(), ConstraintError> {
    let sum = |length: fn(&diffulex_protocol::Tag) -> usize| tags.tags.iter().map(length).sum::<usize>();
    let limits = [
        ("tags", tags.tags.len(), MAX_TAGS, "entries"),
        ("tags[].begin", sum(|tag| tag.begin.len()), MAX_BEGIN_BYTES, "bytes"),
        ("tags[].end", sum(|tag| tag.end.len()) + tags.separator.len(), MAX_END_BYTES, "bytes, the separator included"),
    ];
    for (field, value, limit, unit) in limits {
        if value > limit {
            return Err(ConstraintError::new(format!("{field} has {value} {unit}, at most {limit} are allowed")));
        }
    }
    if tags.tags.is_empty() {
        return Err(ConstraintError::new("tags is empty"));
    }
    if tags.allows_text
        && let Some(tag_idx) = tags.tags.iter().position(|tag| tag.begin.is_empty())
    {
        return Err(ConstraintError::new(format!(
            "tags[{tag_idx}].begin is empty, which text around the parts does not allow"
        )));
    }
    let contains = |outer: &str, inner: &str| !inner.is_empty() && outer.match_indices(inner).any(|(at, _)| at > 0);
    for (outer_idx, outer) in tags.tags.iter().enumerate().filter(|_| tags.allows_text) {
        if let Some(inner_idx) = tags.tags.iter().position(|inner| contains(&outer.begin, &inner.begin)) {
            return Err(ConstraintError::new(format!(
                "tags[{outer_idx}].begin contains tags[{inner_idx}].begin, so that calls could not be told apart"
            )));
        }
    }
    let most = if tags.repeats { MAX_LEAST } else { 1 };
    if tags.least > most {
        return Err(ConstraintError::new(format!("least is {}, at most {most} is allowed here", tags.least)));
    }
    Ok(())
}

/// The automaton of Aho and Corasick (1975) over characters.
struct Text {
    /// For each state: the character and state of each edge that does not lead to the first state.
    edges: Vec<Vec<(char, usize)>>,
    /// For each state, whether a pattern ends here.
    is_match: Vec<bool>,
    /// For each state, the state of the longest proper suffix of what has been read.
    suffixes: Vec<usize>,
    /// The states but the first, those that have read less first.
    order: Vec<usize>,
}

impl Text {
    fn without(patterns: &[&str]) -> Result<Self, ConstraintError> {
        let mut text = Self { edges: vec![Vec::new()], is_match: vec![false], suffixes: vec![0], order: Vec::new() };
        for pattern in patterns {
            let mut state = 0;
            for character in pattern.chars() {
                state = match text.edges[state].iter().find(|(other, _)| *other == character) {
                    Some((_, to)) => *to,
                    None => {
                        let to = text.edges.len();
                        text.edges[state].push((character, to));
                        text.edges.push(Vec::new());
                        text.is_match.push(false);
                        text.suffixes.push(0);
                        to
                    }
                };
            }
            text.is_match[state] = true;
        }
        text.close()?;
        Ok(text)
    }

    /// Adds what follows from the suffixes of states, breadth first, so that the suffix of a state is complete before the state.
    fn close(&mut self) -> Result<(), ConstraintError> {
        let mut n_edges = 0;
        let mut queue: VecDeque<(usize, usize)> = self.edges[0].iter().map(|(_, to)| (*to, 0)).collect();
        while let Some((state, suffix)) = queue.pop_front() {
            self.order.push(state);
            self.suffixes[state] = suffix;
            let children = self.edges[state].clone();
            queue.extend(children.iter().map(|&(character, child)| (child, self.step(suffix, character))));
            let own: BTreeSet<char> = children.iter().map(|(character, _)| *character).collect();
            let inherited = self.edges[suffix].iter().filter(|(character, _)| !own.contains(character));
            let inherited: Vec<_> = inherited.copied().collect();
            self.edges[state].extend(inherited);
            n_edges += self.edges[state].len();
            if n_edges > MAX_EDGES {
                return Err(ConstraintError::new(format!(
                    "the texts of tags[].begin differ too much: text without them needs more than {MAX_EDGES} edges"
                )));
            }
        }
        Ok(())
    }

    fn step(&self, state: usize, character: char) -> usize {
        self.edges[state].iter().find(|(other, _)| *other == character).map_or(0, |(_, to)| *to)
    }

    /// The state after `text`.
    fn after(&self, text: &str) -> usize {
        text.chars().fold(0, |state, character| self.step(state, character))
    }

    /// Text in which no pattern occurs.
    fn nodes(&self, accepts: bool) -> Vec<Node> {
        let node = |state: usize| {
            if self.is_match[state] {
                return Node { edges: Vec::new(), accepts: false };
            }
            let mut edges: Vec<(Language, usize)> = Vec::new();
            let mut others: Vec<char> = self.edges[state].iter().map(|(character, _)| *character).collect();
            others.sort_unstable();
            edges.push((Language::Characters(complement(&others)), 0));
            let open = self.edges[state].iter().filter(|(_, to)| !self.is_match[*to]);
            edges.extend(open.map(|&(character, to)| (Language::characters(&[(character, character)]), to)));
            Node { edges, accepts }
        };
        (0..self.edges.len()).map(node).collect()
    }

    /// Text in which no pattern occurs, then one of the parts. A part begins with its pattern, and the first occurrence of any pattern
    /// is there: not across the border of text and part.
    fn then(&self, patterns: &[&str], parts: Vec<Language>) -> Language {
        let mut nodes = self.nodes(false);
        let (hub, end) = (nodes.len(), nodes.len() + 1);
        let dead = || Node { edges: Vec::new(), accepts: false };
        nodes.extend([dead(), Node { edges: Vec::new(), accepts: true }]);
        for (pattern, part) in patterns.iter().zip(parts) {
            let is_crossed = self.crossed(patterns, pattern);
            if is_crossed.iter().all(|is_crossed| !is_crossed) {
                nodes[hub].edges.push((part, end));
                continue;
            }
            let own = nodes.len();
            nodes.push(Node { edges: vec![(part, end)], accepts: false });
            for state in (0..self.edges.len()).filter(|&state| !is_crossed[state] && !self.is_match[state]) {
                nodes[state].edges.push((Language::empty(), own));
            }
        }
        for state in (0..self.edges.len()).filter(|&state| !self.is_match[state]) {
            nodes[state].edges.push((Language::empty(), hub));
        }
        Language::Graph(nodes)
    }

    /// For each state, whether after it and `begin` a pattern has occurred across the border: the text ends with the head of a
    /// pattern whose tail is the head of `begin`.
    fn crossed(&self, patterns: &[&str], begin: &str) -> Vec<bool> {
        let mut is_crossed = vec![false; self.edges.len()];
        for pattern in patterns {
            for (n_head, _) in pattern.char_indices().skip(1) {
                let (head, tail) = pattern.split_at(n_head);
                if begin.starts_with(tail) {
                    is_crossed[self.after(head)] = true;
                }
            }
        }
        for &state in &self.order {
            is_crossed[state] |= is_crossed[self.suffixes[state]];
        }
        is_crossed
    }
}

/// The characters that are not among these sorted ones.
fn complement(characters: &[char]) -> Vec<(char, char)> {
    // The last number below the surrogates and the first above them are neighbours.
    let before = |character: char| {
        if character == '\u{e000}' { Some('\u{d7ff}') } else { char::from_u32((character as u32).wrapping_sub(1)) }
    };
    let after =
        |character: char| if character == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(character as u32 + 1) };
    let mut ranges = Vec::new();
    let mut first = Some('\0');
    for &character in characters {
        if let (Some(first), Some(last)) = (first, before(character))
            && first <= last
        {
            ranges.push((first, last));
        }
        first = after(character);
    }
    ranges.extend(first.map(|first| (first, char::MAX)));
    ranges
}
