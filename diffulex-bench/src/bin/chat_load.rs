//! Chats at a running server, one at a time and many at once, in turn, and what each way gives.
//!
//! `cargo run --release -p diffulex-workbench --bin chat_load -- [URL] [CLIENTS] [ROUNDS]`. Each client asks short questions one after the
//! other, streaming; all rounds ask the same. Prints the median over the rounds, with its range.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;

/// Length of one round. Chosen by us: hundreds of answers, and short enough to alternate often.
const ROUND: Duration = Duration::from_secs(3);

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "http://127.0.0.1:8000".to_owned());
    let n_clients: usize = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let n_rounds: usize = arguments.next().map_or(Ok(7), |text| text.parse())?;
    // reqwest is built without a choice of cryptography, and makes no client before there is one.
    rustls::crypto::ring::default_provider().install_default().map_err(|_| "the cryptography is chosen already")?;
    let client = reqwest::Client::new();
    // The first answers touch cold memory.
    round(&client, &url, n_clients).await?;
    let (mut single, mut many) = (Vec::new(), Vec::new());
    for _ in 0..n_rounds {
        single.push(round(&client, &url, 1).await?);
        many.push(round(&client, &url, n_clients).await?);
    }
    println!("clients  tokens/s (range)        answers/s  first frame p50, p99 ms  least and most answers of a client");
    let one = report(1, &single);
    let all = report(n_clients, &many);
    let mut ratios: Vec<f64> = single.iter().zip(&many).map(|(one, many)| many.tokens / one.tokens).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "{n_clients} clients give {:.1} times the tokens/s of one ({:.1} to {:.1}; {all:.0} / {one:.0})",
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1],
    );
    Ok(())
}

/// Results of one round.
struct Round {
    /// Per second.
    tokens: f64,
    /// Per second.
    answers: f64,
    /// Milliseconds, ascending.
    first_frames: Vec<f64>,
    /// Answers of the client that got the fewest, and the most.
    fairness: (usize, usize),
}

fn report(n_clients: usize, rounds: &[Round]) -> f64 {
    let median = |of: &dyn Fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        (values[values.len() / 2], values[0], values[values.len() - 1])
    };
    let (tokens, least, most) = median(&|round| round.tokens);
    let (answers, ..) = median(&|round| round.answers);
    let percentile =
        |share: f64| median(&|round| round.first_frames[((round.first_frames.len() - 1) as f64 * share) as usize]).0;
    let fewest = rounds.iter().map(|round| round.fairness.0).min().unwrap_or_default();
    let most_answers = rounds.iter().map(|round| round.fairness.1).max().unwrap_or_default();
    println!(
        "{n_clients:7}  {tokens:8.0} ({least:.0} to {most:.0})  {answers:9.0}  {:.1}, {:.1}  {fewest} and {most_answers}",
        percentile(0.5),
        percentile(0.99),
    );
    tokens
}

async fn round(client: &reqwest::Client, url: &str, n_clients: usize) -> Result<Round, Failure> {
    let started = Instant::now();
    let n_tokens = Arc::new(AtomicUsize::new(0));
    let clients = (0..n_clients).map(|index| {
        let (client, url, n_tokens) = (client.clone(), url.to_owned(), Arc::clone(&n_tokens));
        tokio::spawn(async move {
            let (mut n_answers, mut first_frames) = (0, Vec::new());
            while started.elapsed() < ROUND {
                let (tokens, first_frame) = chat(&client, &url, index * 31 + n_answers).await?;
                n_tokens.fetch_add(tokens, Ordering::Relaxed);
                first_frames.push(first_frame);
                n_answers += 1;
            }
            Ok::<_, Failure>((n_answers, first_frames))
        })
    });
    let finished = join_all(clients).await;
    let seconds = started.elapsed().as_secs_f64();
    let (mut first_frames, mut answers) = (Vec::new(), Vec::new());
    for finished in finished {
        let (n_answers, frames) = finished??;
        answers.push(n_answers);
        first_frames.extend(frames);
    }
    first_frames.sort_by(f64::total_cmp);
    Ok(Round {
        tokens: n_tokens.load(Ordering::Relaxed) as f64 / seconds,
        answers: answers.iter().sum::<usize>() as f64 / seconds,
        first_frames,
        fairness: (answers.iter().copied().min().unwrap_or(0), answers.iter().copied().max().unwrap_or(0)),
    })
}

/// One streamed answer: its tokens, and the milliseconds to the first frame that carries text.
async fn chat(client: &reqwest::Client, url: &str, number: usize) -> Result<(usize, f64), Failure> {
    let (a, b) = (number % 90 + 10, number * 7 % 90 + 10);
    let question = match number % 4 {
        0 => format!("{a} + {b} = ?"),
        1 => format!("count from {} to {}", a % 9, a % 9 + 8),
        2 => format!("Sort these numbers: {b}, {a}, {}, {}", a + 3, b + 9),
        _ => "Tell me a story.".to_owned(),
    };
    let body = serde_json::json!({
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 64,
        "stream": true,
        "stream_mode": "denoise",
        "stream_options": {"include_usage": true},
    });
    let started = Instant::now();
    let mut response =
        client.post(format!("{url}/v1/chat/completions")).json(&body).send().await?.error_for_status()?;
    let (mut first_frame, mut text) = (None, Vec::new());
    while let Some(chunk) = response.chunk().await? {
        // The first chunk only names the role.
        if first_frame.is_none() && (!text.is_empty() || chunk.len() > 600) {
            first_frame = Some(started.elapsed().as_secs_f64() * 1e3);
        }
        text.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(text)?;
    let usage = text.lines().rev().find(|line| line.contains("\"completion_tokens\"")).ok_or("no usage came")?;
    let usage: serde_json::Value = serde_json::from_str(usage.trim_start_matches("data: "))?;
    let tokens = usage["usage"]["completion_tokens"].as_u64().ok_or("usage has no completion_tokens")?;
    Ok((tokens as usize, first_frame.unwrap_or_else(|| started.elapsed().as_secs_f64() * 1e3)))
}
