//! Milliseconds per step with a constraint beside those without, in turn on one engine; or decisions beside answers of one token.
//!
//! `cargo run --release -p diffulex-workbench --bin constrained_cost -- MODEL_FOLDER [int8|int4] [--rounds N] [--block-size N] [--temperature T]
//! [--decisions] [N_REQUESTS ...]`. The constraint is a schema of 20 fields; all requests of a round are alike. Compiling is not part
//! of a step; its time is printed apart. `--decisions` asks questions of 16 tokens about one input of 256, which is in the prefix
//! cache: by scoring three labels, and by writing one of the same three tokens under a constraint.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::time::Instant;

use diffulex_engine::{Engine, EngineOptions, ModelFiles, Quantization, ServingEngine};
use diffulex_protocol::{Constraint, SamplingParams, ServingCommand, ServingEvent, ServingGenerate};

const USAGE: &str = "usage: constrained_cost MODEL_FOLDER [int8|int4] [--rounds N] [--block-size N] [--temperature T] [--decisions] \
                     [N_REQUESTS ...]";

/// Twenty fields of several kinds, as an extraction has them.
const SCHEMA: &str = include_str!("../twenty_fields.json");

/// Tokens of a prompt and the most of an answer.
const PROMPT_LEN: u32 = 64;
const MAX_TOKENS: u32 = 512;

/// Steps of a round: an answer of random weights is as long as its limit, and a tenth of it is enough for a mean.
const N_STEPS: usize = 40;

/// Tokens of what questions are about, and of a question.
const INPUT_LEN: u32 = 256;
const QUESTION_LEN: u32 = 16;

/// Letters that stand for the options, and their ids in the vocabularies of `checkpoint.py` and of Qwen.
const LABELS: [(&str, u32); 3] = [("A", 32), ("B", 33), ("C", 34)];

/// Measurements of a round.
#[derive(Clone, Copy)]
struct Measured {
    /// Milliseconds of a step, or of a token that answers.
    ms: f64,
    /// Tokens per second.
    rate: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or(USAGE)?;
    let mut options = EngineOptions { prefix_caching: false, ..EngineOptions::default() };
    let (mut n_rounds, mut temperature, mut decisions, mut sizes) = (9, 0.0, false, Vec::new());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match argument.as_str() {
            "int8" => options.quantization = Quantization::Int8,
            "int4" => options.quantization = Quantization::Int4,
            "--rounds" => n_rounds = value()?.parse()?,
            "--block-size" => options.block_size = Some(value()?.parse()?),
            "--temperature" => temperature = value()?.parse()?,
            "--decisions" => decisions = true,
            size => sizes.push(size.parse::<usize>()?),
        }
    }
    if sizes.is_empty() {
        sizes = if decisions { vec![1, 8, 64] } else { vec![1, 8, 32] };
    }
    options.prefix_caching = decisions;
    let mut bench = Bench {
        engine: Engine::load(&ModelFiles::folder(folder)?, &options, &mut |_| {})?,
        n_asked: 0,
        per_step: !decisions,
    };
    let [first, second] = if decisions { [one_token(), decision()] } else { [free(temperature), schema(temperature)] };
    if decisions {
        bench.answers(1, &first)?;
        println!(
            "requests  one token, ms  decision, ms  ratio (range)           tokens/s (range)        decisions/s (range)"
        );
    } else {
        println!("compiled, with the vocabulary, in {:.0} ms", bench.ms_to_admit(&second)?);
        println!(
            "requests  free ms/step  constrained   ratio (range)           free tokens/s (range)   constrained (range)"
        );
    }
    for size in sizes {
        let mut rounds = Vec::with_capacity(n_rounds);
        for _ in 0..n_rounds {
            rounds.push((bench.round(size, &first)?, bench.round(size, &second)?));
        }
        let spread = |value: fn(&(Measured, Measured)) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            (values[values.len() / 2], values[0], values[values.len() - 1])
        };
        let ((free, ..), (constrained, ..)) = (spread(|round| round.0.ms), spread(|round| round.1.ms));
        let (ratio, least, most) = spread(|round| round.1.ms / round.0.ms);
        let ratio = format!("{ratio:.3} ({least:.3} to {most:.3})");
        let [before, after] = [spread(|round| round.0.rate), spread(|round| round.1.rate)]
            .map(|(rate, least, most)| format!("{rate:.2} ({least:.2} to {most:.2})"));
        println!("{size:8}  {free:13.2}  {constrained:12.2}  {ratio:22}  {before:22}  {after}");
    }
    Ok(())
}

fn free(temperature: f32) -> ServingGenerate {
    ServingGenerate {
        sampling_params: SamplingParams {
            temperature,
            max_tokens: MAX_TOKENS,
            seed: Some(1),
            ..SamplingParams::default()
        },
        ..ServingGenerate::new("", (0..PROMPT_LEN).map(|position| 33 + position % 90).collect())
    }
}

fn schema(temperature: f32) -> ServingGenerate {
    ServingGenerate { constraint: Some(Constraint::JsonSchema(SCHEMA.to_owned())), ..free(temperature) }
}

/// The input without a question.
fn asked() -> ServingGenerate {
    ServingGenerate {
        sampling_params: SamplingParams { temperature: 0.0, max_tokens: 1, ..SamplingParams::default() },
        ..ServingGenerate::new("", (0..INPUT_LEN).map(|position| 33 + position % 90).collect())
    }
}

fn one_token() -> ServingGenerate {
    let options = LABELS.iter().map(|(letter, _)| (*letter).to_owned());
    ServingGenerate { constraint: Some(Constraint::Choice(options.collect())), ..asked() }
}

fn decision() -> ServingGenerate {
    ServingGenerate { labels: LABELS.iter().map(|(_, id)| *id).collect(), ..asked() }
}

struct Bench {
    engine: Engine,
    /// Questions so far: no two are alike.
    n_asked: u32,
    /// A round is some steps of long answers; otherwise it is whole answers of one token.
    per_step: bool,
}

impl Bench {
    fn round(&mut self, size: usize, request: &ServingGenerate) -> Result<Measured, Box<dyn Error>> {
        if self.per_step { self.steps(size, request) } else { self.answers(size, request) }
    }

    /// Steps of `size` requests that decode, after a step that encodes their prompts.
    fn steps(&mut self, size: usize, request: &ServingGenerate) -> Result<Measured, Box<dyn Error>> {
        let named = |rid: usize| ServingGenerate { rid: rid.to_string(), ..request.clone() };
        let mut events = self.engine.tick((0..size).map(|rid| ServingCommand::Generate(named(rid))).collect());
        while self.engine.stats().waiting > 0 || (self.engine.stats().running as usize) < size {
            events.extend(self.engine.tick(Vec::new()));
        }
        let (before, started) = (self.engine.stats(), Instant::now());
        for _ in 0..N_STEPS {
            events.extend(self.engine.tick(Vec::new()));
        }
        let (after, seconds) = (self.engine.stats(), started.elapsed().as_secs_f64());
        self.abort(size);
        check(&events)?;
        Ok(Measured {
            ms: 1e3 * seconds / (after.steps - before.steps) as f64,
            rate: (after.decided_positions - before.decided_positions) as f64 / seconds,
        })
    }

    /// `size` questions that come at once, until the last of them is answered.
    fn answers(&mut self, size: usize, request: &ServingGenerate) -> Result<Measured, Box<dyn Error>> {
        let questions = (0..size).map(|rid| {
            self.n_asked += 1;
            // Its number, in digits of base 90.
            let question = (0..QUESTION_LEN).map(|place| 33 + self.n_asked / 90u32.pow(place.min(4)) % 90);
            let prompt = request.prompt.iter().copied().chain(question).collect();
            ServingCommand::Generate(ServingGenerate { rid: rid.to_string(), prompt, ..request.clone() })
        });
        let commands = questions.collect();
        let started = Instant::now();
        let mut events = self.engine.tick(commands);
        while self.engine.has_work() {
            events.extend(self.engine.tick(Vec::new()));
        }
        let seconds = started.elapsed().as_secs_f64();
        check(&events)?;
        let n_replies = events.iter().filter(|event| matches!(event, ServingEvent::Reply(_))).count();
        if n_replies != size {
            return Err(format!("{n_replies} of {size} questions were answered").into());
        }
        Ok(Measured { ms: 1e3 * seconds / size as f64, rate: size as f64 / seconds })
    }

    /// Milliseconds until a request is admitted: its constraint is compiled then.
    fn ms_to_admit(&mut self, request: &ServingGenerate) -> Result<f64, Box<dyn Error>> {
        let started = Instant::now();
        self.engine.tick(vec![ServingCommand::Generate(ServingGenerate { rid: "0".to_owned(), ..request.clone() })]);
        while self.engine.stats().running == 0 {
            check(&self.engine.tick(Vec::new()))?;
        }
        let ms = started.elapsed().as_secs_f64() * 1e3;
        self.abort(1);
        Ok(ms)
    }

    fn abort(&mut self, size: usize) {
        self.engine.tick((0..size).map(|rid| ServingCommand::Abort { rid: rid.to_string() }).collect());
    }
}

fn check(events: &[ServingEvent]) -> Result<(), Box<dyn Error>> {
    let errors = events.iter().find_map(|event| match event {
        ServingEvent::Error(error) => Some(error.message.clone()),
        _ => None,
    });
    errors.map_or(Ok(()), |message| Err(message.into()))
}
