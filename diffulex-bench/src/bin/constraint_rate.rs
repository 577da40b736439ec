//! Milliseconds per step of a chat while other requests come with a new constraint each, beside those without them, in turn.
//!
//! `cargo run --release -p diffulex-workbench --bin constraint_rate -- MODEL_FOLDER [--rounds N] [--per-second N] [SOURCE ...]`. The
//! sources of constraints: `random` schemas; schemas of 20 `counted` strings, each of which takes far longer than its turn;
//! `hostile` patterns, deep nesting and thousands of values; `large` schemas, nearly as large as a schema may be, and `oversized`
//! ones, nearly as large as a body may be. None of those requests is decoded: their limit is one token, for which they are refused
//! once their constraint is compiled, if it can be.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

use diffulex_constraints::testing::{Dice, schema};
use diffulex_engine::{Engine, EngineOptions, ModelFiles, ServingEngine};
use diffulex_protocol::{Constraint, SamplingParams, ServingCommand, ServingEvent, ServingGenerate};
use serde_json::json;

const USAGE: &str =
    "usage: constraint_rate MODEL_FOLDER [--rounds N] [--per-second N] [random|counted|hostile|large|oversized ...]";

/// Time of a measurement. Chosen by us: some hundred steps of a small model.
const ROUND: Duration = Duration::from_secs(2);

/// Time in which a constraint that is compiled when a round ends is finished.
const REST: Duration = Duration::from_secs(1);

/// Tokens of a prompt and of an answer.
const PROMPT_LEN: u32 = 16;
const MAX_TOKENS: u32 = 128;

/// Bytes of schemas: nearly as many as a schema may have, and as a body may have.
const LARGE: usize = 1_000_000;
const OVERSIZED: usize = 4_000_000;

/// Makes the constraint of the request with this number.
type Source = fn(u64) -> Constraint;

const SOURCES: [(&str, Source); 5] =
    [("random", random), ("counted", counted), ("hostile", hostile), ("large", large), ("oversized", oversized)];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or(USAGE)?;
    let (mut n_rounds, mut per_second, mut sources) = (9, 100, Vec::new());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match argument.as_str() {
            "--rounds" => n_rounds = value()?.parse()?,
            "--per-second" => per_second = value()?.parse()?,
            name => sources.push(*SOURCES.iter().find(|(known, _)| *known == name).ok_or(USAGE)?),
        }
    }
    if sources.is_empty() {
        sources = SOURCES.to_vec();
    }
    let options = EngineOptions { prefix_caching: false, ..EngineOptions::default() };
    let engine = Engine::load(&ModelFiles::folder(folder)?, &options, &mut |_| {})?;
    let mut chat = Chat { engine, n_sent: 0, n_compiled: 0, n_refused: 0 };
    chat.steps(None)?;
    println!("constraints  alone ms/step  beside ms/step  ratio (range)           sent  compiled  refused  MB in use");
    for (name, constraint) in sources {
        let mut rounds = Vec::with_capacity(n_rounds);
        (chat.n_sent, chat.n_compiled, chat.n_refused) = (0, 0, 0);
        for _ in 0..n_rounds {
            let alone = chat.steps(None)?;
            let beside = chat.steps(Some((per_second, constraint)))?;
            chat.rest();
            rounds.push((alone, beside, beside / alone));
        }
        let median = |value: fn(&(f64, f64, f64)) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            (values[values.len() / 2], values[0], values[values.len() - 1])
        };
        let ((alone, ..), (beside, ..), (ratio, least, most)) =
            (median(|round| round.0), median(|round| round.1), median(|round| round.2));
        let (Chat { n_sent, n_compiled, n_refused, .. }, mb) = (&chat, resident_mb()?);
        println!(
            "{name:11}  {alone:13.3}  {beside:14.3}  {ratio:.3} ({least:.3} to {most:.3})  {n_sent:6}  {n_compiled:8}  {n_refused:7}  {mb:9}"
        );
    }
    Ok(())
}

/// An engine with one request that is decoded.
struct Chat {
    engine: Engine,
    /// Requests with a constraint.
    n_sent: u64,
    /// Those of them whose constraint was compiled.
    n_compiled: u64,
    /// Those whose constraint was refused.
    n_refused: u64,
}

impl Chat {
    /// Mean milliseconds per step over [`ROUND`], with requests that come at a rate.
    fn steps(&mut self, others: Option<(u64, Source)>) -> Result<f64, Box<dyn Error>> {
        // Made before the clock starts: that is not the engine's work.
        let (per_second, constraint) = others.unwrap_or((0, random));
        let numbers = self.n_sent..self.n_sent + ROUND.as_secs() * per_second;
        let mut others: VecDeque<ServingCommand> = numbers
            .map(|number| {
                let params = SamplingParams { max_tokens: 1, ..SamplingParams::default() };
                generate(number.to_string(), params, Some(constraint(number)))
            })
            .collect();
        let (started, steps_before, sent_before) = (Instant::now(), self.engine.stats().steps, self.n_sent);
        while started.elapsed() < ROUND {
            let mut commands = Vec::new();
            if self.engine.stats().running == 0 {
                let params = SamplingParams { max_tokens: MAX_TOKENS, ignore_eos: true, ..SamplingParams::default() };
                commands.push(generate("chat".to_owned(), params, None));
            }
            let due = started.elapsed().as_millis() as u64 * per_second / 1000;
            while self.n_sent - sent_before < due
                && let Some(command) = others.pop_front()
            {
                commands.push(command);
                self.n_sent += 1;
            }
            for event in self.engine.tick(commands) {
                if let ServingEvent::Error(error) = event {
                    match error.param.as_deref() {
                        Some("max_tokens") => self.n_compiled += 1,
                        Some("constraint") => self.n_refused += 1,
                        Some(_) | None => return Err(error.message.into()),
                    }
                }
            }
        }
        let n_steps = self.engine.stats().steps - steps_before;
        Ok(1e3 * started.elapsed().as_secs_f64() / n_steps as f64)
    }

    /// Aborts the requests that wait for their constraints.
    fn rest(&mut self) {
        let rids = (0..self.n_sent).map(|rid| rid.to_string());
        self.engine.tick(rids.map(|rid| ServingCommand::Abort { rid }).collect());
        std::thread::sleep(REST);
    }
}

fn generate(rid: String, sampling_params: SamplingParams, constraint: Option<Constraint>) -> ServingCommand {
    let prompt = (0..PROMPT_LEN).map(|position| 33 + position % 90).collect();
    ServingCommand::Generate(ServingGenerate { sampling_params, constraint, ..ServingGenerate::new(rid, prompt) })
}

/// No value of these is one token.
fn random(seed: u64) -> Constraint {
    let mut inner = schema(&mut Dice(seed), 1);
    // References name what is defined at the root.
    let definitions = ["$defs", "definitions"].map(|folder| (folder, inner[folder].take()));
    let mut root = object(&[(format!("field_{seed}"), inner)]);
    for (folder, definitions) in definitions.into_iter().filter(|(_, definitions)| !definitions.is_null()) {
        root[folder] = definitions;
    }
    Constraint::JsonSchema(root.to_string())
}

fn counted(seed: u64) -> Constraint {
    let text = json!({"type": "string", "maxLength": 50});
    let fields: Vec<_> = (0..20).map(|field| (format!("field_{seed}_{field}"), text.clone())).collect();
    Constraint::JsonSchema(object(&fields).to_string())
}

/// In turn: a pattern whose automaton has 16 million states, another of 20 MB, 60 levels of objects, 5,000 values.
fn hostile(seed: u64) -> Constraint {
    match seed % 4 {
        0 => Constraint::Regex(format!("{seed}[ab]*a[ab]{{24}}")),
        1 => Constraint::Regex(format!("{seed}.{{0,5000}}")),
        2 => {
            let inner = json!({"type": "integer"});
            let nested = (0..60).fold(inner, |inner, level| object(&[(format!("field_{seed}_{level}"), inner)]));
            Constraint::JsonSchema(nested.to_string())
        }
        _ => {
            let values: Vec<String> = (0..5000).map(|value| format!("value {seed} {value}")).collect();
            Constraint::JsonSchema(json!({"enum": values}).to_string())
        }
    }
}

fn large(seed: u64) -> Constraint {
    titled(seed, LARGE)
}

fn oversized(seed: u64) -> Constraint {
    titled(seed, OVERSIZED)
}

fn titled(seed: u64, n_bytes: usize) -> Constraint {
    let title = format!("{seed}") + &"x".repeat(n_bytes);
    Constraint::JsonSchema(json!({"title": title, "type": "object", "properties": {}}).to_string())
}

fn object(fields: &[(String, serde_json::Value)]) -> serde_json::Value {
    let required: Vec<&String> = fields.iter().map(|(name, _)| name).collect();
    let properties: serde_json::Map<String, serde_json::Value> = fields.iter().cloned().collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// Memory in use, in MB: `VmRSS` of proc_pid_status(5).
fn resident_mb() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? >> 10)
}
