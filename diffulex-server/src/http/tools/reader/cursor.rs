//! A place in a text of which more may come.
//!
//! Never here: what the text means.

use crate::http::tools::forms::ARGUMENTS;

/// Why nothing was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Something else is there.
    Other,
    /// More text decides.
    Open,
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
    pub(super) fn literal(&mut self, literal: &str) -> Result<(), Miss> {
        if self.rest().starts_with(literal) {
            self.at += literal.len();
            return Ok(());
        }
        Err(if !self.is_end && literal.starts_with(self.rest()) { Miss::Open } else { Miss::Other })
    }

    /// Passes `literal` and the white space before it.
    pub(super) fn token(&mut self, literal: &str) -> Result<(), Miss> {
        self.skip_space();
        self.literal(literal)
    }

    /// Whether `literal` comes next; it is passed then.
    pub(super) fn takes(&mut self, literal: &str) -> Result<bool, Miss> {
        match self.literal(literal) {
            Ok(()) => Ok(true),
            Err(Miss::Other) => Ok(false),
            Err(Miss::Open) => Err(Miss::Open),
        }
    }

    /// Passes text up to `mark`, and the mark.
    pub(super) fn up_to(&mut self, mark: &str) -> Result<&'a str, Miss> {
        let rest = self.rest();
        let length = rest.find(mark).ok_or(self.beyond())?;
        self.at += length + mark.len();
        Ok(&rest[..length])
    }

    /// Passes a name up to `mark`, and the mark. Signs of a notation and line ends are in no name.
    pub(super) fn name_up_to(&mut self, mark: char) -> Result<&'a str, Miss> {
        let rest = self.rest();
        let length = rest.find(|sign| sign == mark || "{}[]<>,:\n".contains(sign)).ok_or(self.beyond())?;
        if !rest[length..].starts_with(mark) {
            return Err(Miss::Other);
        }
        self.at += length + mark.len_utf8();
        Ok(rest[..length].trim())
    }

    /// What it means that something does not come before the end of the text.
    pub(super) fn beyond(&self) -> Miss {
        if self.is_end { Miss::Other } else { Miss::Open }
    }

    /// Passes the first key of an object, which has the name of its tool, and the name.
    pub(super) fn name(&mut self) -> Result<String, Miss> {
        for literal in ["{", "\"name\"", ":", "\""] {
            self.token(literal)?;
        }
        self.up_to("\"").map(str::to_owned)
    }

    /// Passes the key of the arguments, up to them.
    pub(super) fn key(&mut self) -> Result<(), Miss> {
        self.token(",")?;
        self.skip_space();
        let start = self.at;
        for key in ARGUMENTS {
            self.at = start;
            let key = format!("\"{key}\"");
            match self.literal(&key).and_then(|()| self.token(":")).and_then(|()| self.token("{")) {
                // The brace belongs to the arguments.
                Ok(()) => {
                    self.at -= 1;
                    return Ok(());
                }
                Err(Miss::Other) => {}
                Err(Miss::Open) => return Err(Miss::Open),
            }
        }
        Err(Miss::Other)
    }
}
