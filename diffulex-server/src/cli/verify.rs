//! The `verify` subcommand: ten prompts on every device that is here and on the reference body, held against each other.
//!
//! In: flags of a model. Out: a report in Markdown, to be pasted into an issue. Each engine is loaded, asked and dropped before the next.
//! Never here: how a device computes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use diffulex_engine::kernels::cuda;
use diffulex_engine::{DeviceChoice, EngineOptions, LoadError, ModelFiles, ServingEngine, TextModel};
use diffulex_protocol::{
    ModelCard, Pooling, SamplingParams, ServingCommand, ServingEvent, ServingGenerate, ServingReply,
};

use crate::cli::commands::VerifyArgs;
use crate::cli::hub::fetch_named;
use crate::cli::launch::{self, LaunchError};
use crate::demo;
use crate::observe::log;
use crate::os::terminal::say;

/// The prompts: short and long, several scripts, code, digits.
const PROMPTS: [&str; 10] = [
    "The capital of France is",
    "1, 2, 3, 5, 8,",
    "def fibonacci(n):\n",
    "Translate to German: The house is small.",
    "Q: What is 12 + 30?\nA:",
    "Once upon a time, in a village by the sea, there lived a girl who could talk to the wind. One morning",
    "你好，世界",
    "{\"name\": \"Ada\", \"born\":",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy",
    "Größe: 5 €; naïve café 🙂",
];

/// Largest difference of a value of an embedding, of length 1, from the reference's. Chosen by us: ten times what sums in another order
/// change in float32; with rounded weights and activations errors of single values are larger, and mean little.
const CLOSE: f32 = 1e-3;

/// A check that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// Flags, log or model are wrong or missing, as for a server.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The report cannot be written.
    #[error("cannot write the report: {0}")]
    Output(#[from] std::io::Error),
    /// Devices differ.
    #[error("{0}")]
    Differs(String),
}

impl From<LoadError> for VerifyError {
    fn from(error: LoadError) -> Self {
        Self::Launch(error.into())
    }
}

/// What a device answered.
struct Answered {
    card: ModelCard,
    load_seconds: f64,
    seconds: f64,
    /// An answer to each prompt, or why there is none.
    answers: Vec<Result<ServingReply, String>>,
    /// The embedding of each prompt.
    embeddings: Vec<Result<Vec<f32>, String>>,
}

/// A device held against the reference.
struct Comparison {
    n_equal: usize,
    /// The first difference: prompt, token, and the reference's confidence in its own.
    first: Option<(usize, usize, f32)>,
    /// Largest difference of a value of an embedding.
    worst: f32,
}

/// Runs the check and prints the report. Fails if a device answers otherwise than the reference.
pub fn verify(args: &VerifyArgs) -> Result<(), VerifyError> {
    let _log = log::init(&args.local.log_level, log::LogFormat::Text).map_err(LaunchError::from)?;
    let config = args.local.engine.config().map_err(LaunchError::from)?;
    let config = fetch_named(config).map_err(LaunchError::from)?;
    let files = demo::model_files(config.model.as_deref())?;
    let text = TextModel::load(&files)?;
    let prompts: Result<Vec<Vec<u32>>, _> = PROMPTS.iter().map(|prompt| text.encode(prompt)).collect();
    let prompts = prompts.map_err(|error| LoadError::of("tokenizer", error))?;
    let mut devices = vec![DeviceChoice::Reference, DeviceChoice::Cpu];
    let mut outcomes = Vec::new();
    match cuda::n_devices() {
        Ok(n_devices) => devices.extend((0..n_devices).map(|index| DeviceChoice::Cuda(index as u32))),
        // As a device that does not load: the report has the driver's error.
        Err(error) => outcomes.push((DeviceChoice::Cuda(0), Err(LoadError::of("CUDA", error)))),
    }
    for device in devices {
        say(&format!("{device}: loading and answering {} prompts", prompts.len()));
        let options = EngineOptions { device, ..config.engine.clone() };
        outcomes.push((device, answers_on(&files, &options, &prompts, args.max_tokens)));
    }
    let (report, differing) = report(&config.name_of(&files), &outcomes, &text);
    std::io::stdout().write_all(report.as_bytes())?;
    if differing.is_empty() {
        return Ok(());
    }
    Err(VerifyError::Differs(format!("not as the reference: {}", differing.join(", "))))
}

fn answers_on(
    files: &ModelFiles,
    options: &EngineOptions,
    prompts: &[Vec<u32>],
    max_tokens: u32,
) -> Result<Answered, LoadError> {
    let started = Instant::now();
    let mut engine = launch::load_engine(files, options)?;
    let load_seconds = started.elapsed().as_secs_f64();
    let params = SamplingParams { max_tokens, temperature: 0.0, ignore_eos: true, ..SamplingParams::default() };
    let started = Instant::now();
    let answers = run(engine.as_mut(), prompts, |rid, prompt| ServingGenerate {
        sampling_params: params.clone(),
        ..ServingGenerate::new(rid, prompt)
    });
    let seconds = started.elapsed().as_secs_f64();
    let embeddings = run(engine.as_mut(), prompts, |rid, prompt| ServingGenerate {
        embed: Some(Pooling::Mean),
        ..ServingGenerate::new(rid, prompt)
    });
    let embeddings = embeddings.into_iter().map(|reply| reply.map(|reply| reply.embedding)).collect();
    Ok(Answered { card: engine.card().clone(), load_seconds, seconds, answers, embeddings })
}

/// Asks for each prompt, one after another, as a person would; what comes together is held against this by the tests.
fn run(
    engine: &mut dyn ServingEngine,
    prompts: &[Vec<u32>],
    request: impl Fn(String, Vec<u32>) -> ServingGenerate,
) -> Vec<Result<ServingReply, String>> {
    let mut replies = BTreeMap::new();
    for (nth, prompt) in prompts.iter().enumerate() {
        let mut commands = vec![ServingCommand::Generate(request(nth.to_string(), prompt.clone()))];
        loop {
            for event in engine.tick(std::mem::take(&mut commands)) {
                match event {
                    ServingEvent::Reply(reply) => drop(replies.insert(nth, Ok(*reply))),
                    ServingEvent::Error(error) => drop(replies.insert(nth, Err(error.message))),
                    ServingEvent::Fatal { message, .. } => drop(replies.insert(nth, Err(message))),
                    _ => {}
                }
            }
            if replies.contains_key(&nth) || !engine.has_work() {
                break;
            }
        }
    }
    let missing = || Err("no answer".to_owned());
    (0..prompts.len()).map(|nth| replies.remove(&nth).unwrap_or_else(missing)).collect()
}

impl Comparison {
    fn of(reference: &Answered, other: &Answered) -> Self {
        let mut comparison = Self { n_equal: 0, first: None, worst: 0.0 };
        for (nth, pair) in reference.answers.iter().zip(&other.answers).enumerate() {
            match pair {
                (Ok(expected), Ok(found)) => {
                    let pairs = expected.token_ids.iter().zip(&found.token_ids);
                    let differs = pairs.enumerate().find(|(_, (expected, found))| expected != found);
                    match differs {
                        None if expected.token_ids.len() == found.token_ids.len() => comparison.n_equal += 1,
                        None => comparison.note(nth, expected.token_ids.len().min(found.token_ids.len()), 1.0),
                        Some((at, _)) => {
                            comparison.note(nth, at, expected.confidences.get(at).copied().unwrap_or(1.0));
                        }
                    }
                }
                (Err(expected), Err(found)) if expected == found => comparison.n_equal += 1,
                _ => comparison.note(nth, 0, 1.0),
            }
        }
        for pair in reference.embeddings.iter().zip(&other.embeddings) {
            comparison.worst = comparison.worst.max(match pair {
                (Ok(expected), Ok(found)) if expected.len() == found.len() => {
                    let length = expected.iter().map(|value| value * value).sum::<f32>().sqrt();
                    let differences = expected.iter().zip(found).map(|(one, other)| (one - other).abs() / length);
                    differences.fold(0.0, f32::max)
                }
                (Err(expected), Err(found)) if expected == found => 0.0,
                _ => f32::INFINITY,
            });
        }
        comparison
    }

    fn note(&mut self, prompt: usize, token: usize, confidence: f32) {
        self.first.get_or_insert((prompt, token, confidence));
    }
}

/// The report, and the devices that are not as the reference.
fn report(
    name: &str,
    outcomes: &[(DeviceChoice, Result<Answered, LoadError>)],
    text: &TextModel,
) -> (String, Vec<String>) {
    let mut report = String::new();
    let mut differing = Vec::new();
    // Strings take whatever is written to them.
    let mut add = |line: String| {
        let _ = writeln!(report, "{line}");
    };
    add(format!("diffulex-server {}, model {name}", env!("CARGO_PKG_VERSION")));
    if let Some(card) = outcomes.iter().find_map(|(_, outcome)| outcome.as_ref().ok()).map(|answered| &answered.card) {
        add(format!(
            "{}, {} parameters, {}, blocks of {}",
            card.architecture, card.parameters, card.strategy, card.block_size
        ));
    }
    add("\n| device | weights | loaded in | answered in | answers as the reference's | largest difference of an embedding | first difference |".to_owned());
    add("|---|---|---|---|---|---|---|".to_owned());
    let reference = outcomes.iter().find(|(device, _)| *device == DeviceChoice::Reference);
    let reference = reference.and_then(|(_, outcome)| outcome.as_ref().ok());
    for (device, outcome) in outcomes {
        match outcome {
            Err(error) => {
                add(format!("| {device} | not run: {error} | | | | | |"));
                if *device != DeviceChoice::Reference {
                    differing.push(format!("{device} (not run)"));
                }
            }
            Ok(answered) => {
                let Answered { card, load_seconds, seconds, .. } = answered;
                let compared = reference.map(|reference| Comparison::of(reference, answered));
                let (equal, worst, first) = match &compared {
                    None => ("nothing to compare with".to_owned(), String::new(), String::new()),
                    Some(Comparison { n_equal, first, worst }) => (
                        format!("{n_equal} of {}", PROMPTS.len()),
                        format!("{worst:.1e}"),
                        first.map_or(String::new(), |(prompt, token, confidence)| {
                            format!(
                                "prompt {prompt}, token {token}, where the reference's confidence is {confidence:.4}"
                            )
                        }),
                    ),
                };
                add(format!(
                    "| {} | {} | {load_seconds:.1} s | {seconds:.1} s | {equal} | {worst} | {first} |",
                    card.device, card.dtype
                ));
                if compared.is_some_and(|compared| compared.n_equal < PROMPTS.len() || compared.worst > CLOSE) {
                    differing.push(card.device.clone());
                }
            }
        }
    }
    let shown = reference.or_else(|| outcomes.iter().find_map(|(_, outcome)| outcome.as_ref().ok()));
    if let Some(answered) = shown {
        add("\nAnswers at temperature 0:\n".to_owned());
        for (prompt, answer) in PROMPTS.iter().zip(&answered.answers) {
            let answer = answer.as_ref().map_or_else(Clone::clone, |reply| text.decode(&reply.token_ids));
            add(format!("- `{}` -> `{}`", prompt.escape_debug(), answer.escape_debug()));
        }
    }
    (report, differing)
}
