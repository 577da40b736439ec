//! A schema, read from its root to its leaves.

use std::collections::HashSet;

use super::containers::{Member, any_value, array, map, object};
use super::keywords::{Keywords, Kind, Role, refuse, role, shortened};
use super::leaves::{integer, number, string};
use super::merge::{Members, merged};
use super::overlap::overlap;
use crate::error::ConstraintError;
use crate::json::{Json, quoted};
use crate::language::Language;

/// Longest schema, in bytes. Chosen by us: those of large tool sets are below 100 KB.
const MAX_SCHEMA_BYTES: usize = 1 << 20;
/// Most schemas, members and listed values, those behind a reference counted each time. Chosen by us: it bounds the time to about 0.1 s.
const MAX_NODES: usize = 20_000;
/// Deepest nesting of schemas, references followed. Chosen by us: reading is recursive.
const MAX_NESTING: usize = 64;
/// How deep arrays and objects may be nested where the schema does not describe them, counted from the root; a value that is left
/// open further down may still hold one. Chosen by us: each level doubles the states, which are about 1,300 at four.
pub(crate) const DEPTH: u32 = 4;
/// Largest `minItems`, `maxItems`, `minProperties`, `maxProperties`. Chosen by us.
const MAX_ITEMS: u32 = 4096;

/// The JSON that this schema, itself JSON, describes.
pub(crate) fn language_of_schema(text: &str) -> Result<Language, ConstraintError> {
    if text.len() > MAX_SCHEMA_BYTES {
        let n_bytes = text.len();
        return Err(ConstraintError::new(format!(
            "the schema has {n_bytes} bytes, at most {MAX_SCHEMA_BYTES} are allowed"
        )));
    }
    let root: Json = serde_json::from_str(text)
        .map_err(|error| ConstraintError::new(format!("the schema is not JSON that can be read: {error}")))?;
    let mut reader = Reader { root: &root, path: "$".to_owned(), nesting: 0, references: Vec::new(), n_nodes: 0 };
    reader.schema(&root, 0)
}

struct Reader<'a> {
    root: &'a Json,
    /// Where the schema in hand is, as in `$.properties.name`.
    path: String,
    nesting: usize,
    /// The references that were followed to get here.
    references: Vec<String>,
    n_nodes: usize,
}

impl<'a> Reader<'a> {
    /// The language of a schema inside `n_around` arrays and objects.
    fn schema(&mut self, schema: &Json, n_around: u32) -> Result<Language, ConstraintError> {
        self.charge(1)?;
        let members = match schema {
            Json::Bool(true) => return self.open(n_around),
            Json::Bool(false) => return Ok(Language::Nothing),
            Json::Object(members) => members,
            other => {
                let value = shortened(&other.line());
                return Err(refuse(&self.path, format!("a schema is an object, true or false, not {value}")));
            }
        };
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(refuse(&self.path, format!("more than {MAX_NESTING} schemas are nested")));
        }
        let n_references = self.references.len();
        let flat = self.flat(members)?;
        let language = self.flat_schema(&flat, n_around)?;
        self.references.truncate(n_references);
        self.nesting -= 1;
        Ok(language)
    }

    /// As [`Self::schema`], for the schema behind `step`.
    fn inner(&mut self, step: &str, schema: &Json, n_around: u32) -> Result<Language, ConstraintError> {
        let length = self.path.len();
        self.path.push_str(step);
        let language = self.schema(schema, n_around)?;
        self.path.truncate(length);
        Ok(language)
    }

    fn charge(&mut self, n_nodes: usize) -> Result<(), ConstraintError> {
        self.n_nodes += n_nodes;
        match self.n_nodes <= MAX_NODES {
            true => Ok(()),
            false => Err(refuse(
                &self.path,
                format!("the schema has more than {MAX_NODES} schemas, members and values, references followed"),
            )),
        }
    }

    /// Any value.
    fn open(&mut self, n_around: u32) -> Result<Language, ConstraintError> {
        self.charge(100)?;
        Ok(any_value(DEPTH.saturating_sub(n_around).max(1)))
    }

    /// The members of a schema with those that `$ref` and `allOf` add.
    fn flat(&mut self, members: &[(String, Json)]) -> Result<Members, ConstraintError> {
        for (keyword, _) in members {
            if role(keyword).is_none() {
                return Err(refuse(&self.path, format!("the keyword \"{}\" is not supported", shortened(keyword))));
            }
        }
        if self.nesting > 1 && members.iter().any(|(keyword, _)| keyword == "$id") {
            return Err(refuse(&self.path, "\"$id\" is supported at the root only: it changes what a $ref names"));
        }
        let own = |keyword: &str| !matches!(keyword, "$ref" | "allOf") && is_read(keyword);
        let mut all: Members = members.iter().filter(|(keyword, _)| own(keyword)).cloned().collect();
        let (path, before) = (self.path.clone(), self.references.clone());
        let keywords = Keywords { members, path: &path };
        let mut followed = Vec::new();
        if let Some(reference) = keywords.text("$ref")? {
            let target = self.resolve(reference)?;
            self.references.push(reference.to_owned());
            self.add(&mut all, target, "")?;
            followed.append(&mut self.references.split_off(before.len()));
        }
        for (part_idx, part) in keywords.array("allOf")?.unwrap_or_default().iter().enumerate() {
            self.add(&mut all, part, &format!(".allOf[{part_idx}]"))?;
            followed.append(&mut self.references.split_off(before.len()));
        }
        self.references.append(&mut followed);
        Ok(all)
    }

    /// Adds what a schema demands to `all`.
    fn add(&mut self, all: &mut Members, part: &Json, step: &str) -> Result<(), ConstraintError> {
        self.charge(1)?;
        let length = self.path.len();
        self.path.push_str(step);
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(refuse(&self.path, format!("more than {MAX_NESTING} schemas are nested")));
        }
        let part = match part {
            Json::Object(members) => self.flat(members)?,
            Json::Bool(true) => Vec::new(),
            Json::Bool(false) => vec![("enum".to_owned(), Json::Array(Vec::new()))],
            other => {
                let value = shortened(&other.line());
                return Err(refuse(&self.path, format!("a schema is an object, true or false, not {value}")));
            }
        };
        // Both are copied.
        let n_copied = part.iter().chain(all.iter()).map(|(_, value)| value.n_nodes()).sum::<usize>();
        self.charge(n_copied / 8)?;
        let both = merged(all, &part).map_err(|keyword| {
            refuse(&self.path, format!("two values of \"{keyword}\" at once (by $ref or allOf) are not supported"))
        })?;
        *all = both;
        self.nesting -= 1;
        self.path.truncate(length);
        Ok(())
    }

    /// The schema that a reference names.
    fn resolve(&self, reference: &str) -> Result<&'a Json, ConstraintError> {
        let refuse = |what: &str| Err(refuse(&self.path, format!("the $ref \"{}\" {what}", shortened(reference))));
        if reference == "#" || self.references.iter().any(|followed| followed == reference) {
            return refuse("is recursive, which is not supported");
        }
        if !reference.starts_with("#/$defs/") && !reference.starts_with("#/definitions/") {
            return refuse("is not supported: only #/$defs/... and #/definitions/... are");
        }
        let mut target = self.root;
        for name in reference.split('/').skip(1) {
            let name = name.replace("~1", "/").replace("~0", "~");
            match target.get(&name) {
                Some(inner) => target = inner,
                None => return refuse("names nothing"),
            }
        }
        Ok(target)
    }

    /// The language of a schema without `$ref` and `allOf`.
    fn flat_schema(&mut self, members: &[(String, Json)], n_around: u32) -> Result<Language, ConstraintError> {
        let path = self.path.clone();
        let keywords = Keywords { members, path: &path };
        let Some(either) = keywords.first_of(&["anyOf", "oneOf"]) else { return self.plain(keywords, n_around) };
        if either == "anyOf" && keywords.get("oneOf").is_some() {
            return Err(keywords.refuse("anyOf beside oneOf is not supported"));
        }
        let choices = keywords.array(either)?.unwrap_or_default();
        let base: Members = members.iter().filter(|(keyword, _)| keyword != either).cloned().collect();
        let mut parts = Vec::new();
        let mut flats = Vec::new();
        for (choice_idx, choice) in choices.iter().enumerate() {
            let length = self.path.len();
            self.path.push_str(&format!(".{either}[{choice_idx}]"));
            let n_references = self.references.len();
            let mut all = base.clone();
            self.charge(base.len())?;
            self.add(&mut all, choice, "")?;
            self.nesting += 1;
            parts.push(self.flat_schema(&all, n_around)?);
            self.nesting -= 1;
            flats.push(all);
            self.references.truncate(n_references);
            self.path.truncate(length);
        }
        if either == "oneOf"
            && let Some((first, second)) = overlap(&flats)
        {
            return Err(keywords.refuse(format!(
                "oneOf[{first}] and oneOf[{second}] may both hold, which is not supported: give them different types, or different \
                 const values of a required property, or write anyOf"
            )));
        }
        Ok(Language::either(parts))
    }

    /// The language of a schema of which no part is another schema for the same value.
    fn plain(&mut self, keywords: Keywords<'_>, n_around: u32) -> Result<Language, ConstraintError> {
        if let Some(listed) = keywords.first_of(&["enum", "const"]) {
            return self.listed(keywords, listed);
        }
        if !keywords.members.iter().any(|(keyword, _)| is_read(keyword)) {
            return self.open(n_around);
        }
        let mut parts = Vec::new();
        for kind in keywords.kinds()? {
            parts.push(match kind {
                Kind::Null => Language::text("null"),
                Kind::Boolean => Language::either(vec![Language::text("true"), Language::text("false")]),
                Kind::Integer => integer(keywords)?,
                Kind::Number => number(keywords)?,
                Kind::Text => self.string(keywords)?,
                Kind::Array => self.array(keywords, n_around)?,
                Kind::Object => self.object(keywords, n_around)?,
            });
        }
        Ok(Language::either(parts))
    }

    fn string(&mut self, keywords: Keywords<'_>) -> Result<Language, ConstraintError> {
        let pattern = keywords.text("pattern")?.map_or(0, str::len);
        self.charge(pattern / 8)?;
        string(keywords)
    }

    /// The values of `enum` and `const` that have one of the types.
    fn listed(&mut self, keywords: Keywords<'_>, listed: &str) -> Result<Language, ConstraintError> {
        let other = keywords
            .members
            .iter()
            .find(|(keyword, _)| !matches!(keyword.as_str(), "enum" | "const" | "type") && is_read(keyword));
        if let Some((other, _)) = other {
            return Err(keywords.refuse(format!("{listed} beside \"{other}\" is not supported")));
        }
        let values = match (keywords.array("enum")?, keywords.get("const")) {
            (Some(values), None) => values.to_vec(),
            (Some(values), Some(value)) => values.iter().filter(|other| other.equals(value)).cloned().collect(),
            (None, value) => value.into_iter().cloned().collect(),
        };
        self.charge(values.len())?;
        let kinds = match keywords.get("type") {
            Some(_) => keywords.kinds()?,
            None => Kind::ALL.to_vec(),
        };
        let is_of_kind = |value: &Json| kinds.iter().any(|kind| kind.holds(value));
        let values = values.iter().filter(|value| is_of_kind(value));
        Ok(Language::either(values.map(|value| Language::text(&value.line())).collect()))
    }

    fn array(&mut self, keywords: Keywords<'_>, n_around: u32) -> Result<Language, ConstraintError> {
        let least = keywords.count("minItems", MAX_ITEMS)?.unwrap_or(0);
        let most = keywords.count("maxItems", MAX_ITEMS)?;
        let mut prefix = Vec::new();
        for (value_idx, value) in keywords.array("prefixItems")?.unwrap_or_default().iter().enumerate() {
            prefix.push(self.inner(&format!(".prefixItems[{value_idx}]"), value, n_around + 1)?);
        }
        let rest = match keywords.get("items") {
            Some(Json::Array(_)) => return Err(keywords.refuse("items is an array: write prefixItems")),
            Some(items) => self.inner(".items", items, n_around + 1)?,
            // As with members, the values that are declared are enough.
            None if !prefix.is_empty() && least as usize <= prefix.len() => Language::Nothing,
            None => self.open(n_around + 1)?,
        };
        Ok(array(prefix, rest, least, most))
    }

    fn object(&mut self, keywords: Keywords<'_>, n_around: u32) -> Result<Language, ConstraintError> {
        let properties = keywords.object("properties")?;
        let mut required: Vec<&str> = Vec::new();
        for name in keywords.array("required")?.unwrap_or_default() {
            match name {
                Json::Text(name) => required.push(name),
                other => {
                    return Err(keywords.refuse(format!("required has {}, not a string", shortened(&other.line()))));
                }
            }
        }
        let least = keywords.count("minProperties", MAX_ITEMS)?.unwrap_or(0);
        let most = keywords.count("maxProperties", MAX_ITEMS)?;
        let additional = keywords.get("additionalProperties");
        if properties.is_none() && required.is_empty() {
            if least > 1 {
                return Err(
                    keywords.refuse(format!("minProperties is {least}, at most 1 is supported without properties"))
                );
            }
            return Ok(match additional {
                Some(schema) => map(self.inner(".additionalProperties", schema, n_around + 1)?, least, most),
                None => map(self.open(n_around + 1)?, least, most),
            });
        }
        let is_required: HashSet<&str> = required.iter().copied().collect();
        let mut members = Vec::new();
        for (key, schema) in properties.unwrap_or_default() {
            self.charge(1)?;
            let value = self.inner(&step(key), schema, n_around + 1)?;
            members.push(Member { key: key.clone(), value, is_required: is_required.contains(key.as_str()) });
        }
        let declared: HashSet<&str> = properties.unwrap_or_default().iter().map(|(key, _)| key.as_str()).collect();
        let mut added = HashSet::new();
        for key in required.into_iter().filter(|key| !declared.contains(key)) {
            if added.insert(key) {
                let schema = additional.unwrap_or(&Json::Bool(true));
                let value = self.inner(".additionalProperties", schema, n_around + 1)?;
                members.push(Member { key: key.to_owned(), value, is_required: true });
            }
        }
        members.retain(|member| member.is_required || member.value != Language::Nothing);
        let n_required = members.iter().filter(|member| member.is_required).count();
        if (least as usize) > n_required || most.is_some_and(|most| (most as usize) < members.len()) {
            return Err(keywords.refuse(
                "minProperties and maxProperties beside properties are supported only where every choice of members satisfies them",
            ));
        }
        Ok(object(members))
    }
}

/// Whether a keyword does more than describe.
fn is_read(keyword: &str) -> bool {
    !matches!(role(keyword), Some(Role::Annotation) | None)
}

/// The step of a path to a property.
fn step(key: &str) -> String {
    let is_word = key.chars().all(|character| character.is_alphanumeric() || character == '_') && !key.is_empty();
    match is_word {
        true => format!(".properties.{}", shortened(key)),
        false => format!(".properties[{}]", quoted(&shortened(key))),
    }
}
