//! Milliseconds per step with a constraint beside those without, in turn on one engine.
//!
//! `cargo run --release -p diffulex-bench --bin constrained_cost -- MODEL_FOLDER [int8|int4] [--rounds N] [--block-size N] [--temperature T]
//! [N_REQUESTS ...]`. The constraint is a schema of 20 fields; all requests of a round are alike. Compiling is not part of a step; its
//! time is printed apart.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::time::Instant;

use diffulex_engine::{Engine, EngineOptions, ModelFiles, Quantization, ServingEngine};
use diffulex_protocol::{Constraint, SamplingParams, ServingCommand, ServingEvent, ServingGenerate};
use serde_json::json;

const USAGE: &str =
    "usage: constrained_cost MODEL_FOLDER [int8|int4] [--rounds N] [--block-size N] [--temperature T] [N_REQUESTS ...]";

/// Tokens of a prompt and the most of an answer.
const PROMPT_LEN: u32 = 64;
const MAX_TOKENS: u32 = 512;

/// Steps of a round: an answer of random weights is as long as its limit, and a tenth of it is enough for a mean.
const N_STEPS: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or(USAGE)?;
    let mut options = EngineOptions { prefix_caching: false, ..EngineOptions::default() };
    let (mut n_rounds, mut temperature, mut sizes) = (9, 0.0, Vec::new());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match argument.as_str() {
            "int8" => options.quantization = Quantization::Int8,
            "int4" => options.quantization = Quantization::Int4,
            "--rounds" => n_rounds = value()?.parse()?,
            "--block-size" => options.block_size = Some(value()?.parse()?),
            "--temperature" => temperature = value()?.parse()?,
            size => sizes.push(size.parse::<usize>()?),
        }
    }
    if sizes.is_empty() {
        sizes = vec![1, 8, 32];
    }
    let mut engine = Engine::load(&ModelFiles::folder(folder)?, &options, &mut |_| {})?;
    let constraint = Constraint::JsonSchema(schema());
    let started = Instant::now();
    let first = request("first", Some(&constraint), temperature);
    engine.tick(vec![ServingCommand::Generate(first)]);
    while engine.stats().running == 0 {
        if let Some(error) = errors(&engine.tick(Vec::new())) {
            return Err(error.into());
        }
    }
    println!("compiled, with the vocabulary, in {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    abort(&mut engine, 1);
    println!("requests  free ms/step  constrained ms/step  ratio (range)");
    for size in sizes {
        let mut rounds = Vec::with_capacity(n_rounds);
        for _ in 0..n_rounds {
            let free = ms_per_step(&mut engine, size, None, temperature)?;
            rounds.push((free, ms_per_step(&mut engine, size, Some(&constraint), temperature)?));
        }
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            (values[values.len() / 2], values[0], values[values.len() - 1])
        };
        let (free, ..) = median(rounds.iter().map(|(free, _)| *free).collect());
        let (constrained, ..) = median(rounds.iter().map(|(_, constrained)| *constrained).collect());
        let (ratio, least, most) = median(rounds.iter().map(|(free, constrained)| constrained / free).collect());
        println!("{size:8}  {free:12.2}  {constrained:19.2}  {ratio:.3} ({least:.3} to {most:.3})");
    }
    Ok(())
}

/// Twenty fields of several kinds, as an extraction has them.
fn schema() -> String {
    let kinds = [
        json!({"type": "string"}),
        json!({"type": "integer"}),
        json!({"type": "boolean"}),
        json!({"enum": ["low", "medium", "high"]}),
        json!({"type": "array", "items": {"type": "string"}}),
    ];
    let fields: serde_json::Map<_, _> =
        (0..20).map(|field| (format!("field_{field:02}"), kinds[field % kinds.len()].clone())).collect();
    let required: Vec<&String> = fields.keys().collect();
    json!({"type": "object", "properties": fields, "required": required, "additionalProperties": false}).to_string()
}

fn request(rid: &str, constraint: Option<&Constraint>, temperature: f32) -> ServingGenerate {
    ServingGenerate {
        sampling_params: SamplingParams {
            temperature,
            max_tokens: MAX_TOKENS,
            seed: Some(1),
            ..SamplingParams::default()
        },
        constraint: constraint.cloned(),
        ..ServingGenerate::new(rid, (0..PROMPT_LEN).map(|position| 33 + position % 90).collect())
    }
}

/// Milliseconds per step of `size` requests that decode, after a step that encodes their prompts.
fn ms_per_step(
    engine: &mut Engine,
    size: usize,
    constraint: Option<&Constraint>,
    temperature: f32,
) -> Result<f64, Box<dyn Error>> {
    let requests = (0..size).map(|rid| ServingCommand::Generate(request(&rid.to_string(), constraint, temperature)));
    let mut events = engine.tick(requests.collect());
    while engine.stats().waiting > 0 || (engine.stats().running as usize) < size {
        events.extend(engine.tick(Vec::new()));
    }
    let (before, started) = (engine.stats().steps, Instant::now());
    for _ in 0..N_STEPS {
        events.extend(engine.tick(Vec::new()));
    }
    let (after, seconds) = (engine.stats().steps, started.elapsed().as_secs_f64());
    abort(engine, size);
    if let Some(error) = errors(&events) {
        return Err(error.into());
    }
    Ok(1e3 * seconds / (after - before) as f64)
}

fn abort(engine: &mut Engine, size: usize) {
    let rids = (0..size).map(|rid| rid.to_string()).chain(["first".to_owned()]);
    engine.tick(rids.map(|rid| ServingCommand::Abort { rid }).collect());
}

fn errors(events: &[ServingEvent]) -> Option<String> {
    events.iter().find_map(|event| match event {
        ServingEvent::Error(error) => Some(error.message.clone()),
        _ => None,
    })
}
