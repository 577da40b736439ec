//! The language that an answer must belong to.

use serde::{Deserialize, Serialize};

use crate::fields::is_default;

/// What an answer may be, as the client wrote it. The worker compiles it and keeps to it exactly: the text of the answer, without its
/// end token, belongs to the language.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    /// JSON that this schema, itself JSON, describes.
    JsonSchema(String),
    /// A JSON object with any keys.
    JsonObject,
    /// Text that this regular expression matches from its first byte to its last.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of this grammar, in Lark's form or GBNF.
    Grammar(String),
    /// Text with structured parts.
    Tags(Tags),
    /// Free text, then text of another constraint.
    After(Box<After>),
}

/// `begin`, any text without `end`, `end`, at most two line ends, and then text of another constraint: an answer behind thoughts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct After {
    /// Text before the free text.
    #[serde(default, skip_serializing_if = "is_default")]
    pub begin: String,
    /// Text that ends it.
    pub end: String,
    /// What follows; not another `After`.
    pub then: Constraint,
}

/// Text in which each trigger is followed by a schema's JSON: calls of tools.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tags {
    /// The structured parts.
    pub tags: Vec<Tag>,
    /// Whether text may stand before and after the parts. No `begin` of a tag occurs in it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allows_text: bool,
    /// Fewest parts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub least: u32,
    /// Whether more than one part may follow.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repeats: bool,
    /// What stands between two parts, where text is not allowed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub separator: String,
}

/// One structured part: `begin`, JSON of the schema, `end`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tag {
    /// Text before the JSON.
    pub begin: String,
    /// The schema, as JSON.
    pub schema: String,
    /// Text after the JSON.
    pub end: String,
}
