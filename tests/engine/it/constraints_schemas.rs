//! Random schemas, the test suite of JSON Schema, formats and long patterns through every strategy. The crate `jsonschema` judges the
//! answers.
//!
//! `scripts/schemas` runs 10,000 random schemas instead of [`N_SCHEMAS`].

use diffulex_constraints::testing::{Dice, schema};
use diffulex_engine::{Engine, EngineOptions};
use diffulex_protocol::{Constraint, FinishReason, SamplingParams, ServingEvent, ServingGenerate};
use serde_json::{Value, json};

use crate::harness::{Subject, is_on_gpu, prompt, request, run, subjects};

/// Random schemas in an ordinary run, over all subjects.
const N_SCHEMAS: usize = 230;

/// Schemas in an engine at once, each with four requests.
const N_AT_ONCE: usize = 16;

/// Longest answer: with a prompt and whole blocks it fits the shortest context of the checkpoints, 256 tokens.
const MOST_TOKENS: u32 = 232;

/// Random schemas whose shortest answers are longer are left out, so that twice as many tokens fit.
const MOST_SHORTEST: u32 = MOST_TOKENS / 2;

/// Keywords of JSON Schema and OpenAPI that are not supported, with a value.
fn unsupported() -> Vec<(&'static str, Value)> {
    vec![
        ("not", json!({})),
        ("if", json!({})),
        ("then", json!({})),
        ("else", json!({})),
        ("uniqueItems", json!(true)),
        ("contains", json!({})),
        ("minContains", json!(1)),
        ("maxContains", json!(1)),
        ("patternProperties", json!({})),
        ("propertyNames", json!({})),
        ("multipleOf", json!(2)),
        ("dependentRequired", json!({})),
        ("dependentSchemas", json!({})),
        ("dependencies", json!({})),
        ("unevaluatedItems", json!(false)),
        ("unevaluatedProperties", json!(false)),
        ("$dynamicRef", json!("#a")),
        ("$recursiveRef", json!("#")),
        ("contentEncoding", json!("base64")),
        ("nullable", json!(true)),
        ("unknown", json!(1)),
    ]
}

/// An engine and the subject that it runs.
struct Held<'a> {
    engine: Engine,
    subject: &'a Subject,
    /// Makes prompts and seeds.
    dice: Dice,
}

impl<'a> Held<'a> {
    fn new(subject: &'a Subject, seed: u64) -> Self {
        let options = EngineOptions { max_num_reqs: 64, max_model_len: 256, ..subject.options.clone() };
        Self { engine: subject.engine(&options), subject, dice: Dice(seed) }
    }

    fn request(&mut self, rid: String, schema: &str, max_tokens: u32, temperature: f32) -> ServingGenerate {
        let params = SamplingParams {
            temperature,
            max_tokens,
            seed: Some(self.dice.below(1 << 40)),
            ..SamplingParams::default()
        };
        let prompt = prompt(self.dice.below(90) as u32, 1 + self.dice.below(9) as usize);
        ServingGenerate {
            constraint: Some(Constraint::JsonSchema(schema.to_owned())),
            ..request(&rid, &prompt, params)
        }
    }

    /// Tokens of the shortest answer to each schema, or why it is refused.
    fn shortest(&mut self, schemas: &[String]) -> Vec<Result<u32, String>> {
        let requests = schemas.iter().enumerate();
        let requests = requests.map(|(nth, schema)| self.request(nth.to_string(), schema, 1, 0.0)).collect();
        let told = run(&mut self.engine, requests);
        (0..schemas.len())
            .map(|nth| match told.0[&nth.to_string()].last() {
                Some(ServingEvent::Error(error)) => match error.param.as_deref() {
                    Some("max_tokens") => Ok(shortest_of(&error.message)),
                    Some("constraint") => Err(error.message.clone()),
                    param => panic!("{}: {param:?}: {}", schemas[nth], error.message),
                },
                _ => Ok(1),
            })
            .collect()
    }

    /// Asks for an answer to each schema with limits of its shortest answer, a token more, twice as many, and one too few. `schemas`
    /// come with their shortest answers.
    fn holds(&mut self, schemas: &[(String, u32)], temperature: f32) {
        let mut asked = Vec::new();
        let mut requests = Vec::new();
        for (schema, shortest) in schemas {
            for limit in [*shortest, shortest + 1, 2 * shortest, shortest - 1] {
                let limit = limit.min(MOST_TOKENS);
                if limit > 0 {
                    let rid = asked.len().to_string();
                    requests.push(self.request(rid.clone(), schema, limit, temperature));
                    asked.push((rid, schema, *shortest, limit));
                }
            }
        }
        let told = run(&mut self.engine, requests);
        for (rid, schema, shortest, limit) in asked {
            let place =
                format!("{}, temperature {temperature}, limit {limit} of {shortest}, {schema}", self.subject.strategy);
            if limit < shortest {
                let error = told.error(&rid);
                assert_eq!(error.param.as_deref(), Some("max_tokens"), "{place}");
                assert_eq!(shortest_of(&error.message), shortest, "{place}");
                continue;
            }
            let reply = match told.0[&rid].last() {
                Some(ServingEvent::Reply(reply)) => reply,
                other => panic!("{place}: {other:?}"),
            };
            assert_eq!(reply.finish_reason, FinishReason::EosTokenGenerated, "{place}: {:?}", reply.text);
            let value = serde_json::from_str(&reply.text);
            let value: Value = value.unwrap_or_else(|error| panic!("{place}: {error}: {:?}", reply.text));
            assert!(judge(schema).is_valid(&value), "{place}: {value}");
        }
    }
}

/// The number in the refusal of an answer that is too short.
fn shortest_of(message: &str) -> u32 {
    let number = message.split("the shortest answer that fits the constraint has ").nth(1).expect(message);
    number.split(' ').next().expect(message).parse().expect(message)
}

fn judge(schema: &str) -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(schema).expect(schema);
    let options = jsonschema::options().with_draft(jsonschema::Draft::Draft202012).should_validate_formats(true);
    options.build(&schema).expect("a valid schema")
}

/// Greedy for every other schema, drawn for the others.
fn temperature(nth: usize) -> f32 {
    (nth % 2) as f32
}

fn n_schemas() -> usize {
    match std::env::var("DIFFULEX_TEST_SCHEMAS") {
        Ok(number) => number.parse().expect("DIFFULEX_TEST_SCHEMAS is a number"),
        Err(_) if is_on_gpu() => N_SCHEMAS / 10,
        Err(_) => N_SCHEMAS,
    }
}

#[test]
fn answers_to_random_schemas_satisfy_them_within_any_limit() {
    let subjects = subjects();
    let n_each = n_schemas().div_ceil(subjects.len());
    let (mut n_left_out, mut n_held) = (0, 0);
    for (subject_idx, subject) in subjects.iter().enumerate() {
        let mut held = Held::new(subject, subject_idx as u64);
        let mut seeds = (0_u64..).map(|nth| nth * subjects.len() as u64 + subject_idx as u64);
        let mut n_done = 0;
        for round in 0.. {
            let n_now = N_AT_ONCE.min(n_each - n_done);
            if n_now == 0 {
                break;
            }
            let random = |seed| {
                let mut dice = Dice(seed);
                let depth = dice.below(3) as u32;
                schema(&mut dice, depth).to_string()
            };
            let schemas: Vec<String> = seeds.by_ref().take(n_now).map(random).collect();
            let shortest = held.shortest(&schemas);
            let mut taken = Vec::new();
            for (schema, shortest) in schemas.into_iter().zip(shortest) {
                match shortest {
                    Ok(shortest) if shortest <= MOST_SHORTEST => taken.push((schema, shortest)),
                    Ok(_) => n_left_out += 1,
                    Err(message) => panic!("{}: {schema}: {message}", subject.strategy),
                }
            }
            n_done += taken.len();
            held.holds(&taken, temperature(round));
        }
        n_held += n_done;
    }
    eprintln!(
        "{n_held} schemas held, {n_left_out} left out, whose shortest answers have more than {MOST_SHORTEST} tokens"
    );
    assert!(n_left_out < n_held / 4, "{n_left_out} of {n_held}");
}

#[test]
fn answers_to_the_test_suite_of_json_schema_satisfy_it() {
    let suite: Value =
        serde_json::from_str(include_str!("../../../diffulex-constraints/tests/data/json_schema_test_suite.json"))
            .unwrap();
    let groups = suite.as_object().unwrap().values().flat_map(|groups| groups.as_array().unwrap());
    let schemas: Vec<String> = groups.map(|group| group["schema"].to_string()).collect();
    let subjects = subjects();
    let (mut n_held, mut refusals) = (0, Vec::new());
    for (subject_idx, subject) in subjects.iter().enumerate() {
        let mut held = Held::new(subject, subject_idx as u64);
        let own: Vec<String> = schemas.iter().skip(subject_idx).step_by(subjects.len()).cloned().collect();
        for (round, schemas) in own.chunks(N_AT_ONCE).enumerate() {
            let mut taken = Vec::new();
            for (schema, shortest) in schemas.iter().zip(held.shortest(schemas)) {
                match shortest {
                    Ok(shortest) => taken.push((schema.clone(), shortest)),
                    Err(message) => refusals.push(message),
                }
            }
            n_held += taken.len();
            held.holds(&taken, temperature(subject_idx + round));
        }
    }
    let is_named = |message: &String| {
        [
            "not supported",
            "are supported",
            "may both hold",
            "is recursive",
            "at most",
            "allows no text",
            "names nothing",
            "write prefixItems",
        ]
        .iter()
        .any(|reason| message.contains(reason))
    };
    assert!(refusals.iter().all(is_named), "{refusals:#?}");
    assert!(n_held >= 100, "{n_held} held, {refusals:#?}");
}

#[test]
fn formats_and_patterns_of_200_characters_are_written_within_any_limit() {
    let schemas = [
        json!({"type": "string", "format": "email"}),
        json!({"format": "date"}),
        json!({"format": "date-time"}),
        json!({"format": "uri"}),
        json!({"pattern": "^https?://[a-z]+[.][a-z]{2,6}(/[a-z0-9]*)*$"}),
        json!({"pattern": "^[a-z]{200}$"}),
        json!({"pattern": "^([A-Z][a-z]{3}|[0-9]{4}){50}$"}),
        json!({"pattern": format!("^{}$", "a.[^b]\\d".repeat(25))}),
        json!({"type": "string", "minLength": 200, "maxLength": 220}),
    ]
    .map(|schema| schema.to_string());
    // A third of them for each subject, and all of them for every few subjects.
    for (subject_idx, subject) in subjects().iter().enumerate() {
        let mut held = Held::new(subject, subject_idx as u64);
        let schemas: Vec<String> = schemas.iter().skip(subject_idx % 3).step_by(3).cloned().collect();
        let shortest = held.shortest(&schemas);
        let all: Vec<(String, u32)> =
            schemas.into_iter().zip(shortest.into_iter().map(|shortest| shortest.unwrap())).collect();
        held.holds(&all, temperature(subject_idx));
    }
}

#[test]
fn keywords_that_are_not_supported_are_refused_by_name_and_place() {
    for (subject_idx, subject) in subjects().iter().enumerate() {
        let mut held = Held::new(subject, subject_idx as u64);
        let schemas: Vec<String> = unsupported()
            .into_iter()
            .map(|(keyword, value)| {
                let mut inner = schema(&mut held.dice, 1);
                inner[keyword] = value;
                json!({"type": "object", "properties": {"x": {"type": "array", "items": inner}}}).to_string()
            })
            .collect();
        for ((keyword, _), outcome) in unsupported().into_iter().zip(held.shortest(&schemas)) {
            let want = format!("$.properties.x.items: the keyword \"{keyword}\" is not supported");
            assert_eq!(outcome, Err(want), "{}", subject.strategy);
        }
    }
}
