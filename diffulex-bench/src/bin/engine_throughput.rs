//! Tokens per second of the engine alone, for one and for many requests at once.
//!
//! `cargo run --release -p diffulex-workbench --bin engine_throughput -- MODEL_FOLDER [int8|int4] [N_REQUESTS ...]`, on the
//! device that `--device auto` takes.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::time::Instant;

use diffulex_engine::{ChatMessage, Engine, EngineOptions, ModelFiles, Quantization, ServingEngine, TextModel};
use diffulex_protocol::{SamplingParams, ServingCommand, ServingEvent, ServingGenerate};

/// Rounds of each size; the median is printed.
const N_ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let folder = arguments.next().ok_or("usage: engine_throughput MODEL_FOLDER [int8|int4] [N_REQUESTS ...]")?;
    let quantization = match arguments.peek().map(String::as_str) {
        Some("int8") => Quantization::Int8,
        Some("int4") => Quantization::Int4,
        _ => Quantization::None,
    };
    if quantization != Quantization::None {
        arguments.next();
    }
    let mut sizes = arguments.map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
    if sizes.is_empty() {
        sizes = vec![1, 4, 8, 16, 32];
    }
    let options = EngineOptions { prefix_caching: false, quantization, ..EngineOptions::default() };
    let files = ModelFiles::folder(folder)?;
    let text = TextModel::load(&files)?;
    let mut engine = Engine::load(&files, &options, &mut |_| {})?;
    println!("requests  tokens/s  ms/step  rows/step  tokens/forward");
    for size in sizes {
        let mut rounds = Vec::with_capacity(N_ROUNDS);
        for _ in 0..N_ROUNDS {
            rounds.push(round(&mut engine, &text, size));
        }
        rounds.sort_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second));
        let Round { tokens_per_second, ms_per_step, rows_per_step, tokens_per_forward } = rounds[N_ROUNDS / 2];
        println!(
            "{size:8}  {tokens_per_second:8.0}  {ms_per_step:7.3}  {rows_per_step:9.1}  {tokens_per_forward:14.2}"
        );
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Round {
    tokens_per_second: f64,
    ms_per_step: f64,
    rows_per_step: f64,
    tokens_per_forward: f64,
}

fn round(engine: &mut Engine, text: &TextModel, size: usize) -> Round {
    let before = engine.stats();
    let started = Instant::now();
    let requests = (0..size).map(|index| {
        let content = format!("count from {} to {}", index % 7, index % 7 + 12);
        let messages = [ChatMessage::new("user", content)];
        let prompt = text.render_chat(&messages).and_then(|chat| text.encode(&chat)).expect("a chat becomes ids");
        ServingCommand::Generate(ServingGenerate {
            sampling_params: SamplingParams {
                temperature: 0.0,
                max_tokens: 96,
                ignore_eos: true,
                ..SamplingParams::default()
            },
            ..ServingGenerate::new(index.to_string(), prompt)
        })
    });
    let mut events = engine.tick(requests.collect());
    while engine.has_work() {
        events.extend(engine.tick(Vec::new()));
    }
    let seconds = started.elapsed().as_secs_f64();
    let (mut n_tokens, mut n_forwards) = (0, 0);
    for event in events {
        if let ServingEvent::Reply(reply) = event {
            n_tokens += reply.token_ids.len();
            n_forwards += reply.nfe_counts.denoise + reply.nfe_counts.commit;
        }
    }
    let after = engine.stats();
    let n_steps = (after.steps - before.steps) as f64;
    Round {
        tokens_per_second: n_tokens as f64 / seconds,
        ms_per_step: 1e3 * seconds / n_steps,
        rows_per_step: (after.rows - before.rows) as f64 / n_steps,
        tokens_per_forward: n_tokens as f64 / f64::from(n_forwards),
    }
}
