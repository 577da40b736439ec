//! From a client's constraint to its language.

use diffulex_protocol::{After, Constraint};

use crate::error::ConstraintError;
use crate::grammar;
use crate::language::Language;
use crate::regex;
use crate::schema;
use crate::tags;

/// Most choices. Chosen by us: each has its own states.
const MAX_CHOICES: usize = 10_000;
/// Longest list of choices, in bytes. Chosen by us.
const MAX_CHOICE_BYTES: usize = 1 << 20;
/// Longest marks around text that is free, in bytes. Chosen by us.
const MAX_MARK_BYTES: usize = 256;
/// Largest language, in characters and bytes with repetitions written out. Chosen by us: an automaton of a larger one is never allowed.
const MAX_SIZE: u64 = 1_000_000;

/// The language of a constraint.
///
/// Only reads: it takes time in proportion to the text of the constraint and keeps to the limits that its parts state.
///
/// # Errors
/// The constraint is malformed, allows no text, has a part that is not supported, or exceeds a limit. The message names it.
pub fn language_of(constraint: &Constraint) -> Result<Language, ConstraintError> {
    let language = match constraint {
        Constraint::JsonSchema(schema) => schema::language_of_schema(schema)?,
        Constraint::JsonObject => schema::any_object(schema::DEPTH),
        Constraint::Regex(pattern) => regex::whole(pattern)?,
        Constraint::Choice(choices) => choice(choices)?,
        Constraint::Grammar(grammar) => grammar::language_of_grammar(grammar)?,
        Constraint::Tags(tags) => tags::language_of_tags(tags)?,
        Constraint::After(after) => language_after(after)?,
    };
    if language == Language::Nothing {
        return Err(ConstraintError::new("the constraint allows no text at all"));
    }
    let size = language.size();
    if size > MAX_SIZE {
        return Err(ConstraintError::new(format!(
            "the constraint has {size} characters with repetitions written out, at most {MAX_SIZE} are allowed"
        )));
    }
    Ok(language)
}

/// Thoughts, at most two line ends, and text of the other language.
fn language_after(after: &After) -> Result<Language, ConstraintError> {
    let n_bytes = after.begin.len() + after.end.len();
    if n_bytes > MAX_MARK_BYTES {
        let message = format!("after.begin and after.end have {n_bytes} bytes, at most {MAX_MARK_BYTES} are allowed");
        return Err(ConstraintError::new(message));
    }
    if after.end.is_empty() {
        return Err(ConstraintError::new("after.end is empty"));
    }
    if matches!(after.then, Constraint::After(_)) {
        return Err(ConstraintError::new("after.then is an after, too"));
    }
    let line_ends = ["", "\n", "\n\n"].map(Language::text).to_vec();
    Ok(Language::Sequence(vec![
        Language::text(&after.begin),
        tags::text_up_to(&after.end)?,
        Language::either(line_ends),
        language_of(&after.then)?,
    ]))
}

fn choice(choices: &[String]) -> Result<Language, ConstraintError> {
    let n_bytes: usize = choices.iter().map(String::len).sum();
    match choices.len() {
        0 => Err(ConstraintError::new("choice is empty")),
        n if n > MAX_CHOICES => {
            Err(ConstraintError::new(format!("choice has {n} texts, at most {MAX_CHOICES} are allowed")))
        }
        _ if n_bytes > MAX_CHOICE_BYTES => {
            Err(ConstraintError::new(format!("choice has {n_bytes} bytes, at most {MAX_CHOICE_BYTES} are allowed")))
        }
        _ => Ok(Language::either(choices.iter().map(|text| Language::text(text)).collect())),
    }
}
