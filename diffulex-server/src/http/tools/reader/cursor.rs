//! A place in a text of which more may come.
//!
//! Never here: what the text means.

use crate::http::tools::forms::ARGUMENTS;

/// What a text is at some place.
pub(super) enum Match<T> {
    Yes(T),
    No,
    /// More text decides.
    Open,
}

impl<T> Match<T> {
    pub(super) fn map<U>(self, of: impl FnOnce(T) -> U) -> Match<U> {
        match self {
            Self::Yes(value) => Match::Yes(of(value)),
            Self::No => Match::No,
            Self::Open => Match::Open,
        }
    }

    pub(super) fn and<U>(self, next: impl FnOnce() -> Match<U>) -> Match<U> {
        match self {
            Self::Yes(_) => next(),
            Self::No => Match::No,
            Self::Open => Match::Open,
        }
    }
}

/// A place in a text, of which more may come.
pub(super) struct Cursor<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    pub(super) is_end: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Passes `literal`, if it comes next.
    pub(super) fn literal(&mut self, literal: &str) -> Match<()> {
        if self.rest().starts_with(literal) {
            self.at += literal.len();
            return Match::Yes(());
        }
        if !self.is_end && literal.starts_with(self.rest()) { Match::Open } else { Match::No }
    }

    /// Passes `literal` and the white space before it.
    pub(super) fn token(&mut self, literal: &str) -> Match<()> {
        self.skip_space();
        self.literal(literal)
    }

    /// Passes text up to `mark`, and the mark.
    pub(super) fn up_to(&mut self, mark: &str) -> Match<&'a str> {
        let rest = self.rest();
        match rest.find(mark) {
            Some(length) => {
                self.at += length + mark.len();
                Match::Yes(&rest[..length])
            }
            None if self.is_end => Match::No,
            None => Match::Open,
        }
    }

    /// Passes a name up to `mark`, and the mark. Signs of a notation and line ends are in no name.
    pub(super) fn name_up_to(&mut self, mark: char) -> Match<&'a str> {
        let rest = self.rest();
        match rest.find(|sign| sign == mark || "{}[]<>,:\n".contains(sign)) {
            Some(length) if rest[length..].starts_with(mark) => {
                self.at += length + mark.len_utf8();
                Match::Yes(rest[..length].trim())
            }
            None if !self.is_end => Match::Open,
            Some(_) | None => Match::No,
        }
    }

    /// Passes the first key of an object, which has the name of its tool, and the name.
    pub(super) fn name(&mut self) -> Match<String> {
        for literal in ["{", "\"name\"", ":", "\""] {
            match self.token(literal) {
                Match::Yes(()) => {}
                Match::No => return Match::No,
                Match::Open => return Match::Open,
            }
        }
        self.up_to("\"").map(str::to_owned)
    }

    /// Passes the key of the arguments, up to them.
    pub(super) fn key(&mut self) -> Match<()> {
        match self.token(",") {
            Match::Yes(()) => self.skip_space(),
            Match::No => return Match::No,
            Match::Open => return Match::Open,
        }
        let start = self.at;
        for key in ARGUMENTS {
            self.at = start;
            let key = format!("\"{key}\"");
            match self.literal(&key).and(|| self.token(":")).and(|| self.token("{")) {
                // The brace belongs to the arguments.
                Match::Yes(()) => {
                    self.at -= 1;
                    return Match::Yes(());
                }
                Match::No => {}
                Match::Open => return Match::Open,
            }
        }
        Match::No
    }
}
