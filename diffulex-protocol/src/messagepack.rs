//! MessagePack read straight into structs, where it is laid out as our own worker writes it.
//!
//! serde reads a map tagged by a key inside it by keeping a copy of all of it, because the tag may come last; of a
//! snapshot that is some hundred values. [`hot_events`] declares the events of which there are many: their fields are
//! read key by key in the order of their declaration. An event of any other kind or layout (another version's, Diffulex's
//! own) is left to serde, so that what is read here, serde reads alike. Never here: errors, limits, the events' fields.

use compact_str::CompactString;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// Deepest nesting of a message. Chosen by us: our own messages nest 5 deep, rmp-serde's default of 1024 invites stack
/// abuse.
pub(crate) const MAX_DEPTH: usize = 32;

/// Deepest nesting of an event that is left to serde: two less than a batch's, which lies around it.
const MAX_EVENT_DEPTH: usize = MAX_DEPTH - 2;

/// Items a list has room for at once, whatever its length says. Chosen by us: several windows.
const MAX_ROOM: usize = 1024;

/// Bytes that are still to be read.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// The value that `bytes` hold; `None` where they hold something else, or more.
    pub(crate) fn read_all<T: Read<'a>>(bytes: &'a [u8]) -> Option<T> {
        let mut cursor = Self { rest: bytes };
        let value = T::read(&mut cursor)?;
        cursor.rest.is_empty().then_some(value)
    }

    /// Runs `read`; on `None` the cursor stays where it was.
    pub(crate) fn attempt<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let mut ahead = *self;
        let value = read(&mut ahead)?;
        *self = ahead;
        Some(value)
    }

    /// The event that follows, read by serde.
    pub(crate) fn read_plainly<T: for<'de> Deserialize<'de>>(&mut self) -> Option<T> {
        let mut reader = rmp_serde::Deserializer::new(&mut self.rest);
        reader.set_max_depth(MAX_EVENT_DEPTH);
        T::deserialize(&mut reader).ok()
    }
}

/// A value as it stands in MessagePack, in the forms that our own side writes.
pub(crate) trait Read<'a>: Sized {
    /// `None` where something else stands there.
    fn read(cursor: &mut Cursor<'a>) -> Option<Self>;
}

/// A map whose keys are read in order.
pub(crate) struct Fields<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    n_left: usize,
}

impl<'c, 'a> Fields<'c, 'a> {
    pub(crate) fn open(cursor: &'c mut Cursor<'a>) -> Option<Self> {
        let n_left = cursor.length(0x80, None, 0xde)?;
        Some(Self { cursor, n_left })
    }

    /// The value of the next key, which is to be `name`.
    pub(crate) fn field<T: Read<'a>>(&mut self, name: &str) -> Option<T> {
        let mut ahead = *self.cursor;
        if self.n_left == 0 || ahead.text_bytes()? != name.as_bytes() {
            return None;
        }
        *self.cursor = ahead;
        self.n_left -= 1;
        T::read(self.cursor)
    }

    /// The value of the next key if that is `name`, otherwise the default: a key that is left out where it says nothing.
    pub(crate) fn field_or_default<T: Read<'a> + Default>(&mut self, name: &str) -> Option<T> {
        let is_there = self.n_left > 0 && Cursor { ..*self.cursor }.text_bytes()? == name.as_bytes();
        if is_there { self.field(name) } else { Some(T::default()) }
    }

    pub(crate) fn close(self) -> Option<()> {
        (self.n_left == 0).then_some(())
    }
}

impl<'a> Cursor<'a> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    /// The length of a list, map (`fixed` + at most 15) or text (+ at most 31): in its first byte, or in the one byte
    /// after `in_u8`, the two after `in_u16`, the four after the byte that follows that.
    fn length(&mut self, fixed: u8, in_u8: Option<u8>, in_u16: u8) -> Option<usize> {
        let n_fixed = if in_u8.is_some() { 32 } else { 16 };
        let first = self.byte()?;
        if (fixed..fixed + n_fixed).contains(&first) {
            Some(usize::from(first - fixed))
        } else if Some(first) == in_u8 {
            self.byte().map(usize::from)
        } else if first == in_u16 {
            self.bytes().map(|bytes| usize::from(u16::from_be_bytes(bytes)))
        } else if first == in_u16 + 1 {
            self.bytes().map(|bytes| u32::from_be_bytes(bytes) as usize)
        } else {
            None
        }
    }

    fn text_bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length(0xa0, Some(0xd9), 0xda)?;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(text)
    }
}

/// The bytes of a value, whatever it is.
pub(crate) struct Raw<'a>(pub(crate) &'a [u8]);

impl<'a> Read<'a> for Raw<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        let bytes = cursor.rest;
        cursor.read_plainly::<IgnoredAny>()?;
        bytes.get(..bytes.len() - cursor.rest.len()).map(Self)
    }
}

impl<'a> Read<'a> for &'a str {
    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        std::str::from_utf8(cursor.text_bytes()?).ok()
    }
}

impl Read<'_> for String {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        <&str>::read(cursor).map(Self::from)
    }
}

impl Read<'_> for CompactString {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        <&str>::read(cursor).map(Self::from)
    }
}

impl Read<'_> for u64 {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        match cursor.byte()? {
            small @ 0..0x80 => Some(small.into()),
            0xcc => cursor.byte().map(Self::from),
            0xcd => cursor.bytes().map(|bytes| u16::from_be_bytes(bytes).into()),
            0xce => cursor.bytes().map(|bytes| u32::from_be_bytes(bytes).into()),
            0xcf => cursor.bytes().map(Self::from_be_bytes),
            _ => None,
        }
    }
}

impl Read<'_> for u32 {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        u64::read(cursor)?.try_into().ok()
    }
}

impl Read<'_> for f32 {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        (cursor.byte()? == 0xca).then_some(())?;
        cursor.bytes().map(Self::from_be_bytes)
    }
}

impl Read<'_> for f64 {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        (cursor.byte()? == 0xcb).then_some(())?;
        cursor.bytes().map(Self::from_be_bytes)
    }
}

impl Read<'_> for bool {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        match cursor.byte()? {
            0xc2 => Some(false),
            0xc3 => Some(true),
            _ => None,
        }
    }
}

impl<'a, T: Read<'a>> Read<'a> for Option<T> {
    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        match cursor.rest.split_first()? {
            (0xc0, rest) => {
                cursor.rest = rest;
                Some(None)
            }
            _ => T::read(cursor).map(Some),
        }
    }
}

impl<'a, T: Read<'a>> Read<'a> for Vec<T> {
    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        let length = cursor.length(0x90, None, 0xdc)?;
        let mut items = Self::with_capacity(length.min(MAX_ROOM));
        for _ in 0..length {
            items.push(T::read(cursor)?);
        }
        Some(items)
    }
}

/// A pair is a list of two.
impl<'a, A: Read<'a>, B: Read<'a>> Read<'a> for (A, B) {
    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        (cursor.length(0x90, None, 0xdc)? == 2).then_some(())?;
        Some((A::read(cursor)?, B::read(cursor)?))
    }
}

/// True for a value that an optional field leaves out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads a field; one that is `[optional]` may be absent, and is its default then.
macro_rules! read_field {
    ($fields:ident, $name:ident) => {
        $fields.field(stringify!($name))?
    };
    ($fields:ident, $name:ident, $optional:ident) => {
        $fields.field_or_default(stringify!($name))?
    };
}

/// Takes the fields of an event one by one, to write them in another form.
pub trait FieldVisitor {
    /// A field and its name on the wire.
    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T);
}

/// Declares structs whose maps are read straight from MessagePack, and whose fields can be visited to write them in
/// another form. `field: Type [optional]` is left out of both where it is its type's default.
macro_rules! hot_events {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[$field_meta:meta])*
                pub $field:ident: $type:ty $([$optional:ident])?,
            )*
        }
    )*) => {$(
        $(#[$meta])*
        pub struct $name {
            $(
                $(#[$field_meta])*
                $(#[doc = concat!("(", stringify!($optional), ")")]
                #[serde(default, skip_serializing_if = "crate::messagepack::is_default")])?
                pub $field: $type,
            )*
        }

        impl $name {
            /// Reads the fields that are left of a map.
            pub(crate) fn read_fields(fields: &mut $crate::messagepack::Fields<'_, '_>) -> Option<Self> {
                Some(Self { $($field: $crate::messagepack::read_field!(fields, $field $(, $optional)?),)* })
            }

            /// Shows every field that a message has to `visitor`, by its name on the wire, in order.
            pub fn visit_fields(&self, visitor: &mut impl $crate::messagepack::FieldVisitor) {
                $($crate::messagepack::visit_field!(self, visitor, $field $(, $optional)?);)*
            }
        }
    )*};
}

/// Shows a field; not an `[optional]` one that is its default.
macro_rules! visit_field {
    ($self:ident, $visitor:ident, $name:ident) => {
        $visitor.field(stringify!($name), &$self.$name)
    };
    ($self:ident, $visitor:ident, $name:ident, $optional:ident) => {
        if !$crate::messagepack::is_default(&$self.$name) {
            $visitor.field(stringify!($name), &$self.$name)
        }
    };
}

pub(crate) use {hot_events, read_field, visit_field};

#[cfg(test)]
mod tests {
    use super::*;

    /// The value as our own side writes it.
    fn written(value: &impl Serialize) -> Vec<u8> {
        rmp_serde::to_vec_named(value).expect("encodes")
    }

    #[test]
    fn numbers_are_read_at_every_width() {
        let edges = [0, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_0000_0000, u64::MAX];
        for number in edges {
            assert_eq!(Cursor::read_all(&written(&number)), Some(number));
            assert_eq!(Cursor::read_all::<u32>(&written(&number)), u32::try_from(number).ok());
        }
    }

    #[test]
    fn texts_and_lists_are_read_at_every_length() {
        for length in [0, 1, 15, 16, 31, 32, 255, 256, 0xffff, 0x1_0000] {
            let text = "x".repeat(length);
            assert_eq!(Cursor::read_all::<&str>(&written(&text)), Some(text.as_str()));
            assert_eq!(Cursor::read_all::<CompactString>(&written(&text)), Some(text.as_str().into()));
            assert_eq!(Cursor::read_all(&written(&text)), Some(text));
            let list = vec![7u32; length];
            assert_eq!(Cursor::read_all(&written(&list)), Some(list));
        }
    }

    #[test]
    fn an_attempt_that_fails_leaves_the_cursor_where_it_was() {
        let bytes = written(&5u64);
        let mut cursor = Cursor { rest: &bytes };
        assert_eq!(cursor.attempt(|ahead| ahead.byte().and_then(|_| ahead.byte())), None);
        assert_eq!(cursor.attempt(u64::read), Some(5));
        assert!(cursor.rest.is_empty());
    }

    #[test]
    fn a_map_is_closed_when_all_its_keys_are_read() {
        let bytes = written(&std::collections::BTreeMap::from([("a", 1u64), ("b", 2)]));
        let mut cursor = Cursor { rest: &bytes };
        let mut fields = Fields::open(&mut cursor).expect("a map");
        assert_eq!(fields.field("b"), None::<u64>, "a comes first");
        assert_eq!(fields.field("a"), Some(1u64));
        assert_eq!(fields.field_or_default("c"), Some(0u64));
        assert_eq!(fields.close(), None);
        let mut cursor = Cursor { rest: &bytes };
        let mut fields = Fields::open(&mut cursor).expect("a map");
        assert_eq!((fields.field("a"), fields.field("b")), (Some(1u64), Some(2u64)));
        assert_eq!(fields.close(), Some(()));
    }
}
