//! Milliseconds to compile constraints over the vocabulary of a model: CPU time of one thread, so that other programs do not count.
//!
//! `cargo run --release -p diffulex-workbench --bin constraint_compile -- TOKENS_FILE N_ROWS [--schemas N]`. TOKENS_FILE has a line for each
//! token as tiktoken writes it: its bytes in base64, a space and its id; ids up to N_ROWS that it lacks have no text. Prints the time
//! and the size of some constraints, and quantiles over random schemas.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use diffulex_constraints::testing::{Dice, schema};
use diffulex_constraints::{Automaton, Vocabulary, language_of};
use diffulex_protocol::{Constraint, Tag, Tags};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

const USAGE: &str = "usage: constraint_compile TOKENS_FILE N_ROWS [--schemas N]";

/// Rounds of each named constraint; the median is printed.
const N_ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or(USAGE)?;
    let n_rows: usize = arguments.next().ok_or(USAGE)?.parse()?;
    let n_schemas = match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => 1000,
        (Some("--schemas"), Some(number)) => number.parse()?,
        _ => return Err(USAGE.into()),
    };
    let started = cpu_time();
    let vocabulary = vocabulary(&std::fs::read_to_string(file)?, n_rows)?;
    println!("the vocabulary: {:.0} ms", ms_since(started));
    println!("constraint                  read ms   all ms  states  classes      kB");
    for (name, constraint) in named() {
        let (mut read, mut all) = (Vec::new(), Vec::new());
        let mut outcome = String::new();
        for _ in 0..N_ROUNDS {
            let started = cpu_time();
            let language = language_of(&constraint);
            read.push(ms_since(started));
            let compiled = language.and_then(|language| Automaton::compile(&language, &vocabulary));
            all.push(ms_since(started));
            outcome = match compiled {
                Ok(automaton) => {
                    let (n_states, n_classes) = (automaton.n_states(), automaton.n_classes());
                    format!("{n_states:6}  {n_classes:7}  {:6}", automaton.n_bytes() >> 10)
                }
                Err(error) => error.message,
            };
        }
        println!("{name:26}  {:7.2}  {:7.1}  {outcome}", quantile(&mut read, 0.5), quantile(&mut all, 0.5));
    }
    random(n_schemas, &vocabulary);
    Ok(())
}

/// Quantiles over random schemas.
fn random(n_schemas: u64, vocabulary: &Vocabulary) {
    let (mut ms, mut bytes, mut states) = (Vec::new(), Vec::new(), Vec::new());
    let mut refusals = Vec::new();
    for seed in 0..n_schemas {
        let mut dice = Dice(seed);
        let depth = dice.below(3) as u32;
        let constraint = Constraint::JsonSchema(schema(&mut dice, depth).to_string());
        let started = cpu_time();
        match language_of(&constraint).and_then(|language| Automaton::compile(&language, vocabulary)) {
            Ok(automaton) => {
                bytes.push(automaton.n_bytes() as f64 / 1024.0);
                states.push(automaton.n_states() as f64);
            }
            Err(error) => refusals.push(error.message),
        }
        ms.push(ms_since(started));
    }
    println!("{n_schemas} random schemas, {} refused {refusals:?}: p50, p99, most", refusals.len());
    for (name, values) in [("ms", &mut ms), ("states", &mut states), ("kB", &mut bytes)] {
        let [median, high, most] = [0.5, 0.99, 1.0].map(|share| quantile(values, share));
        println!("{name:8}  {median:8.1}  {high:8.1}  {most:8.1}");
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn ms_since(started: Duration) -> f64 {
    (cpu_time() - started).as_secs_f64() * 1e3
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len().saturating_sub(1) as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

fn vocabulary(file: &str, n_rows: usize) -> Result<Vocabulary, Box<dyn Error>> {
    let mut tokens: Vec<Option<Box<[u8]>>> = vec![None; n_rows];
    for line in file.lines() {
        let (bytes, id) = line.split_once(' ').ok_or("a line has no space")?;
        let place = tokens.get_mut(id.parse::<usize>()?).ok_or("an id is not below N_ROWS")?;
        *place = Some(STANDARD.decode(bytes).map_err(|error| error.to_string())?.into());
    }
    let end = tokens.iter().position(Option::is_none).ok_or("every id has a text: none is left for the end")?;
    Ok(Vocabulary::new(&tokens, &[], &[end as u32], n_rows))
}

/// What clients ask for, and what costs most.
fn named() -> Vec<(&'static str, Constraint)> {
    let schema = |schema: Value| Constraint::JsonSchema(schema.to_string());
    let five = fields(5, |field| kind(field, None));
    let tag = Tag { begin: "<tool_call>".to_owned(), schema: five.to_string(), end: "</tool_call>".to_owned() };
    let tags = Tags { tags: vec![tag], allows_text: true, least: 0, repeats: true, separator: String::new() };
    let choices = ["positive", "negative", "neutral", "mixed", "not sure", "none of these"];
    vec![
        ("a: 5 fields", schema(five)),
        ("b: 20 fields", schema(fields(20, |field| kind(field, None)))),
        ("c: email", schema(json!({"type": "string", "format": "email"}))),
        ("d: maxLength 200", schema(json!({"type": "string", "maxLength": 200}))),
        ("e: choices", Constraint::Choice(choices.map(str::to_owned).to_vec())),
        ("f: b, each string of 50", schema(fields(20, |field| kind(field, Some(50))))),
        ("20 strings of 50", schema(fields(20, |_| json!({"type": "string", "maxLength": 50})))),
        ("text with calls of a", Constraint::Tags(tags)),
        ("any object", Constraint::JsonObject),
        ("[a-z]{200}", Constraint::Regex("[a-z]{200}".to_owned())),
        ("[ab]*a[ab]{24}", Constraint::Regex("[ab]*a[ab]{24}".to_owned())),
        ("[ab]*a[ab]{12}", Constraint::Regex("[ab]*a[ab]{12}".to_owned())),
        ("20 strings of 250", schema(fields(20, |_| json!({"type": "string", "maxLength": 250})))),
        ("doubled references", Constraint::JsonSchema(doubled())),
        ("a class of 8,000 letters", Constraint::Regex(format!("[{}]{{900}}", "a\u{e9}\u{4e00}".repeat(1300)))),
        (".{0,5000}", Constraint::Regex(".{0,5000}".to_owned())),
    ]
}

/// A schema of 64 KiB whose references stand for many more.
fn doubled() -> String {
    let values: Vec<String> = (0..4500).map(|value| value.to_string()).collect();
    let twice = |n: u32| json!({"prefixItems": [{"$ref": format!("#/$defs/{n}")}, {"$ref": format!("#/$defs/{n}")}]});
    json!({"$ref": "#/$defs/0", "$defs": {"0": twice(1), "1": twice(2), "2": {"enum": values}}}).to_string()
}

/// The field of an extraction with this number; strings of at most `most` characters.
fn kind(field: usize, most: Option<u32>) -> Value {
    let text = match most {
        Some(most) => json!({"type": "string", "maxLength": most}),
        None => json!({"type": "string"}),
    };
    match field % 5 {
        0 => text,
        1 => json!({"type": "integer"}),
        2 => json!({"type": "boolean"}),
        3 => json!({"enum": ["low", "medium", "high"]}),
        _ => json!({"type": "array", "items": text}),
    }
}

fn fields(n_fields: usize, kind: impl Fn(usize) -> Value) -> Value {
    let names = [
        "name",
        "age",
        "is_active",
        "priority",
        "tags",
        "title",
        "count",
        "verified",
        "status",
        "authors",
        "description",
        "year",
        "available",
        "category",
        "keywords",
        "address",
        "price",
        "in_stock",
        "color",
        "languages",
    ];
    let properties: serde_json::Map<String, Value> =
        names.iter().take(n_fields).enumerate().map(|(field, name)| ((*name).to_owned(), kind(field))).collect();
    let required: Vec<&String> = properties.keys().collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}
