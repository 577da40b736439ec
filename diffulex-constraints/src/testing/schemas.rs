//! Random schemas over every supported keyword.

use serde_json::{Map, Value, json};

use super::dice::Dice;

/// Names of the formats that are supported.
const FORMATS: [&str; 10] =
    ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"];

/// Patterns, each with a form that is found in a text of some length.
const PATTERNS: [&str; 12] = [
    "^[a-z]+$",
    "a|b$",
    r"^\d{3}-\w+$",
    r#"[\\"]"#,
    "^.*$",
    r"\s",
    "^(a|b)c?$",
    r"^\S+@\D$",
    "x",
    "(?i)^é{2,3}$",
    r"^[^\W_]{4}",
    "^$|^ +$",
];

/// Patterns beside which characters are counted.
const COUNTED_PATTERNS: [&str; 4] = ["^[a-z]+$", "^[a-z][0-9]*$", "^(ab)*$", r"^\W*é$"];

/// Keys, some of which must be escaped.
const KEYS: [&str; 6] = ["a", "b", "a\"b", "é", "", "name of \\ a\nmember"];

/// A random schema that some value satisfies, with at most `depth` levels of schemas inside it.
pub fn schema(dice: &mut Dice, depth: u32) -> Value {
    let folder = *dice.pick(&["$defs", "definitions"]);
    let mut source = Source { dice, folder, definitions: Map::new() };
    let mut root = source.object_of_keywords(depth);
    if !source.definitions.is_empty() {
        root.insert(folder.to_owned(), Value::Object(source.definitions));
    }
    if source.dice.chance(20) {
        root.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    }
    Value::Object(root)
}

struct Source<'a> {
    dice: &'a mut Dice,
    /// The keyword that holds the definitions.
    folder: &'static str,
    definitions: Map<String, Value>,
}

impl Source<'_> {
    /// A schema, which may be `true` or empty.
    fn schema(&mut self, depth: u32) -> Value {
        match self.dice.below(60) {
            0 => json!(true),
            1 => json!({}),
            _ => Value::Object(self.object_of_keywords(depth)),
        }
    }

    fn object_of_keywords(&mut self, depth: u32) -> Map<String, Value> {
        let schema = match self.dice.below(if depth == 0 { 12 } else { 26 }) {
            0 => json!({"type": self.dice.pick(&["null", "boolean", "integer", "number", "string"])}),
            1 | 2 => self.integer(),
            3 | 4 => self.number(),
            5 | 6 => self.counted_text(),
            7 => json!({"type": "string", "format": self.dice.pick(&FORMATS)}),
            8 => json!({"pattern": self.dice.pick(&PATTERNS)}),
            9 => self.counted_pattern(),
            10 => self.listed(),
            11 => {
                json!({"type": self.dice.pick(&[["integer", "null"], ["string", "boolean"]]), "minimum": -1, "maxLength": 2})
            }
            12 | 13 => self.array(depth),
            14 | 15 => self.prefixed(depth),
            16 => self.map(depth),
            17 => self.any_of(depth),
            18 => self.one_of(depth),
            19 => self.all_of(depth),
            20 => self.reference(depth),
            21 => json!({"type": self.dice.pick(&["array", "object"])}),
            _ => self.object(depth),
        };
        let Value::Object(mut schema) = schema else { return Map::new() };
        if self.dice.chance(10) {
            schema.insert("title".to_owned(), json!("a title"));
            schema.insert("examples".to_owned(), json!([1, {"not": {}}]));
        }
        schema
    }

    fn integer(&mut self) -> Value {
        let lower = self.dice.below(4000) as i64 - 2000;
        let upper = lower + self.dice.below(3000) as i64;
        let mut schema = json!({"type": "integer"});
        match self.dice.below(4) {
            0 => schema["minimum"] = json!(lower),
            1 => schema["minimum"] = json!(lower as f64 - 0.5),
            2 => schema["exclusiveMinimum"] = json!(lower - 1),
            _ => {}
        }
        match self.dice.below(4) {
            0 => schema["maximum"] = json!(upper),
            1 => schema["maximum"] = json!(upper as f64 + 0.25),
            2 => schema["exclusiveMaximum"] = json!(upper + 1),
            _ => {}
        }
        schema
    }

    fn number(&mut self) -> Value {
        let lower = (self.dice.below(4_000_000) as f64 - 2_000_000.0) / 10_f64.powi(self.dice.below(7) as i32);
        // Numbers with a bound have six digits behind the point: one of them lies between the bounds.
        let upper = lower + self.dice.below(3_000_000) as f64 / 10_f64.powi(self.dice.below(7) as i32) + 1e-5;
        let mut schema = json!({"type": "number"});
        if let Some(name) = [None, Some("minimum"), Some("exclusiveMinimum")][self.dice.below(3) as usize] {
            schema[name] = json!(lower);
        }
        if let Some(name) = [None, Some("maximum"), Some("exclusiveMaximum")][self.dice.below(3) as usize] {
            schema[name] = json!(upper);
        }
        schema
    }

    fn counted_text(&mut self) -> Value {
        let least = self.dice.below(5);
        let most = least + self.dice.below(20);
        match self.dice.below(3) {
            0 => json!({"type": "string", "minLength": least}),
            1 => json!({"maxLength": most}),
            _ => json!({"type": "string", "minLength": least, "maxLength": most}),
        }
    }

    fn counted_pattern(&mut self) -> Value {
        json!({"type": "string", "pattern": self.dice.pick(&COUNTED_PATTERNS), "minLength": 2, "maxLength": 2 + self.dice.below(5)})
    }

    fn listed(&mut self) -> Value {
        match self.dice.below(4) {
            0 => json!({"enum": ["a", 1, null, {"b": [1, 2.5]}, "\u{0}\"é"]}),
            1 => json!({"enum": ["a", 1, 2.5, false, []], "type": ["integer", "boolean"]}),
            2 => json!({"const": {"z": "\n", "a": []}}),
            _ => json!({"const": self.dice.below(1000)}),
        }
    }

    fn array(&mut self, depth: u32) -> Value {
        let least = self.dice.below(3);
        let most = least + self.dice.below(3);
        let items = self.schema(depth - 1);
        match self.dice.below(3) {
            0 => json!({"type": "array", "items": items}),
            1 => json!({"items": items, "minItems": least}),
            _ => json!({"type": "array", "items": items, "minItems": least, "maxItems": most}),
        }
    }

    fn prefixed(&mut self, depth: u32) -> Value {
        let prefix: Vec<Value> = (0..=self.dice.below(2)).map(|_| self.schema(depth - 1)).collect();
        match self.dice.below(3) {
            0 => {
                json!({"type": "array", "minItems": self.dice.below(1 + prefix.len() as u64), "prefixItems": prefix, "items": false})
            }
            1 => json!({"prefixItems": prefix, "maxItems": 3}),
            _ => json!({"prefixItems": prefix, "items": self.schema(depth - 1), "minItems": self.dice.below(4)}),
        }
    }

    /// An object of any keys.
    fn map(&mut self, depth: u32) -> Value {
        let values = self.schema(depth - 1);
        match self.dice.below(3) {
            0 => json!({"type": "object", "additionalProperties": values}),
            1 => json!({"additionalProperties": values, "minProperties": 1}),
            _ => json!({"additionalProperties": values, "maxProperties": self.dice.below(3)}),
        }
    }

    fn object(&mut self, depth: u32) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for key in KEYS {
            if self.dice.chance(50) {
                continue;
            }
            let is_required = self.dice.chance(40);
            let value = if !is_required && self.dice.chance(5) { json!(false) } else { self.schema(depth - 1) };
            if is_required {
                required.push(json!(key));
            }
            properties.insert(key.to_owned(), value);
        }
        let (n_required, n_properties) = (required.len(), properties.len());
        let mut schema = json!({"type": "object", "properties": properties});
        if n_required > 0 {
            schema["required"] = json!(required);
        }
        match self.dice.below(8) {
            0..4 => schema["additionalProperties"] = json!(false),
            4 => {
                schema["required"] = json!([&required[..], &[json!("undeclared")]].concat());
                schema["additionalProperties"] = self.schema(depth - 1);
            }
            5 => {
                schema["minProperties"] = json!(n_required);
                schema["maxProperties"] = json!(n_properties);
            }
            _ => {}
        }
        schema
    }

    fn any_of(&mut self, depth: u32) -> Value {
        if self.dice.chance(30) {
            let (a, b) = (self.schema(depth - 1), self.schema(depth - 1));
            return json!({
                "type": "object",
                "properties": {"a": a, "b": b},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            });
        }
        let parts: Vec<Value> = (0..=self.dice.below(2)).map(|_| self.schema(depth - 1)).collect();
        json!({ "anyOf": parts })
    }

    /// Schemas that exclude each other.
    fn one_of(&mut self, depth: u32) -> Value {
        let (a, b) = (self.schema(depth - 1), self.schema(depth - 1));
        match self.dice.below(3) {
            0 => json!({"oneOf": [self.integer(), {"type": "string"}, {"type": "array", "items": a}]}),
            1 => json!({"oneOf": [{"const": 1}, {"enum": [2, "1"]}]}),
            _ => {
                let part = |kind: &str, value: Value| json!({"type": "object", "properties": {"kind": {"const": kind}, "value": value}, "required": ["kind"]});
                json!({"oneOf": [part("first", a), part("second", b)]})
            }
        }
    }

    /// Schemas that hold at once.
    fn all_of(&mut self, depth: u32) -> Value {
        match self.dice.below(3) {
            0 => json!({"type": ["integer", "null"], "allOf": [{"minimum": 3}, {"type": "number", "maximum": 30}]}),
            1 => {
                let text = self.counted_text();
                json!({"type": "string", "allOf": [text, {"maxLength": 30}]})
            }
            _ => {
                let (a, b) = (self.schema(depth - 1), self.schema(depth - 1));
                json!({
                    "type": "object",
                    "allOf": [{"properties": {"a": a}, "required": ["a"]}, {"properties": {"b": b}}],
                })
            }
        }
    }

    /// A schema that is defined at the root.
    fn reference(&mut self, depth: u32) -> Value {
        let known: Vec<String> = self.definitions.keys().cloned().collect();
        let name = if !known.is_empty() && self.dice.chance(30) {
            self.dice.pick(&known).clone()
        } else {
            let schema = self.schema(depth - 1);
            let name = format!("a/b~{}", self.definitions.len());
            self.definitions.insert(name.clone(), schema);
            name
        };
        let name = name.replace('~', "~0").replace('/', "~1");
        json!({"$ref": format!("#/{}/{name}", self.folder)})
    }
}
