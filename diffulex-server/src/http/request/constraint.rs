//! Constraints of an answer, in the form of each interface and of other servers.
//!
//! In: the JSON of a field. Out: one [`GivenConstraint`], or an error that names the field. Never here: what a schema, an expression or a
//! grammar may hold, which its compiler decides.

use diffulex_protocol::{Constraint, SamplingParams};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::json;

use crate::http::access::refusals::start_of;
use crate::http::answer::error::ApiError;
use crate::ordered_json::Json;

/// OpenAI's field of chat and, as vLLM has it, of completions.
const RESPONSE_FORMAT: &str = "response_format";

/// vLLM's field, which holds one of several forms.
const STRUCTURED_OUTPUTS: &str = "structured_outputs";

/// Types of `response_format`: OpenAI's, TGI's (`json`, `regex`) and Fireworks' (`grammar`).
const CHAT_TYPES: &[&str] = &["text", "json_object", "json_schema", "json", "regex", "grammar"];

/// Types of the format of a response.
const RESPONSE_TYPES: &[&str] = &["text", "json_object", "json_schema"];

/// Types of the format of a message.
const MESSAGE_TYPES: &[&str] = &["json_schema"];

/// Types of TGI's `grammar`.
const TGI_TYPES: &[&str] = &["json", "regex", "json_schema"];

/// A constraint, and the field that the client wrote it in.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) struct GivenConstraint {
    /// By the client's name.
    pub(in crate::http) field: &'static str,
    /// As it goes to the engine.
    pub(in crate::http) constraint: Constraint,
}

impl GivenConstraint {
    fn new(field: &'static str, constraint: Constraint) -> Self {
        Self { field, constraint }
    }

    /// The format of a response, OpenAI's `text.format`.
    pub(in crate::http) fn of_response(format: &Json) -> Result<Option<Self>, ApiError> {
        of_format("text.format", format, RESPONSE_TYPES)
    }

    /// The format of a message: Anthropic's `output_config.format`, or `output_format`, its earlier name.
    pub(in crate::http) fn of_message(config: Option<&Json>, format: Option<&Json>) -> Result<Option<Self>, ApiError> {
        let earlier = format.map_or(Ok(None), |format| of_format("output_format", format, MESSAGE_TYPES))?;
        let members = match config {
            None => return Ok(earlier),
            Some(config) if asks_nothing(config) => return Ok(earlier),
            Some(Json::Object(members)) => members,
            Some(other) => {
                let message = format!("output_config must be an object, got {}", in_words(other));
                return Err(ApiError::invalid("output_config", message));
            }
        };
        let mut given = earlier;
        for (name, value) in members.iter().filter(|(_, value)| !asks_nothing(value)) {
            if name != "format" {
                let field = format!("output_config.{}", start_of(name));
                let message = format!("{field} is not supported by this server; output_config.format is");
                return Err(ApiError::invalid(&field, message));
            }
            let Some(form) = of_format("output_config.format", value, MESSAGE_TYPES)? else { continue };
            if let Some(first) = &given {
                return Err(second_constraint(form.field, first.field));
            }
            given = Some(form);
        }
        Ok(given)
    }

    /// Ollama's `format`: `"json"`, or a schema.
    pub(in crate::http) fn of_ollama(format: &Json) -> Result<Option<Self>, ApiError> {
        const FIELD: &str = "format";
        let constraint = match format {
            format if asks_nothing(format) => return Ok(None),
            Json::Text(name) if name == "json" => Constraint::JsonObject,
            Json::Object(_) => schema(FIELD, format)?,
            _ => {
                let message = format!("{FIELD} must be \"json\" or a JSON schema, got {}", in_words(format));
                return Err(ApiError::invalid(FIELD, message));
            }
        };
        Ok(Some(Self::new(FIELD, constraint)))
    }

    /// Refuses parameters with which no answer belongs to the constraint.
    pub(in crate::http) fn check(&self, params: &SamplingParams) -> Result<(), ApiError> {
        let field = self.field;
        if params.ignore_eos {
            let message = format!("ignore_eos must be false with {field}: it writes past the end of the answer");
            return Err(ApiError::invalid("ignore_eos", message));
        }
        if params.max_tokens == 0 {
            return Err(ApiError::invalid(field, format!("{field} needs an answer; max_tokens is 0")));
        }
        Ok(())
    }
}

/// The fields of a body that may hold its constraint.
pub(in crate::http) struct Forms {
    /// Of the interface's own.
    pub(in crate::http) own: Option<GivenConstraint>,
    pub(in crate::http) response_format: Option<Json>,
    pub(in crate::http) structured_outputs: Option<Json>,
    pub(in crate::http) guided_json: Option<Json>,
    pub(in crate::http) guided_regex: Option<String>,
    pub(in crate::http) guided_choice: Option<Vec<String>>,
    pub(in crate::http) guided_grammar: Option<String>,
    pub(in crate::http) regex: Option<String>,
    pub(in crate::http) json_schema: Option<Json>,
    pub(in crate::http) ebnf: Option<String>,
    pub(in crate::http) grammar: Option<Json>,
}

impl Forms {
    /// The one constraint that is given; an error where there are two.
    pub(in crate::http) fn one(self) -> Result<Option<GivenConstraint>, ApiError> {
        let given = [
            self.own,
            self.response_format.map_or(Ok(None), |json| of_format(RESPONSE_FORMAT, &json, CHAT_TYPES))?,
            self.structured_outputs.map_or(Ok(None), |json| of_structured_outputs(&json))?,
            of_schema("guided_json", self.guided_json)?,
            of_schema("json_schema", self.json_schema)?,
            of_text("guided_regex", self.guided_regex, Constraint::Regex),
            of_text("regex", self.regex, Constraint::Regex),
            of_text("guided_grammar", self.guided_grammar, Constraint::Grammar),
            of_text("ebnf", self.ebnf, Constraint::Grammar),
            self.grammar.map_or(Ok(None), |json| of_grammar(&json))?,
            self.guided_choice.map(|texts| of_choice("guided_choice", texts)).transpose()?,
        ];
        let mut given = given.into_iter().flatten();
        let first = given.next();
        match (&first, given.next()) {
            (Some(first), Some(second)) => Err(second_constraint(second.field, first.field)),
            _ => Ok(first),
        }
    }
}

/// The error of `field`, which constrains an answer that `first` constrains.
fn second_constraint(field: &str, first: &str) -> ApiError {
    ApiError::invalid(field, format!("{field}: {first} constrains the answer already; send one of them"))
}

/// True for a value that asks for no constraint.
fn asks_nothing(json: &Json) -> bool {
    match json {
        Json::Null | Json::Flag(false) => true,
        Json::Text(text) => text.is_empty(),
        _ => false,
    }
}

/// A schema, or text that holds one, in `field`.
fn schema(field: &str, json: &Json) -> Result<Constraint, ApiError> {
    let parsed = json.as_str().map(serde_json::from_str::<Json>).transpose().map_err(|error| {
        ApiError::invalid(field, format!("{field} must be a JSON schema, and is text that is not JSON: {error}"))
    })?;
    match parsed.as_ref().unwrap_or(json) {
        schema @ (Json::Object(_) | Json::Flag(_)) => Ok(Constraint::JsonSchema(schema.to_string())),
        other => {
            let message = format!("{field} must be a JSON schema, an object, true or false; got {}", in_words(other));
            Err(ApiError::invalid(field, message))
        }
    }
}

fn of_schema(field: &'static str, json: Option<Json>) -> Result<Option<GivenConstraint>, ApiError> {
    let Some(json) = json.filter(|json| !asks_nothing(json)) else { return Ok(None) };
    Ok(Some(GivenConstraint::new(field, schema(field, &json)?)))
}

fn of_text(field: &'static str, text: Option<String>, form: fn(String) -> Constraint) -> Option<GivenConstraint> {
    text.filter(|text| !text.is_empty()).map(|text| GivenConstraint::new(field, form(text)))
}

fn of_choice(field: &'static str, texts: Vec<String>) -> Result<GivenConstraint, ApiError> {
    if texts.is_empty() {
        return Err(ApiError::invalid(field, format!("{field} must have at least one text")));
    }
    Ok(GivenConstraint::new(field, Constraint::Choice(texts)))
}

/// llama.cpp's `grammar`, which is text, or TGI's, which is an object.
fn of_grammar(json: &Json) -> Result<Option<GivenConstraint>, ApiError> {
    match json {
        Json::Text(text) => Ok(of_text("grammar", Some(text.clone()), Constraint::Grammar)),
        json => of_format("grammar", json, TGI_TYPES),
    }
}

/// A format: an object with one of `types` as its `type`.
fn of_format(field: &'static str, format: &Json, types: &[&str]) -> Result<Option<GivenConstraint>, ApiError> {
    match format {
        Json::Object(members) if members.is_empty() => return Ok(None),
        Json::Object(_) => {}
        format if asks_nothing(format) => return Ok(None),
        format => {
            return Err(ApiError::invalid(field, format!("{field} must be an object, got {}", in_words(format))));
        }
    }
    let path = format!("{field}.type");
    let Some(kind) = format.get("type") else {
        return Err(ApiError::invalid(&path, format!("{path} is required")));
    };
    let Some(kind) = kind.as_str().filter(|kind| types.contains(kind)) else {
        let message = format!("{path} must be one of {}, got {}", types.join(", "), in_words(kind));
        return Err(ApiError::invalid(&path, message));
    };
    let constraint = match kind {
        "text" => return Ok(None),
        "json_object" => format.get("schema").map_or(Ok(Constraint::JsonObject), |json| schema(field, json))?,
        "json_schema" => schema_of_format(field, format)?,
        "json" => schema_in(field, format, &["value"])?,
        "regex" => Constraint::Regex(text_of(field, format, &["value", "pattern"])?),
        _ => Constraint::Grammar(text_of(field, format, &["grammar"])?),
    };
    Ok(Some(GivenConstraint::new(field, constraint)))
}

/// The schema of a format: beside its type, or in `json_schema` with its name, where chat has it.
fn schema_of_format(field: &str, format: &Json) -> Result<Constraint, ApiError> {
    let Some(named) = format.get("json_schema") else {
        let field = if field == RESPONSE_FORMAT { "response_format.json_schema" } else { field };
        return schema_in(field, format, &["schema"]);
    };
    schema_in(&format!("{field}.json_schema"), named, &["schema"])
}

/// The first of the members `names` that `object` has, and its path; it must have one.
fn member<'a>(field: &str, object: &'a Json, names: &[&str]) -> Result<(String, &'a Json), ApiError> {
    let given = names.iter().find_map(|name| Some((format!("{field}.{name}"), object.get(name)?)));
    given.ok_or_else(|| {
        let path = format!("{field}.{}", names.first().copied().unwrap_or_default());
        ApiError::invalid(&path, format!("{path} is required"))
    })
}

/// The text that is the first of the members `names`.
fn text_of(field: &str, object: &Json, names: &[&str]) -> Result<String, ApiError> {
    let (path, value) = member(field, object, names)?;
    string(&path, value)
}

/// The schema that is the first of the members `names`.
fn schema_in(field: &str, object: &Json, names: &[&str]) -> Result<Constraint, ApiError> {
    let (path, value) = member(field, object, names)?;
    schema(&path, value)
}

/// The string that `field` must be.
fn string(field: &str, value: &Json) -> Result<String, ApiError> {
    let wrong = || ApiError::invalid(field, format!("{field} must be a string, got {}", in_words(value)));
    value.as_str().map(str::to_owned).ok_or_else(wrong)
}

/// vLLM's `structured_outputs`: one form, and options of its backends. OpenRouter's field of that name is a flag, which asks for
/// nothing by itself.
fn of_structured_outputs(json: &Json) -> Result<Option<GivenConstraint>, ApiError> {
    let Json::Object(members) = json else {
        if asks_nothing(json) || matches!(json, Json::Flag(_)) {
            return Ok(None);
        }
        let message = format!("{STRUCTURED_OUTPUTS} must be an object, got {}", in_words(json));
        return Err(ApiError::invalid(STRUCTURED_OUTPUTS, message));
    };
    let mut given: Option<GivenConstraint> = None;
    for (name, value) in members.iter().filter(|(_, value)| !asks_nothing(value)) {
        let Some(form) = of_member(name, value)? else { continue };
        if let Some(first) = &given {
            return Err(second_constraint(form.field, first.field));
        }
        given = Some(form);
    }
    Ok(given)
}

/// The constraint that a member of `structured_outputs` is; `None` for an option that changes no answer.
fn of_member(name: &str, value: &Json) -> Result<Option<GivenConstraint>, ApiError> {
    const JSON: &str = "structured_outputs.json";
    const REGEX: &str = "structured_outputs.regex";
    const CHOICE: &str = "structured_outputs.choice";
    const GRAMMAR: &str = "structured_outputs.grammar";
    const OBJECT: &str = "structured_outputs.json_object";
    Ok(Some(match name {
        "json" => GivenConstraint::new(JSON, schema(JSON, value)?),
        "regex" => GivenConstraint::new(REGEX, Constraint::Regex(string(REGEX, value)?)),
        "grammar" => GivenConstraint::new(GRAMMAR, Constraint::Grammar(string(GRAMMAR, value)?)),
        "json_object" if *value == Json::Flag(true) => GivenConstraint::new(OBJECT, Constraint::JsonObject),
        "choice" => {
            let Json::List(items) = value else {
                let message = format!("{CHOICE} must be a list of strings, got {}", in_words(value));
                return Err(ApiError::invalid(CHOICE, message));
            };
            let texts = items.iter().enumerate().map(|(index, item)| string(&format!("{CHOICE}[{index}]"), item));
            of_choice(CHOICE, texts.collect::<Result<_, _>>()?)?
        }
        // JSON is written without spaces anyway, and there is one backend.
        "disable_any_whitespace" | "disable_fallback" | "_backend" | "_backend_was_auto" => return Ok(None),
        _ => {
            let field = format!("{STRUCTURED_OUTPUTS}.{}", start_of(name));
            let message = format!(
                "{field} is not supported by this server; {STRUCTURED_OUTPUTS} takes json, regex, choice, grammar or json_object"
            );
            return Err(ApiError::invalid(&field, message));
        }
    }))
}

/// A value in words, for a message: whole only where it is short.
fn in_words(json: &Json) -> String {
    match json {
        Json::Text(text) => format!("{:?}", start_of(text)),
        Json::List(_) => "a list".to_owned(),
        Json::Object(_) => "an object".to_owned(),
        Json::Null | Json::Flag(_) | Json::Number(_) => json.to_string(),
    }
}

/// The schema of `response_format`, for the documents.
pub(in crate::http) fn format_schema(_: &mut SchemaGenerator) -> Schema {
    let named = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "schema": {"type": "object"}, "strict": {"type": "boolean"}},
    });
    json_schema!({"type": ["object", "null"], "properties": {"type": {"enum": CHAT_TYPES}, "json_schema": named}})
}

/// The schema of the format of a response, for the documents.
pub(in crate::http) fn response_format_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "null"],
        "properties": {"type": {"enum": RESPONSE_TYPES}, "name": {"type": "string"}, "schema": {"type": "object"}},
    })
}

/// The schema of `structured_outputs`, for the documents.
pub(in crate::http) fn structured_outputs_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "boolean", "null"],
        "properties": {
            "json": {"type": ["object", "string"]},
            "regex": {"type": "string"},
            "choice": {"type": "array", "items": {"type": "string"}},
            "grammar": {"type": "string"},
            "json_object": {"type": "boolean"},
        },
    })
}

/// Any value, for the documents: text, a schema or an object of another server's form.
pub(in crate::http) fn any_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["object", "string", "boolean", "null"]})
}

#[cfg(test)]
mod tests;
