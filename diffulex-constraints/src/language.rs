//! Regular languages over bytes, as trees.
//!
//! A tree is what a regular expression is, with three forms more whose expressions would be long: lists, items of which some may be
//! absent, and automata. Text is UTF-8.

use crate::json::COMMA;

/// A set of byte strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Language {
    /// No string at all.
    Nothing,
    /// These bytes.
    Bytes(Vec<u8>),
    /// One character in one of these ranges, both ends included, in UTF-8; surrogates are left out.
    Characters(Vec<(char, char)>),
    /// One byte in one of these ranges, both ends included.
    ByteRanges(Vec<(u8, u8)>),
    /// One after the other; none is the empty string.
    Sequence(Vec<Language>),
    /// One of these.
    Either(Vec<Language>),
    /// `least` to `most` in a row.
    Repeat {
        /// What is repeated.
        part: Box<Language>,
        /// Fewest.
        least: u32,
        /// Most; `None`: any number.
        most: Option<u32>,
    },
    /// `least` to `most` parts with `separator` between two of them.
    List {
        /// One part.
        part: Box<Language>,
        /// Between two parts.
        separator: Box<Language>,
        /// Fewest parts.
        least: u32,
        /// Most parts; `None`: any number.
        most: Option<u32>,
    },
    /// Items in this order with `separator` between two that are present.
    Items {
        /// The items.
        items: Vec<Item>,
        /// Between two items.
        separator: Box<Language>,
    },
    /// What stands along a path from the first node to one that accepts: an automaton whose edges are languages. No nodes: no string.
    Graph(Vec<Node>),
}

/// One node of a [`Language::Graph`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Each of them a language and the number of the node that it leads to, below the number of nodes.
    pub edges: Vec<(Language, usize)>,
    /// Whether a path may end here.
    pub accepts: bool,
}

/// One of [`Language::Items`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The item.
    pub language: Language,
    /// Whether it is always present.
    pub is_required: bool,
}

impl Language {
    /// This text.
    pub fn text(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }

    /// The empty string.
    pub fn empty() -> Self {
        Self::Sequence(Vec::new())
    }

    /// One after the other. No string, if one part has none.
    pub(crate) fn sequence(parts: Vec<Self>) -> Self {
        match parts.contains(&Self::Nothing) {
            true => Self::Nothing,
            false => Self::Sequence(parts),
        }
    }

    /// One of these; parts without a string are left out.
    pub(crate) fn either(mut parts: Vec<Self>) -> Self {
        parts.retain(|part| *part != Self::Nothing);
        match parts.len() {
            0 => Self::Nothing,
            1 => parts.remove(0),
            _ => Self::Either(parts),
        }
    }

    /// `least` to `most` of `part` in a row.
    pub(crate) fn repeat(part: Self, least: u32, most: Option<u32>) -> Self {
        match (part, most) {
            (_, Some(most)) if most < least => Self::Nothing,
            (Self::Nothing, _) if least > 0 => Self::Nothing,
            (Self::Nothing, _) | (_, Some(0)) => Self::empty(),
            (part, Some(1)) if least == 1 => part,
            (part, _) => Self::Repeat { part: Box::new(part), least, most },
        }
    }

    /// This, or the empty string.
    pub(crate) fn optional(part: Self) -> Self {
        Self::repeat(part, 0, Some(1))
    }

    /// `least` to `most` of `part` with commas between two of them.
    pub(crate) fn comma_list(part: Self, least: u32, most: Option<u32>) -> Self {
        match (part, most) {
            (_, Some(most)) if most < least => Self::Nothing,
            (Self::Nothing, _) if least > 0 => Self::Nothing,
            (Self::Nothing, _) | (_, Some(0)) => Self::empty(),
            (part, _) => Self::List { part: Box::new(part), separator: Box::new(Self::text(COMMA)), least, most },
        }
    }

    /// Bytes, characters and edges with repetitions written out; what repeats without an end counts its fewest, or once.
    pub(crate) fn size(&self) -> u64 {
        let sum = |parts: &mut dyn Iterator<Item = u64>| parts.fold(0, u64::saturating_add);
        let times = |least: u32, most: Option<u32>| u64::from(most.unwrap_or(least).max(1));
        match self {
            Self::Nothing => 1,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Characters(ranges) => ranges.len() as u64,
            Self::ByteRanges(ranges) => ranges.len() as u64,
            Self::Sequence(parts) | Self::Either(parts) => sum(&mut parts.iter().map(|part| part.size().max(1))),
            Self::Repeat { part, least, most } => part.size().max(1).saturating_mul(times(*least, *most)),
            Self::List { part, separator, least, most } => {
                part.size().saturating_add(separator.size()).saturating_mul(times(*least, *most))
            }
            Self::Items { items, separator } => {
                sum(&mut items.iter().map(|item| item.language.size().saturating_add(separator.size())))
            }
            Self::Graph(nodes) => {
                sum(&mut nodes.iter().flat_map(|node| &node.edges).map(|(part, _)| part.size().max(1)))
            }
        }
    }

    /// One of these characters.
    pub(crate) fn characters(ranges: &[(char, char)]) -> Self {
        Self::Characters(ranges.to_vec())
    }
}
