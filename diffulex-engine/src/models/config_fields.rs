//! Fields of config.json: read into a type, and refused by name where a network here cannot compute with them.
//!
//! Never here: the fields of any one family.

use crate::error::LoadError;

/// Reads a network's own fields of config.json. The error names the field.
pub(super) fn parse<T: serde::de::DeserializeOwned>(config: &serde_json::Value) -> Result<T, LoadError> {
    serde_path_to_error::deserialize(config).map_err(refuse)
}

/// Maximum of a size: four times the largest vocabulary. Chosen by us: products of three do not overflow, and allocations made
/// before the first tensor is read stay small.
const MAX_SIZE: usize = 1 << 20;

/// Fails for the first of these fields and values that is out of range.
pub(super) fn check_sizes(sizes: &[(&str, usize)]) -> Result<(), LoadError> {
    match sizes.iter().find(|(_, size)| !(1..=MAX_SIZE).contains(size)) {
        Some((field, size)) => Err(refuse(format!("{field} is {size}; it must be in 1..={MAX_SIZE}"))),
        None => Ok(()),
    }
}

/// Fails unless the value of `field` is above zero and finite.
pub(super) fn check_positive(field: &str, number: f64) -> Result<(), LoadError> {
    if number > 0.0 && number.is_finite() {
        return Ok(());
    }
    Err(refuse(format!("{field} is {number}; it must be above 0")))
}

/// An error about config.json.
pub(super) fn refuse(what: impl std::fmt::Display) -> LoadError {
    LoadError::of("config.json", what)
}

/// Fails for the first field that is neither absent nor null nor its one supported value.
pub(super) fn refuse_switches(
    config: &serde_json::Value,
    known: &[(&str, serde_json::Value)],
) -> Result<(), LoadError> {
    unknown_switch(config, known).map_or(Ok(()), |what| Err(refuse(what)))
}

/// The first field that is neither absent nor null nor its one supported value, in words for an error.
pub(super) fn unknown_switch(config: &serde_json::Value, known: &[(&str, serde_json::Value)]) -> Option<String> {
    known.iter().find_map(|(field, known)| {
        let value = config.get(field).filter(|value| !value.is_null() && *value != known)?;
        Some(format!("{field} is {value}; only {known} is known here"))
    })
}
