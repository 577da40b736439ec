//! The tokens of a grammar.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::rule::error_at;
use crate::error::ConstraintError;
use crate::language::Language;
use crate::regex;

/// The form of a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `root ::= "a" [b-d]`
    Gbnf,
    /// `start: "a" /[b-d]/`
    Lark,
}

impl Dialect {
    /// GBNF if the first rule is written with `::=`.
    pub(super) fn of(grammar: &str) -> Self {
        let mut lines = grammar.lines().map(str::trim_start);
        let first =
            lines.find(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("//")).unwrap_or("");
        let rest = first.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        // The name may be alone in its line.
        let is_gbnf = rest.trim_start().starts_with("::=") || (rest.is_empty() && grammar.contains("::="));
        if is_gbnf { Self::Gbnf } else { Self::Lark }
    }
}

/// A token, and where it is.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: usize,
    /// Whether it is the first of its line.
    pub(super) is_first: bool,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// The name of a rule or, with a percent sign, of a directive.
    Name(String),
    Number(u32),
    /// A string, which in Lark may be an end of a range.
    Text(String),
    /// An expression, a class, or a string whose case does not matter.
    Pattern(Language),
    /// `::=` or, in Lark, `:`.
    Define,
    /// `..`
    Range,
    /// `->`
    Arrow,
    Symbol(char),
}

/// All tokens of a grammar; comments and spaces are left out.
pub(super) fn tokens(dialect: Dialect, grammar: &str) -> Result<Vec<Token>, ConstraintError> {
    let mut scanner = Scanner { dialect, rest: grammar, line: 1 };
    let mut tokens: Vec<Token> = Vec::new();
    let mut last_line = 0;
    loop {
        scanner.skip_spaces();
        if scanner.rest.is_empty() {
            return Ok(tokens);
        }
        let line = scanner.line;
        let kind = scanner.token()?;
        tokens.push(Token { kind, line, is_first: line != last_line });
        last_line = scanner.line;
    }
}

struct Scanner<'a> {
    dialect: Dialect,
    rest: &'a str,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn take(&mut self, n_bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(n_bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn skip_spaces(&mut self) {
        loop {
            let trimmed = self.rest.trim_start();
            self.take(self.rest.len() - trimmed.len());
            let is_comment = self.rest.starts_with('#') || self.dialect == Dialect::Lark && self.rest.starts_with("//");
            if !is_comment {
                return;
            }
            self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    fn token(&mut self) -> Result<Kind, ConstraintError> {
        for (text, kind) in [("::=", Kind::Define), ("..", Kind::Range), ("->", Kind::Arrow)] {
            if self.rest.starts_with(text) && (self.dialect == Dialect::Lark) != (text == "::=") {
                self.take(text.len());
                return Ok(kind);
            }
        }
        let is_gbnf = self.dialect == Dialect::Gbnf;
        let first = self.rest.chars().next().unwrap_or(' ');
        match first {
            '"' => self.string(),
            '[' if is_gbnf => self.class(),
            '/' if !is_gbnf => self.expression(),
            ':' if !is_gbnf => {
                self.take(1);
                Ok(Kind::Define)
            }
            '.' if is_gbnf => {
                self.take(1);
                Ok(Kind::Pattern(Language::characters(&[('\0', char::MAX)])))
            }
            '0'..='9'
                if !is_gbnf
                    || self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with([',', '}', ' ']) =>
            {
                let n_digits = self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let digits = self.take(n_digits);
                digits.parse().map(Kind::Number).map_err(|_| error_at(self.line, format!("{digits} is too large")))
            }
            '%' | '_' | 'A'..='Z' | 'a'..='z' | '0'..='9' => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || (c == '-' && is_gbnf);
                let length = self.rest[1..].find(|c: char| !is_part(c)).map_or(self.rest.len(), |length| length + 1);
                Ok(Kind::Name(self.take(length).to_owned()))
            }
            other => {
                self.take(other.len_utf8());
                Ok(Kind::Symbol(other))
            }
        }
    }

    fn string(&mut self) -> Result<Kind, ConstraintError> {
        self.take(1);
        let mut text = String::new();
        while !self.rest.starts_with('"') {
            text.push(self.character("string")?);
        }
        self.take(1);
        let is_caseless = self.dialect == Dialect::Lark
            && self.rest.starts_with('i')
            && !self.rest[1..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if !is_caseless {
            return Ok(Kind::Text(text));
        }
        self.take(1);
        regex::with_flags(&regex_syntax::escape(&text), "i").map(Kind::Pattern)
    }

    /// One character, which may be escaped.
    fn character(&mut self, within: &str) -> Result<char, ConstraintError> {
        let line = self.line;
        let unfinished = || error_at(line, format!("a {within} does not end"));
        let first = self.rest.chars().next().filter(|first| *first != '\n').ok_or_else(unfinished)?;
        self.take(first.len_utf8());
        if first != '\\' {
            return Ok(first);
        }
        let letter = self.rest.chars().next().ok_or_else(unfinished)?;
        self.take(letter.len_utf8());
        let n_digits = match letter {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'f' => return Ok('\u{c}'),
            'v' => return Ok('\u{b}'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other if other.is_ascii_punctuation() => return Ok(other),
            other => return Err(error_at(line, format!("the escape \\{other} is not supported"))),
        };
        let digits = self.rest.get(..n_digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).and_then(char::from_u32);
        let number = number.ok_or_else(|| {
            error_at(
                line,
                format!("\\{letter} needs {n_digits} hexadecimal digits of a character that is not a surrogate"),
            )
        })?;
        self.take(n_digits);
        Ok(number)
    }

    fn class(&mut self) -> Result<Kind, ConstraintError> {
        self.take(1);
        let is_negated = self.rest.starts_with('^');
        self.take(usize::from(is_negated));
        let mut ranges = Vec::new();
        while !self.rest.starts_with(']') {
            let first = self.character("class")?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            let last = if is_range {
                self.take(1);
                self.character("class")?
            } else {
                first
            };
            if last < first {
                return Err(error_at(self.line, format!("the range {first}-{last} of a class is empty")));
            }
            ranges.push(ClassUnicodeRange::new(first, last));
        }
        self.take(1);
        let mut class = ClassUnicode::new(ranges);
        if is_negated {
            class.negate();
        }
        let ranges: Vec<(char, char)> = class.iter().map(|range| (range.start(), range.end())).collect();
        Ok(Kind::Pattern(if ranges.is_empty() { Language::Nothing } else { Language::Characters(ranges) }))
    }

    /// `/.../flags`
    fn expression(&mut self) -> Result<Kind, ConstraintError> {
        let line = self.line;
        let mut is_escaped = false;
        let end = self.rest.char_indices().skip(1).find(|&(_, character)| {
            let is_end = character == '/' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            is_end
        });
        let (end, _) = end.ok_or_else(|| error_at(line, "an expression does not end"))?;
        let pattern = &self.take(end + 1)[1..end];
        let n_flags = self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_lowercase()).len();
        let flags = self.take(n_flags);
        if let Some(flag) = flags.chars().find(|flag| !matches!(flag, 'i' | 's' | 'u')) {
            return Err(error_at(line, format!("the flag {flag} of an expression is not supported")));
        }
        regex::with_flags(pattern, flags).map(Kind::Pattern).map_err(|error| error_at(line, error.message))
    }
}
