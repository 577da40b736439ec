//! Names that a type reads, by its own derived reading, and schemas made of them.
//!
//! Never here: schemas that can be derived.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::value::Error as PlainError;
use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde_json::Value;

/// A name of the enum `T`, or nothing.
pub(in crate::http) fn name_of<T: DeserializeOwned>(_: &mut SchemaGenerator) -> Schema {
    let names = names_of::<T>().iter().map(|name| Value::from(*name)).chain([Value::Null]);
    json_schema!({"enum": names.collect::<Vec<_>>()})
}

/// The names of the enum `T`.
fn names_of<T: DeserializeOwned>() -> &'static [&'static str] {
    names_read_by(|input| T::deserialize(input))
}

/// The names that `read` asks for: variants of an enum, or fields of a struct.
pub(in crate::http) fn names_read_by<T>(
    read: impl FnOnce(Names<'_>) -> Result<T, PlainError>,
) -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // Always an error: there is nothing to read.
    let _ = read(Names(&mut names));
    names
}

/// A deserializer without a value, which notes the names of the enum or struct that it is asked for.
pub(in crate::http) struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = PlainError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, PlainError> {
        Err(PlainError::custom("no value"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, PlainError> {
        *self.0 = variants;
        self.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, PlainError> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use diffulex_protocol::{Pooling, StreamMode};

    use super::*;

    #[test]
    fn an_enum_says_its_names() {
        assert_eq!(names_of::<Pooling>(), ["mean", "last"]);
        assert_eq!(names_of::<StreamMode>(), ["block_append", "denoise"]);
        assert!(names_of::<u32>().is_empty());
    }
}
