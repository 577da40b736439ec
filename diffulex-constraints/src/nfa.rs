//! Languages as automata with silent steps (Thompson's construction).

use std::collections::HashMap;

use regex_automata::nfa::thompson::{BuildError, Builder, NFA, Transition};
use regex_automata::util::primitives::StateID;
use regex_syntax::utf8::Utf8Sequences;

use crate::{ConstraintError, Item, Language, Node};

/// Limit of the memory of an expression, in bytes. Chosen by us: 256 repetitions of a thousand states fit.
const BYTES_LIMIT: usize = 16 << 20;

/// Levels of a tree. Chosen by us: the construction recurses, and threads have 2 MB of stack.
const DEPTH_LIMIT: usize = 200;

/// The automaton of a language.
///
/// # Errors
/// If a limit is exceeded.
pub(crate) fn expression(language: &Language) -> Result<NFA, ConstraintError> {
    if is_deeper(language, DEPTH_LIMIT) {
        return Err(ConstraintError::new(format!("the constraint is nested more than {DEPTH_LIMIT} levels deep")));
    }
    build(language).map_err(|_| {
        let limit = BYTES_LIMIT >> 20;
        ConstraintError::new(format!("the constraint is too long: its expression takes more than {limit} MB"))
    })
}

fn is_deeper(language: &Language, limit: usize) -> bool {
    let Some(limit) = limit.checked_sub(1) else { return true };
    match language {
        Language::Nothing | Language::Bytes(_) | Language::Characters(_) | Language::ByteRanges(_) => false,
        Language::Sequence(parts) | Language::Either(parts) => parts.iter().any(|part| is_deeper(part, limit)),
        Language::Repeat { part, .. } => is_deeper(part, limit),
        Language::List { part, separator, .. } => is_deeper(part, limit) || is_deeper(separator, limit),
        Language::Items { items, separator } => {
            is_deeper(separator, limit) || items.iter().any(|item| is_deeper(&item.language, limit))
        }
        Language::Graph(nodes) => nodes.iter().flat_map(|node| &node.edges).any(|(part, _)| is_deeper(part, limit)),
    }
}

/// An expression that exceeds [`BYTES_LIMIT`]: the only error of a builder that is used in order.
struct TooLong;

impl From<BuildError> for TooLong {
    fn from(_: BuildError) -> Self {
        Self
    }
}

fn build(language: &Language) -> Result<NFA, TooLong> {
    let mut builder = Builder::new();
    builder.set_size_limit(Some(BYTES_LIMIT))?;
    builder.start_pattern()?;
    let mut expression = Expression { builder };
    let part = expression.part(language)?;
    let mut builder = expression.builder;
    let end = builder.add_match()?;
    builder.patch(part.end, end)?;
    builder.finish_pattern(part.start)?;
    Ok(builder.build(part.start, part.start)?)
}

/// A part that is entered at `start`. `end` can be patched once, with what follows.
#[derive(Clone, Copy)]
struct Part {
    start: StateID,
    end: StateID,
}

struct Expression {
    builder: Builder,
}

impl Expression {
    fn part(&mut self, language: &Language) -> Result<Part, TooLong> {
        match language {
            Language::Nothing => self.nothing(),
            Language::Bytes(bytes) => {
                let ranges: Vec<(u8, u8)> = bytes.iter().map(|&byte| (byte, byte)).collect();
                let end = self.builder.add_empty()?;
                let start = self.chain(&ranges, end, &mut HashMap::new())?;
                // A part of its own, even of no bytes: every part takes memory, so that no repetition is free.
                self.sequence(Part { start, end })
            }
            Language::Characters(ranges) => self.characters(ranges),
            Language::ByteRanges(ranges) => {
                let end = self.builder.add_empty()?;
                let mut starts = Vec::with_capacity(ranges.len());
                for &range in ranges {
                    starts.push(self.chain(&[range], end, &mut HashMap::new())?);
                }
                Ok(Part { start: self.builder.add_union(starts)?, end })
            }
            Language::Sequence(parts) => {
                let start = self.builder.add_empty()?;
                let mut end = start;
                for part in parts {
                    end = self.after(end, part)?.end;
                }
                Ok(Part { start, end })
            }
            Language::Either(parts) => {
                let (start, end) = (self.builder.add_union(Vec::new())?, self.builder.add_empty()?);
                for part in parts {
                    let part = self.after(start, part)?;
                    self.builder.patch(part.end, end)?;
                }
                Ok(Part { start, end })
            }
            Language::Repeat { part, least, most } => self.list(part, &Language::empty(), *least, *most),
            Language::List { part, separator, least, most } => self.list(part, separator, *least, *most),
            Language::Items { items, separator } => self.items(items, separator),
            Language::Graph(nodes) => self.graph(nodes),
        }
    }

    fn sequence(&mut self, part: Part) -> Result<Part, TooLong> {
        let start = self.builder.add_empty()?;
        self.builder.patch(start, part.start)?;
        Ok(Part { start, end: part.end })
    }

    /// A part that is entered from `before`.
    fn after(&mut self, before: StateID, language: &Language) -> Result<Part, TooLong> {
        let part = self.part(language)?;
        self.builder.patch(before, part.start)?;
        Ok(part)
    }

    fn nothing(&mut self) -> Result<Part, TooLong> {
        Ok(Part { start: self.builder.add_fail()?, end: self.builder.add_empty()? })
    }

    /// Bytes in these ranges, one after the other, before `end`; `known` has the ends that were built before.
    fn chain(
        &mut self,
        ranges: &[(u8, u8)],
        end: StateID,
        known: &mut HashMap<(u8, u8, StateID), StateID>,
    ) -> Result<StateID, TooLong> {
        let mut next = end;
        for &(start, end) in ranges.iter().rev() {
            next = match known.get(&(start, end, next)) {
                Some(&state) => state,
                None => {
                    let state = self.builder.add_range(Transition { start, end, next })?;
                    known.insert((start, end, next), state);
                    state
                }
            };
        }
        Ok(next)
    }

    fn characters(&mut self, ranges: &[(char, char)]) -> Result<Part, TooLong> {
        let end = self.builder.add_empty()?;
        let mut known = HashMap::new();
        let mut starts = Vec::new();
        for &(first, last) in ranges {
            for sequence in Utf8Sequences::new(first, last) {
                let bytes: Vec<(u8, u8)> = sequence.as_slice().iter().map(|range| (range.start, range.end)).collect();
                starts.push(self.chain(&bytes, end, &mut known)?);
            }
        }
        Ok(Part { start: self.builder.add_union(starts)?, end })
    }

    /// `least` to `most` parts. One copy for each part that is counted: a list without an upper end goes back to its last part.
    fn list(&mut self, part: &Language, separator: &Language, least: u32, most: Option<u32>) -> Result<Part, TooLong> {
        if most.is_some_and(|most| most < least) {
            return self.nothing();
        }
        let (start, end) = (self.builder.add_union(Vec::new())?, self.builder.add_empty()?);
        if least == 0 {
            // Fewer parts are preferred nowhere: all matches are kept.
            self.builder.patch(start, end)?;
        }
        let mut choice = start;
        let n_parts = most.unwrap_or(least.max(1));
        for count in 1..=n_parts {
            let before = if count == 1 { choice } else { self.after(choice, separator)?.end };
            let copy = self.after(before, part)?;
            choice = self.builder.add_union(Vec::new())?;
            self.builder.patch(copy.end, choice)?;
            if count >= least {
                self.builder.patch(choice, end)?;
            }
            if most.is_none() && count == n_parts {
                let again = self.after(choice, separator)?;
                self.builder.patch(again.end, copy.start)?;
            }
        }
        Ok(Part { start, end })
    }

    /// One copy of each item, which is entered in two ways: as the first, or after a separator.
    fn items(&mut self, items: &[Item], separator: &Language) -> Result<Part, TooLong> {
        let start = self.builder.add_empty()?;
        let (mut none_yet, mut some) = (self.builder.add_union(Vec::new())?, self.builder.add_union(Vec::new())?);
        self.builder.patch(start, none_yet)?;
        for item in items {
            let copy = self.after(none_yet, &item.language)?;
            let separator = self.after(some, separator)?;
            self.builder.patch(separator.end, copy.start)?;
            let (next_none, next_some) = (self.builder.add_union(Vec::new())?, self.builder.add_union(Vec::new())?);
            if !item.is_required {
                self.builder.patch(none_yet, next_none)?;
                self.builder.patch(some, next_some)?;
            }
            self.builder.patch(copy.end, next_some)?;
            (none_yet, some) = (next_none, next_some);
        }
        let end = self.builder.add_empty()?;
        self.builder.patch(none_yet, end)?;
        self.builder.patch(some, end)?;
        Ok(Part { start, end })
    }

    /// A state for each node.
    fn graph(&mut self, nodes: &[Node]) -> Result<Part, TooLong> {
        let mut states = Vec::with_capacity(nodes.len());
        for _ in nodes {
            states.push(self.builder.add_union(Vec::new())?);
        }
        let Some(&start) = states.first() else { return self.nothing() };
        let end = self.builder.add_empty()?;
        for (node, &state) in nodes.iter().zip(&states) {
            for (language, next) in &node.edges {
                let part = self.after(state, language)?;
                self.builder.patch(part.end, states[*next])?;
            }
            if node.accepts {
                self.builder.patch(state, end)?;
            }
        }
        Ok(Part { start, end })
    }
}
