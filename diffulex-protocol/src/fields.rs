//! Fields of events, one by one, for those who write them in another form than the wire's.

use serde::Serialize;

/// Takes the fields of an event one by one, to write them in another form.
pub trait FieldVisitor {
    /// A field and its name on the wire.
    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T);
}

/// True for a value that an optional field leaves out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares events and their `visit_fields`. `field: Type [optional]` may be missing, and is not shown to visitors where it is its type's
/// default.
macro_rules! events {
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
                #[serde(default)])?
                pub $field: $type,
            )*
        }

        impl $name {
            /// Shows every field that a message has to `visitor`, by its name on the wire, in order.
            pub fn visit_fields(&self, visitor: &mut impl $crate::FieldVisitor) {
                $($crate::fields::visit_field!(self, visitor, $field $(, $optional)?);)*
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
        if !$crate::fields::is_default(&$self.$name) {
            $visitor.field(stringify!($name), &$self.$name)
        }
    };
}

pub(crate) use {events, visit_field};
