//! The `generate` subcommand: one answer in the terminal, with the denoising in plain sight when it is one.
//!
//! In: a prompt. Out: the answer on standard output, a line of figures on standard error. Frames are paced, so that eyes
//! can follow a fast model. Never here: HTTP.

use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use diffulex_engine::{EngineOptions, ModelFiles, TextModel};
use diffulex_protocol::{
    ChatMessage, ErrorCode, FinishReason, SamplingParams, ServingError, ServingInput, ServingReply, StreamMode,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::banner::counted;
use crate::cli::GenerateArgs;
use crate::config::{ServerConfig, engine_options};
use crate::engine_loop::{EngineFactory, EngineLoop, EngineLoopError};
use crate::frontend::{EventStream, StreamEvent, Submission, SubmitError};
use crate::launch::LaunchError;
use crate::sampling_defaults::sampling_defaults;
use crate::terminal::{Abilities, Screen};
use crate::{demo, launch, log};

/// A failure of the `generate` subcommand.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// Flags, log, model or runtime are wrong or missing, as for a server.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The engine cannot be started.
    #[error(transparent)]
    Engine(#[from] EngineLoopError),
    /// The prompt is missing or wrong.
    #[error("{0}")]
    Prompt(String),
    /// The request was not accepted.
    #[error("{}", without_field_name(.0))]
    Refused(#[from] SubmitError),
    /// The request failed.
    #[error("{}", .0.message)]
    Failed(ServingError),
    /// The request ended with neither an answer nor an error.
    #[error("the request ended without an answer")]
    NoAnswer,
    /// The answer cannot be written.
    #[error("cannot write the answer: {0}")]
    Output(#[from] std::io::Error),
}

/// Writes one answer.
pub fn generate(args: &GenerateArgs) -> Result<(), GenerateError> {
    let _log = log::init(&args.log_level, log::LogFormat::Text).map_err(LaunchError::from)?;
    let prompt = prompt_of(args)?;
    launch::runtime()?.block_on(run(args, prompt))
}

async fn run(args: &GenerateArgs, prompt: String) -> Result<(), GenerateError> {
    let Model { files, options, text, sampling } = model_of(args)?;
    let config = ServerConfig { engine: options.clone(), request_timeout_seconds: 0.0, ..ServerConfig::default() };
    let factory: EngineFactory = Arc::new(move || launch::load_engine(&files, &options));
    let engine = EngineLoop::start(factory, text, config.frontend_options()).await?;

    let abilities = Abilities::of_environment();
    let is_shown = std::io::stdout().is_terminal() && abilities.moves_cursor;
    let started = Instant::now();
    let submission = submission(args, sampling, prompt, is_shown);
    let mut streams = engine.frontend().submit(submission).await?;
    let stream = streams.pop().ok_or(GenerateError::NoAnswer)?;
    let (reply, finished) =
        if is_shown { show(stream, args.fps, abilities).await? } else { print_plain(stream).await? };
    print_figures(&reply, finished - started);
    engine.stop(Duration::ZERO).await;
    Ok(())
}

struct Model {
    files: ModelFiles,
    options: EngineOptions,
    text: TextModel,
    /// Sampling that the command line does not name.
    sampling: SamplingParams,
}

fn model_of(args: &GenerateArgs) -> Result<Model, LaunchError> {
    let files = demo::model_files(args.engine.model.as_deref())?;
    let options = engine_options(&args.engine)?;
    let text = TextModel::load(&files)?;
    let sampling = sampling_defaults(&files, args.engine.generation_config.unwrap_or_default())?;
    Ok(Model { files, options, text, sampling })
}

fn submission(args: &GenerateArgs, defaults: SamplingParams, prompt: String, is_shown: bool) -> Submission {
    let input = if args.raw {
        ServingInput::text(prompt)
    } else {
        ServingInput::Chat { messages: vec![ChatMessage { role: "user".to_owned(), content: prompt }] }
    };
    Submission {
        sampling_params: SamplingParams {
            max_tokens: args.max_tokens.unwrap_or(defaults.max_tokens),
            temperature: args.temperature.unwrap_or(defaults.temperature),
            seed: args.seed,
            ..defaults
        },
        stream: is_shown,
        stream_mode: StreamMode::Denoise,
        fills_masks: args.raw,
        ..Submission::new("generate", input)
    }
}

/// Prints the answer; the reply, and when it was complete.
async fn print_plain(mut stream: EventStream) -> Result<(ServingReply, Instant), GenerateError> {
    while let Some(event) = stream.next_event().await {
        match event {
            StreamEvent::Reply(reply) => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{}", reply.text)?;
                return Ok((*reply, Instant::now()));
            }
            StreamEvent::Error(error) => return Err(GenerateError::Failed(error)),
            StreamEvent::Delta(_) | StreamEvent::Snapshot(_) => {}
        }
    }
    Err(GenerateError::NoAnswer)
}

/// Draws every snapshot over the one before it; the reply, and when it was complete, which is before it is drawn.
async fn show(
    mut stream: EventStream,
    fps: f64,
    abilities: Abilities,
) -> Result<(ServingReply, Instant), GenerateError> {
    let pause = if fps > 0.0 { Duration::from_secs_f64(1.0 / fps.max(0.1)) } else { Duration::ZERO };
    // Unread snapshots merge, and eyes are slower than the model: a task of its own reads each step as it comes.
    let (steps, mut paced) = mpsc::unbounded_channel();
    let reading = tokio::spawn(async move {
        while let Some(event) = stream.next_event().await {
            if steps.send(event).is_err() {
                break;
            }
        }
        Instant::now()
    });
    let mut screen = Screen::new(abilities);
    let mut next_frame = Instant::now();
    let mut outcome = Err(GenerateError::NoAnswer);
    while let Some(event) = paced.recv().await {
        sleep_until(next_frame).await;
        next_frame = Instant::now() + pause;
        match event {
            StreamEvent::Snapshot(snapshot) => screen.draw(&snapshot)?,
            StreamEvent::Reply(reply) => {
                screen.finish(&reply.text)?;
                outcome = Ok(*reply);
            }
            StreamEvent::Error(error) => outcome = Err(GenerateError::Failed(error)),
            StreamEvent::Delta(_) => {}
        }
    }
    let finished = reading.await.map_err(std::io::Error::from)?;
    outcome.map(|reply| (reply, finished))
}

/// The prompt as given, or from standard input if it is `-`, or missing and standard input is a pipe.
fn prompt_of(args: &GenerateArgs) -> Result<String, GenerateError> {
    let prompt = match args.prompt.as_deref() {
        Some("-") => read_prompt(std::io::stdin().lock())?,
        Some(prompt) => prompt.to_owned(),
        None if !std::io::stdin().is_terminal() => read_prompt(std::io::stdin().lock())?,
        None => {
            let problem = "there is no prompt: give one, as in `generate \"Hello\"`, or pipe it in";
            return Err(GenerateError::Prompt(problem.to_owned()));
        }
    };
    if prompt.trim().is_empty() {
        return Err(GenerateError::Prompt("the prompt is empty".to_owned()));
    }
    Ok(prompt)
}

/// All of `input`, without the line break that every `echo` ends with.
fn read_prompt(input: impl Read) -> Result<String, GenerateError> {
    // As much as the server takes in a request.
    let max_bytes = ServerConfig::default().max_body_bytes;
    let wrong = |what: &dyn std::fmt::Display| GenerateError::Prompt(format!("the prompt on standard input: {what}"));
    let mut bytes = Vec::new();
    input.take(max_bytes as u64 + 1).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
    if bytes.len() > max_bytes {
        return Err(wrong(&format_args!("it has more than {max_bytes} bytes")));
    }
    let mut prompt = String::from_utf8(bytes).map_err(|_| wrong(&"it is no text in UTF-8"))?;
    let n_kept = prompt.strip_suffix('\n').map_or(prompt.len(), |line| line.trim_end_matches('\r').len());
    prompt.truncate(n_kept);
    Ok(prompt)
}

/// An error of the front end without the name of a field, because the user sent none.
fn without_field_name(error: &SubmitError) -> String {
    let message = error.to_string();
    let field = ["messages: ", "prompt: "].into_iter().find(|field| message.contains(field));
    let is_long = matches!(error, SubmitError::Request(error) if error.code == ErrorCode::ContextLengthExceeded);
    match field.filter(|_| is_long) {
        Some(field) => format!("the prompt is too long: {}", message.replacen(field, "It has ", 1)),
        None => message,
    }
}

/// The finish reason in words.
fn reason(finish_reason: FinishReason) -> &'static str {
    match finish_reason {
        FinishReason::EosTokenGenerated => "stopped at its end token",
        FinishReason::StopString => "stopped at a stop string",
        FinishReason::MaxNewTokensReached => "stopped at --max-tokens",
        FinishReason::MaxModelLenReached => "stopped at the longest text the model takes",
        FinishReason::MaxNfeReached => "stopped at the most forwards it may take",
        FinishReason::MaxRepetitionRunReached => "stopped as it repeated itself",
        FinishReason::Aborted => "stopped before its end",
    }
}

fn print_figures(reply: &ServingReply, elapsed: Duration) {
    let n_tokens = reply.written_tokens();
    let seconds = elapsed.as_secs_f64();
    let line = format!(
        "{} in {}, {seconds:.2} s, {:.0} tokens/s, {}{}\n",
        counted(n_tokens, "token"),
        counted(reply.nfe, "forward"),
        f64::from(n_tokens) / seconds.max(1e-9),
        reason(reply.finish_reason),
        reply.seed.map(|seed| format!(", seed {seed}")).unwrap_or_default()
    );
    // A closed standard error is no reason to fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_loses_one_line_break_at_its_end() {
        for (input, prompt) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a\nb", "a\nb"), ("", "")] {
            assert_eq!(read_prompt(input.as_bytes()).expect("text"), prompt, "{input:?}");
        }
    }

    #[test]
    fn a_prompt_without_end_is_refused() {
        assert!(
            read_prompt(std::io::repeat(b'a'))
                .is_err_and(|error| error.to_string().contains("more than 4194304 bytes"))
        );
    }
}
