use super::*;
use crate::http::request::generation::GenerationBody;

fn json(text: &str) -> Json {
    serde_json::from_str(text).expect("JSON")
}

/// The field and the constraint of a body, or the field at fault and the message.
fn given(body: &str) -> Result<Option<(&'static str, Constraint)>, (String, String)> {
    let mut body: GenerationBody = serde_json::from_str(body).expect("a body");
    let given = body.take_constraint().and_then(|given| {
        given.iter().try_for_each(|given| given.check(&SamplingParams::default()))?;
        Ok(given)
    });
    given.map(|given| given.map(|given| (given.field, given.constraint))).map_err(told)
}

fn told(error: ApiError) -> (String, String) {
    let value = serde_json::to_value(error.body()).expect("JSON");
    let text = |name: &str| value["error"][name].as_str().unwrap_or_default().to_owned();
    (text("param"), text("message"))
}

/// A schema whose keys are not in the order of the alphabet.
const SCHEMA: &str = r#"{"type":"object","properties":{"b":{"type":"integer"},"a":{}}}"#;

fn schema_constraint() -> Constraint {
    Constraint::JsonSchema(SCHEMA.to_owned())
}

#[test]
fn each_form_is_one_constraint_and_a_schema_keeps_the_order_of_its_keys() {
    let quoted = serde_json::to_string(SCHEMA).expect("JSON");
    let regex = || Constraint::Regex("a+".to_owned());
    let grammar = || Constraint::Grammar("root ::= \"a\"".to_owned());
    let choice = || Constraint::Choice(vec!["a".to_owned(), "b".to_owned()]);
    let schema = schema_constraint;
    for (body, field, constraint) in [
        (r#"{"response_format": {"type": "json_object"}}"#.to_owned(), RESPONSE_FORMAT, Constraint::JsonObject),
        (
            format!(
                r#"{{"response_format": {{"type": "json_schema", "json_schema": {{"name": "x", "schema": {SCHEMA}}}}}}}"#
            ),
            RESPONSE_FORMAT,
            schema(),
        ),
        (format!(r#"{{"response_format": {{"type": "json_schema", "schema": {SCHEMA}}}}}"#), RESPONSE_FORMAT, schema()),
        (format!(r#"{{"response_format": {{"type": "json_object", "schema": {SCHEMA}}}}}"#), RESPONSE_FORMAT, schema()),
        (format!(r#"{{"response_format": {{"type": "json", "value": {SCHEMA}}}}}"#), RESPONSE_FORMAT, schema()),
        (r#"{"response_format": {"type": "regex", "pattern": "a+"}}"#.to_owned(), RESPONSE_FORMAT, regex()),
        (
            r#"{"response_format": {"type": "grammar", "grammar": "root ::= \"a\""}}"#.to_owned(),
            RESPONSE_FORMAT,
            grammar(),
        ),
        (format!(r#"{{"structured_outputs": {{"json": {SCHEMA}}}}}"#), "structured_outputs.json", schema()),
        (
            format!(r#"{{"structured_outputs": {{"json": {quoted}, "regex": null, "disable_any_whitespace": true}}}}"#),
            "structured_outputs.json",
            schema(),
        ),
        (r#"{"structured_outputs": {"regex": "a+"}}"#.to_owned(), "structured_outputs.regex", regex()),
        (r#"{"structured_outputs": {"choice": ["a", "b"]}}"#.to_owned(), "structured_outputs.choice", choice()),
        (
            r#"{"structured_outputs": {"grammar": "root ::= \"a\""}}"#.to_owned(),
            "structured_outputs.grammar",
            grammar(),
        ),
        (
            r#"{"structured_outputs": {"json_object": true}}"#.to_owned(),
            "structured_outputs.json_object",
            Constraint::JsonObject,
        ),
        (format!(r#"{{"guided_json": {SCHEMA}, "guided_decoding_backend": "outlines"}}"#), "guided_json", schema()),
        (r#"{"guided_regex": "a+"}"#.to_owned(), "guided_regex", regex()),
        (r#"{"guided_choice": ["a", "b"]}"#.to_owned(), "guided_choice", choice()),
        (r#"{"guided_grammar": "root ::= \"a\""}"#.to_owned(), "guided_grammar", grammar()),
        (r#"{"regex": "a+"}"#.to_owned(), "regex", regex()),
        (format!(r#"{{"json_schema": {quoted}}}"#), "json_schema", schema()),
        (r#"{"json_schema": {}}"#.to_owned(), "json_schema", Constraint::JsonSchema("{}".to_owned())),
        (r#"{"ebnf": "root ::= \"a\""}"#.to_owned(), "ebnf", grammar()),
        (r#"{"grammar": "root ::= \"a\""}"#.to_owned(), "grammar", grammar()),
        (format!(r#"{{"grammar": {{"type": "json", "value": {SCHEMA}}}}}"#), "grammar", schema()),
        (r#"{"grammar": {"type": "regex", "value": "a+"}}"#.to_owned(), "grammar", regex()),
    ] {
        assert_eq!(given(&body), Ok(Some((field, constraint))), "{body}");
    }
}

#[test]
fn a_value_that_asks_for_nothing_is_no_constraint() {
    for body in [
        "{}",
        r#"{"response_format": {"type": "text"}, "structured_outputs": {}, "guided_json": null, "regex": ""}"#,
        r#"{"response_format": {}, "structured_outputs": true, "grammar": "", "json_schema": "", "guided_choice": null}"#,
        r#"{"response_format": null, "structured_outputs": {"json": null, "json_object": false}}"#,
    ] {
        assert_eq!(given(body), Ok(None), "{body}");
    }
}

#[test]
fn a_wrong_value_is_refused_by_its_path() {
    for (body, param, start) in [
        (r#"{"response_format": "json"}"#, "response_format", "response_format must be an object, got \"json\""),
        (
            r#"{"response_format": {"type": "xml"}}"#,
            "response_format.type",
            "response_format.type must be one of text,",
        ),
        (r#"{"response_format": {"name": "x"}}"#, "response_format.type", "response_format.type is required"),
        (
            r#"{"response_format": {"type": "json_schema"}}"#,
            "response_format.json_schema.schema",
            "response_format.json_schema.schema is required",
        ),
        (
            r#"{"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}"#,
            "response_format.json_schema.schema",
            "response_format.json_schema.schema must be a JSON schema, an object, true or false; got a list",
        ),
        (r#"{"guided_json": "{"}"#, "guided_json", "guided_json must be a JSON schema, and is text that is not JSON"),
        (r#"{"guided_choice": []}"#, "guided_choice", "guided_choice must have at least one text"),
        (
            r#"{"structured_outputs": {"choice": ["a", 5]}}"#,
            "structured_outputs.choice[1]",
            "structured_outputs.choice[1] must be a string, got 5",
        ),
        (
            r#"{"structured_outputs": {"structural_tag": "{}"}}"#,
            "structured_outputs.structural_tag",
            "structured_outputs.structural_tag is not supported",
        ),
        (
            r#"{"structured_outputs": {"whitespace_pattern": " "}}"#,
            "structured_outputs.whitespace_pattern",
            "structured_outputs.whitespace_pattern is not supported",
        ),
        (r#"{"grammar": {"type": "xml"}}"#, "grammar.type", "grammar.type must be one of json, regex, json_schema"),
    ] {
        let (at, message) = given(body).expect_err(body);
        assert_eq!(at, param, "{message}");
        assert!(message.starts_with(start), "{message}");
    }
}

#[test]
fn two_constraints_are_refused_by_the_second() {
    for (body, second, first) in [
        (r#"{"response_format": {"type": "json_object"}, "regex": "a"}"#, "regex", RESPONSE_FORMAT),
        (r#"{"guided_json": {}, "guided_choice": ["a"]}"#, "guided_choice", "guided_json"),
        (
            r#"{"structured_outputs": {"json": {}, "regex": "a"}}"#,
            "structured_outputs.regex",
            "structured_outputs.json",
        ),
    ] {
        let (param, message) = given(body).expect_err(body);
        assert_eq!(param, second);
        assert_eq!(message, format!("{second}: {first} constrains the answer already; send one of them"));
    }
}

#[test]
fn an_answer_that_is_not_to_end_or_not_to_be_is_not_constrained() {
    let given = GivenConstraint::new("regex", Constraint::Regex("a".to_owned()));
    let of = |params: SamplingParams| given.check(&params).map_err(|error| told(error).0);
    assert_eq!(of(SamplingParams::default()), Ok(()));
    assert_eq!(of(SamplingParams { ignore_eos: true, ..SamplingParams::default() }), Err("ignore_eos".to_owned()));
    assert_eq!(of(SamplingParams { max_tokens: 0, ..SamplingParams::default() }), Err("regex".to_owned()));
}

#[test]
fn the_interfaces_own_forms_are_read_and_refused_by_their_names() {
    let field_of = |given: Result<Option<GivenConstraint>, ApiError>| {
        given.map(|given| given.map(|given| (given.field, given.constraint))).map_err(|error| told(error).0)
    };
    let format = json(&format!(r#"{{"type": "json_schema", "name": "x", "strict": false, "schema": {SCHEMA}}}"#));
    let response = GivenConstraint::of_response;
    assert_eq!(field_of(response(&format)), Ok(Some(("text.format", schema_constraint()))));
    let object = json(r#"{"type": "json_object"}"#);
    assert_eq!(field_of(response(&object)), Ok(Some(("text.format", Constraint::JsonObject))));
    assert_eq!(field_of(response(&json(r#"{"type": "text"}"#))), Ok(None));
    assert_eq!(field_of(response(&json(r#"{"type": "regex", "value": "a"}"#))), Err("text.format.type".to_owned()));
    assert_eq!(field_of(response(&json(r#"{"type": "json_schema"}"#))), Err("text.format.schema".to_owned()));

    let message = GivenConstraint::of_message;
    let config = Json::Object(vec![("format".to_owned(), format.clone())]);
    assert_eq!(field_of(message(Some(&config), None)), Ok(Some(("output_config.format", schema_constraint()))));
    assert_eq!(field_of(message(None, Some(&format))), Ok(Some(("output_format", schema_constraint()))));
    assert_eq!(field_of(message(Some(&config), Some(&format))), Err("output_config.format".to_owned()));
    assert_eq!(field_of(message(Some(&json(r#"{"format": null}"#)), None)), Ok(None));
    let effort = json(r#"{"effort": "high"}"#);
    assert_eq!(field_of(message(Some(&effort), None)), Err("output_config.effort".to_owned()));

    let ollama = GivenConstraint::of_ollama;
    assert_eq!(field_of(ollama(&json(r#""json""#))), Ok(Some(("format", Constraint::JsonObject))));
    assert_eq!(field_of(ollama(&json(SCHEMA))), Ok(Some(("format", schema_constraint()))));
    assert_eq!(field_of(ollama(&json(r#""""#))), Ok(None));
    assert_eq!(field_of(ollama(&json(r#""xml""#))), Err("format".to_owned()));
}
