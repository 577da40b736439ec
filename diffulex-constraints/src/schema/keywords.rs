//! Which keywords of a schema are read, which are annotations, and which are refused.

use std::fmt::Display;

use crate::error::ConstraintError;
use crate::json::Json;

/// Keywords that only describe (JSON Schema 2020-12 and OpenAPI 3.1), or hold definitions.
const ANNOTATIONS: &[&str] = &[
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "externalDocs",
    "readOnly",
    "title",
    "writeOnly",
    "xml",
];

/// Keywords that are read, and the type that each is about; none: any.
const READ: &[(&str, Option<Kind>)] = &[
    ("$ref", None),
    ("additionalProperties", Some(Kind::Object)),
    ("allOf", None),
    ("anyOf", None),
    ("const", None),
    ("enum", None),
    ("exclusiveMaximum", Some(Kind::Number)),
    ("exclusiveMinimum", Some(Kind::Number)),
    ("format", Some(Kind::Text)),
    ("items", Some(Kind::Array)),
    ("maxItems", Some(Kind::Array)),
    ("maxLength", Some(Kind::Text)),
    ("maxProperties", Some(Kind::Object)),
    ("maximum", Some(Kind::Number)),
    ("minItems", Some(Kind::Array)),
    ("minLength", Some(Kind::Text)),
    ("minProperties", Some(Kind::Object)),
    ("minimum", Some(Kind::Number)),
    ("oneOf", None),
    ("pattern", Some(Kind::Text)),
    ("prefixItems", Some(Kind::Array)),
    ("properties", Some(Kind::Object)),
    ("required", Some(Kind::Object)),
    ("type", None),
];

/// A type of JSON values; `integer` is a part of `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Null,
    Boolean,
    Integer,
    Number,
    Text,
    Array,
    Object,
}

impl Kind {
    /// All types, `integer` left out.
    pub(super) const ALL: [Self; 6] = [Self::Null, Self::Boolean, Self::Number, Self::Text, Self::Array, Self::Object];

    /// The type of this name.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::Null,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "string" => Self::Text,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }

    /// Whether a value is of this type.
    pub(super) fn holds(self, value: &Json) -> bool {
        match (self, value) {
            (Self::Null, Json::Null)
            | (Self::Boolean, Json::Bool(_))
            | (Self::Number, Json::Number(_))
            | (Self::Text, Json::Text(_))
            | (Self::Array, Json::Array(_))
            | (Self::Object, Json::Object(_)) => true,
            (Self::Integer, Json::Number(number)) => number.as_f64().is_some_and(|number| number.fract() == 0.0),
            _ => false,
        }
    }
}

/// What a keyword is for.
pub(super) enum Role {
    /// It only describes.
    Annotation,
    /// It is read, whatever the type.
    Any,
    /// It is read, and is about this type.
    About(Kind),
}

/// The role of a keyword; `None`: it is not supported.
pub(super) fn role(keyword: &str) -> Option<Role> {
    if ANNOTATIONS.contains(&keyword) {
        return Some(Role::Annotation);
    }
    let (_, kind) = READ.iter().find(|(name, _)| *name == keyword)?;
    Some(kind.map_or(Role::Any, Role::About))
}

/// The keywords of one schema, and where it is.
#[derive(Clone, Copy)]
pub(super) struct Keywords<'a> {
    pub(super) members: &'a [(String, Json)],
    /// As in `$.properties.name`.
    pub(super) path: &'a str,
}

impl<'a> Keywords<'a> {
    /// The value of a keyword.
    pub(super) fn get(&self, keyword: &str) -> Option<&'a Json> {
        self.members.iter().find(|(name, _)| name == keyword).map(|(_, value)| value)
    }

    /// The first of these keywords that is there.
    pub(super) fn first_of(&self, keywords: &[&'static str]) -> Option<&'static str> {
        keywords.iter().copied().find(|keyword| self.get(keyword).is_some())
    }

    /// A refusal that names this schema.
    pub(super) fn refuse(&self, what: impl Display) -> ConstraintError {
        refuse(self.path, what)
    }

    /// A keyword that counts something, up to `limit`.
    pub(super) fn count(&self, keyword: &str, limit: u32) -> Result<Option<u32>, ConstraintError> {
        let Some(value) = self.get(keyword) else { return Ok(None) };
        let number = match value {
            Json::Number(number) => number.as_f64().filter(|number| *number >= 0.0 && number.fract() == 0.0),
            _ => None,
        };
        let number =
            number.ok_or_else(|| self.refuse(format!("{keyword} is {}, not a count", shortened(&value.line()))))?;
        if number > f64::from(limit) {
            return Err(self.refuse(format!("{keyword} is {number}, at most {limit} is allowed")));
        }
        Ok(Some(number as u32))
    }

    /// A keyword that holds text.
    pub(super) fn text(&self, keyword: &str) -> Result<Option<&'a str>, ConstraintError> {
        match self.get(keyword) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.refuse(format!("{keyword} is {}, not a string", shortened(&other.line())))),
        }
    }

    /// A keyword that holds an array.
    pub(super) fn array(&self, keyword: &str) -> Result<Option<&'a [Json]>, ConstraintError> {
        match self.get(keyword) {
            None => Ok(None),
            Some(Json::Array(values)) => Ok(Some(values)),
            Some(other) => Err(self.refuse(format!("{keyword} is {}, not an array", shortened(&other.line())))),
        }
    }

    /// A keyword that holds an object.
    pub(super) fn object(&self, keyword: &str) -> Result<Option<&'a [(String, Json)]>, ConstraintError> {
        match self.get(keyword) {
            None => Ok(None),
            Some(Json::Object(members)) => Ok(Some(members)),
            Some(other) => Err(self.refuse(format!("{keyword} is {}, not an object", shortened(&other.line())))),
        }
    }

    /// The types that values may have: those of `type`, else those that the other keywords are about, else all.
    pub(super) fn kinds(&self) -> Result<Vec<Kind>, ConstraintError> {
        let names = match self.get("type") {
            None => return Ok(self.implied_kinds()),
            Some(Json::Array(names)) => names.as_slice(),
            Some(name) => std::slice::from_ref(name),
        };
        let kind = |name: &Json| match name {
            Json::Text(name) => Kind::of(name),
            _ => None,
        };
        let unknown = |name: &Json| self.refuse(format!("type is {}, not a type of JSON", shortened(&name.line())));
        let mut kinds: Vec<Kind> =
            names.iter().map(|name| kind(name).ok_or_else(|| unknown(name))).collect::<Result<_, _>>()?;
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.contains(&Kind::Number) {
            kinds.retain(|kind| *kind != Kind::Integer);
        }
        Ok(kinds)
    }

    fn implied_kinds(&self) -> Vec<Kind> {
        let about = |keyword: &str| match role(keyword) {
            Some(Role::About(kind)) => Some(kind),
            _ => None,
        };
        let mut kinds: Vec<Kind> = self.members.iter().filter_map(|(keyword, _)| about(keyword)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.is_empty() { Kind::ALL.to_vec() } else { kinds }
    }
}

/// A refusal that names the schema at `path`.
pub(super) fn refuse(path: &str, what: impl Display) -> ConstraintError {
    ConstraintError::new(format!("{path}: {what}"))
}

/// A value in a message: not more than 60 characters of it.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
