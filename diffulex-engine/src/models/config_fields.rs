//! Reading and range checks of the fields of config.json. Errors name the field.
//!
//! Never here: the fields of any one family.

use crate::error::LoadError;

/// Reads a network's fields of config.json. The error names the field.
pub(super) fn parse<T: serde::de::DeserializeOwned>(config: &serde_json::Value) -> Result<T, LoadError> {
    serde_path_to_error::deserialize(config).map_err(refuse)
}

/// Returns the names of the fields that `T` deserializes.
pub(super) fn fields_of<T: serde::de::DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // The deserializer records the requested names and fails.
    let _ = T::deserialize(Asked(&mut names));
    names
}

/// Deserializer that records the names of a struct's fields.
struct Asked<'a>(&'a mut &'static [&'static str]);

impl<'de> serde::Deserializer<'de> for Asked<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_struct<V: serde::de::Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(serde::de::Error::custom("there are no fields"))
    }

    fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("there are no fields"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
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

/// Returns an error about config.json.
pub(super) fn refuse(what: impl std::fmt::Display) -> LoadError {
    LoadError::of("config.json", what)
}

/// Fails for the first field with a value other than null and its only supported value.
pub(super) fn refuse_switches(
    config: &serde_json::Value,
    known: &[(&str, serde_json::Value)],
) -> Result<(), LoadError> {
    unknown_switch(config, known).map_or(Ok(()), |what| Err(refuse(what)))
}

/// Describes the first field with a value other than null and its only supported value.
pub(super) fn unknown_switch(config: &serde_json::Value, known: &[(&str, serde_json::Value)]) -> Option<String> {
    known.iter().find_map(|(field, known)| {
        let value = config.get(field).filter(|value| !value.is_null() && *value != known)?;
        Some(format!("{field} is {value}; only {known} is supported"))
    })
}
