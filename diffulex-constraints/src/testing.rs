//! Sources of schemas, languages and members, and a matcher by definition, for tests.

mod dice;
#[cfg(test)]
mod languages;
mod matcher;
mod members;
mod schemas;

pub use dice::Dice;
#[cfg(test)]
pub(crate) use languages::languages;
pub use matcher::contains;
pub use members::member;
pub use schemas::schema;
