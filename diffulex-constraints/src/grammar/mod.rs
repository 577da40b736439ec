//! Grammars, in GBNF (llama.cpp) or Lark's form, whose text is a regular language.

mod lark;
mod parse;
mod regular;
mod rule;
mod scan;

use crate::error::ConstraintError;
use crate::language::Language;
use parse::rules;
use regular::regular;
use scan::{Dialect, tokens};

/// Longest grammar, in bytes. Chosen by us.
const MAX_GRAMMAR_BYTES: usize = 1 << 16;

/// The text of a grammar's start rule: `root` in GBNF, `start` in Lark.
pub(crate) fn language_of_grammar(grammar: &str) -> Result<Language, ConstraintError> {
    if grammar.len() > MAX_GRAMMAR_BYTES {
        let n_bytes = grammar.len();
        return Err(ConstraintError::new(format!(
            "the grammar has {n_bytes} bytes, at most {MAX_GRAMMAR_BYTES} are allowed"
        )));
    }
    let dialect = Dialect::of(grammar);
    let (rules, start) = rules(dialect, tokens(dialect, grammar)?)?;
    regular(&rules, start)
}
