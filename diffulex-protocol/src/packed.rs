//! Lists of numbers as one value: four bytes each, little-endian, in MessagePack's `bin`. Read and written one by one, they would take most
//! of the time that a snapshot takes. In forms that people read (JSON, and Diffulex's own messages) they stay lists.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

/// A number of four bytes.
pub(crate) trait Word: Copy {
    /// Its bytes, the least significant first.
    fn bytes(self) -> [u8; 4];
    /// The number of these bytes.
    fn of(bytes: [u8; 4]) -> Self;
}

impl Word for u32 {
    fn bytes(self) -> [u8; 4] {
        self.to_le_bytes()
    }

    fn of(bytes: [u8; 4]) -> Self {
        Self::from_le_bytes(bytes)
    }
}

impl Word for f32 {
    fn bytes(self) -> [u8; 4] {
        self.to_le_bytes()
    }

    fn of(bytes: [u8; 4]) -> Self {
        Self::from_le_bytes(bytes)
    }
}

/// For `#[serde(with)]`.
pub(crate) fn serialize<T: Word + Serialize, S: Serializer>(numbers: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        return numbers.serialize(serializer);
    }
    let words: Vec<[u8; 4]> = numbers.iter().map(|number| number.bytes()).collect();
    serializer.serialize_bytes(words.as_flattened())
}

/// For `#[serde(with)]`: a list, too.
pub(crate) fn deserialize<'de, T: Word + Deserialize<'de>, D: Deserializer<'de>>(input: D) -> Result<Vec<T>, D::Error> {
    input.deserialize_any(Numbers(PhantomData))
}

struct Numbers<T>(PhantomData<T>);

impl<'de, T: Word + Deserialize<'de>> Visitor<'de> for Numbers<T> {
    type Value = Vec<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("numbers of four bytes each, or a list of numbers")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<T>, E> {
        match bytes.as_chunks() {
            (words, []) => Ok(words.iter().map(|word| T::of(*word)).collect()),
            _ => Err(E::invalid_length(bytes.len(), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = list.next_element()? {
            numbers.push(number);
        }
        Ok(numbers)
    }
}
