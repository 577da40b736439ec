//! JSON Schema as languages of compact JSON.
//!
//! Everything in the language satisfies the schema. Members of objects are those that the schema declares, in its order, and text is
//! escaped no more than it must be, but for strings without a pattern, format or length, which may hold any escape.

mod containers;
mod decimals;
mod formats;
mod keywords;
mod leaves;
mod lengths;
mod merge;
mod numbers;
mod overlap;
mod read;
mod strings;
#[cfg(test)]
mod tests;

pub(crate) use containers::any_object;
pub(crate) use read::{DEPTH, language_of_schema};
