//! Verdicts on fields that a body does not declare, by name: fields of other servers, and of other interfaces of this one.
//!
//! In: `field_lists/verdicts.tsv`, a row per name: the verdict, the values that pass, and a note for the client. The lists of
//! names beside it are made by `scripts/field_lists` from the sources of each system; a test holds that each name has a row. Never
//! here: names that are in no list.

use serde_json::Value;

use crate::http::answer::error::ApiError;

/// Rows in the order of their names.
const VERDICTS: &str = include_str!("field_lists/verdicts.tsv");

/// The effect of a field on a route that does not declare it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::http) enum Verdict {
    /// Another route has it: refused, unless its value passes.
    Served,
    /// It would change the answer or its form where it comes from: refused, unless its value passes.
    Refused,
    /// It changes no answer.
    Harmless,
}

/// A name with its verdict.
#[derive(Debug, PartialEq)]
pub(in crate::http) struct Listed {
    pub(in crate::http) name: &'static str,
    pub(in crate::http) verdict: Verdict,
    /// Values that ask for nothing, separated by spaces: JSON, or a word that [`Listed::lets_through`] knows.
    passes: &'static str,
    /// To be read after the message: what to send instead, the route that has it, or why it is harmless.
    pub(in crate::http) note: &'static str,
}

impl Listed {
    /// The row of `name`.
    pub(in crate::http) fn of(name: &str) -> Option<Self> {
        let mut rows = VERDICTS;
        while !rows.is_empty() {
            let middle = rows.floor_char_boundary(rows.len() / 2);
            let start = rows[..middle].rfind('\n').map_or(0, |newline| newline + 1);
            let end = rows[start..].find('\n').map_or(rows.len(), |newline| start + newline + 1);
            let row = Self::read(&rows[start..end])?;
            match name.cmp(row.name) {
                std::cmp::Ordering::Less => rows = &rows[..start],
                std::cmp::Ordering::Equal => return Some(row),
                std::cmp::Ordering::Greater => rows = &rows[end..],
            }
        }
        None
    }

    fn read(row: &'static str) -> Option<Self> {
        let mut columns = row.trim_end_matches('\n').split('\t');
        let name = columns.next()?;
        let verdict = match columns.next()? {
            "served" => Verdict::Served,
            "refused" => Verdict::Refused,
            "harmless" => Verdict::Harmless,
            _ => return None,
        };
        Some(Self { name, verdict, passes: columns.next()?, note: columns.next()? })
    }

    /// True for a value that asks for this server's own behaviour.
    pub(in crate::http) fn lets_through(&self, value: &Value) -> bool {
        self.passes.split(' ').any(|word| match word {
            "empty" => is_empty(value),
            "no-call" => ["none", "auto"].contains(&named(value)),
            "text-format" => value.get("type").is_some_and(|kind| kind == "text"),
            "text-only" => value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text")),
            json => serde_json::from_str::<Value>(json).is_ok_and(|neutral| is_same(&neutral, value)),
        })
    }

    /// The error of a `value` that does not pass.
    pub(in crate::http) fn refusal(&self, value: &Value) -> ApiError {
        let Self { name, verdict, note, .. } = *self;
        if let Some((modality, shape)) = self.modality(value) {
            return match shape {
                Some(shape) => ApiError::invalid(name, format!("{name} must be {shape}")),
                None => ApiError::unsupported_modality(name, modality),
            };
        }
        match verdict {
            Verdict::Served => foreign(name),
            Verdict::Refused | Verdict::Harmless if note.is_empty() => unsupported(name),
            Verdict::Refused | Verdict::Harmless => {
                ApiError::invalid(name, format!("{name} is not supported by this server; {note}"))
            }
        }
    }

    /// The modality that the field asks for, and the shape that `value` should have, if it has another.
    fn modality(&self, value: &Value) -> Option<(&'static str, Option<&'static str>)> {
        self.passes.split(' ').find_map(|word| {
            let (kind, modality) =
                if word == "text-only" { ("list", "another modality") } else { word.split_once("-of-")? };
            let shape = match kind {
                "list" => (!value.is_array()).then_some("a list"),
                "object" => (!value.is_object()).then_some("an object"),
                _ => value.as_f64().is_none_or(|limit| limit <= 0.0).then_some("a number above 0"),
            };
            Some((modality, shape))
        })
    }
}

/// The error of the field `name`, which another route has and this one has not.
pub(in crate::http) fn foreign(name: &str) -> ApiError {
    let other = Listed::of(name).map_or("another route has it", |listed| listed.note);
    ApiError::invalid(name, format!("{name} is not a field of this route; {other}"))
}

/// The error of the field `name`, which nothing here is like.
pub(in crate::http) fn unsupported(name: &str) -> ApiError {
    ApiError::invalid(name, format!("{name} is not supported by this server"))
}

/// True for a `tool_choice` with which no tool is called. An error for one that asks for a call.
pub(in crate::http) fn checked_choice(choice: Option<&Value>) -> Result<bool, ApiError> {
    let Some(choice) = choice else { return Ok(false) };
    match Listed::of("tool_choice").filter(|listed| !listed.lets_through(choice)) {
        Some(listed) => Err(listed.refusal(choice)),
        None => Ok(forbids_tools(choice)),
    }
}

/// True for a `tool_choice` with which no tool is called.
pub(in crate::http) fn forbids_tools(choice: &Value) -> bool {
    named(choice) == "none"
}

/// The name of a choice, in OpenAI's form or Anthropic's.
fn named(choice: &Value) -> &str {
    choice.as_str().or_else(|| choice.get("type")?.as_str()).unwrap_or_default()
}

/// Equal, and 1.0 for 1.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

/// True for `null`, `false`, 0 and empty values: they change nothing.
pub(in crate::http) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Names of the fields of each system.
    const LISTS: [(&str, &str); 10] = [
        ("anthropic", include_str!("field_lists/anthropic.txt")),
        ("llama_cpp", include_str!("field_lists/llama_cpp.txt")),
        ("ollama", include_str!("field_lists/ollama.txt")),
        ("openai", include_str!("field_lists/openai.txt")),
        ("openrouter", include_str!("field_lists/openrouter.txt")),
        ("others", include_str!("field_lists/others.txt")),
        ("sglang", include_str!("field_lists/sglang.txt")),
        ("tgi", include_str!("field_lists/tgi.txt")),
        ("transformers", include_str!("field_lists/transformers.txt")),
        ("vllm", include_str!("field_lists/vllm.txt")),
    ];

    const PAGE: &str = include_str!("../../../../docs/http-api.md");

    fn names(list: &'static str) -> impl Iterator<Item = &'static str> {
        list.lines().filter(|line| !line.starts_with('#'))
    }

    fn rows() -> Vec<Listed> {
        VERDICTS.lines().map(|row| Listed::read(row).unwrap_or_else(|| panic!("{row}"))).collect()
    }

    #[test]
    fn each_row_is_found_by_its_name() {
        let rows = rows();
        assert!(rows.is_sorted_by(|a, b| a.name < b.name));
        for row in &rows {
            assert_eq!(Listed::of(row.name).as_ref(), Some(row));
        }
        for name in ["", "a", "nobody", "zzz", "é"] {
            assert_eq!(Listed::of(name), None);
        }
    }

    #[test]
    fn each_row_says_which_values_pass_or_why_it_is_harmless() {
        let known = ["empty", "no-call", "text-format", "text-only"];
        for Listed { name, verdict, passes, note } in rows() {
            let is_word = |word: &str| {
                known.contains(&word) || word.contains("-of-") || serde_json::from_str::<Value>(word).is_ok()
            };
            let is_right = match verdict {
                Verdict::Served => passes.split(' ').all(is_word) && note.starts_with('/'),
                Verdict::Refused => passes.split(' ').all(is_word),
                Verdict::Harmless => passes.is_empty() && !note.is_empty(),
            };
            assert!(is_right, "{name}: {passes:?} {note:?}");
        }
    }

    #[test]
    fn every_field_of_every_list_has_a_verdict() {
        let missing: Vec<_> = LISTS
            .iter()
            .flat_map(|(system, list)| names(list).map(move |name| (*system, name)))
            .filter(|(_, name)| Listed::of(name).is_none())
            .collect();
        assert!(missing.is_empty(), "without a row in verdicts.tsv: {missing:?}");
    }

    #[test]
    fn a_refused_or_harmless_name_is_in_a_list() {
        let listed: BTreeSet<&str> = LISTS.iter().flat_map(|(_, list)| names(list)).collect();
        let rows = rows();
        let extra: Vec<_> =
            rows.iter().filter(|row| row.verdict != Verdict::Served && !listed.contains(row.name)).collect();
        assert!(extra.is_empty(), "{extra:?}");
    }

    #[test]
    fn settings_of_strategies_have_no_row() {
        for setting in diffulex_engine::settings() {
            assert_eq!(Listed::of(setting.name), None);
        }
    }

    #[test]
    fn the_page_has_the_version_and_the_counts_of_each_list() {
        for (system, list) in LISTS.iter().filter(|(system, _)| *system != "others") {
            let count = |verdict: Verdict| {
                names(list).filter(|name| Listed::of(name).is_some_and(|row| row.verdict == verdict)).count()
            };
            let source = list.lines().next().and_then(|line| line.strip_prefix("# ")?.split(" (").next());
            let (served, refused, harmless) =
                (count(Verdict::Served), count(Verdict::Refused), count(Verdict::Harmless));
            let row = format!("| {} | {served} | {refused} | {harmless} |", source.unwrap_or_default());
            assert!(PAGE.contains(&row), "docs/http-api.md has no row {row:?} for {system}");
        }
    }
}
