//! Regular languages over bytes, as trees.
//!
//! A tree is what a regular expression is, with two forms more whose expressions would be long: lists, and items of which some may be
//! absent. Text is UTF-8.

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
}
