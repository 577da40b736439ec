//! Rules of a grammar.

use crate::error::ConstraintError;
use crate::language::Language;

/// A rule.
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) body: Expression,
}

/// What a rule stands for.
pub(super) enum Expression {
    /// Text of a language.
    Terminal(Language),
    /// Text of the rule of this number.
    Rule(usize),
    /// One after the other.
    Sequence(Vec<Expression>),
    /// One of these.
    Either(Vec<Expression>),
    /// Fewest to most in a row; `None`: any number.
    Repeat(Box<Expression>, u32, Option<u32>),
}

/// An error in a line of the grammar.
pub(super) fn error_at(line: usize, what: impl std::fmt::Display) -> ConstraintError {
    ConstraintError::new(format!("line {line} of the grammar: {what}"))
}
