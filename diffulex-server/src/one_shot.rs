//! The `generate` subcommand: one answer in the terminal, with the denoising in plain sight when it is one.
//!
//! In: a prompt. Out: the answer on standard output, a line of figures on standard error. Frames are paced, so that eyes
//! can follow a fast model. Never here: HTTP.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use diffulex_engine::TextModel;
use diffulex_protocol::{
    ChatMessage, SamplingParams, ServingBufferSnapshot, ServingInput, ServingReply, SnapshotSpan, StreamMode,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use unicode_width::UnicodeWidthChar;

use crate::cli::GenerateArgs;
use crate::config::{ServerConfig, engine_options};
use crate::engine_loop::{EngineFactory, EngineLoop};
use crate::frontend::{EventStream, StreamEvent, Submission};
use crate::{demo, launch, telemetry};

/// Writes one answer; the error is for standard error.
pub fn generate(args: &GenerateArgs) -> Result<(), String> {
    telemetry::init_logging(&args.log_level)?;
    launch::runtime()?.block_on(run(args))
}

async fn run(args: &GenerateArgs) -> Result<(), String> {
    let files = demo::model_files(args.engine.model.as_deref()).map_err(|error| error.to_string())?;
    let options = engine_options(&args.engine).map_err(|error| error.to_string())?;
    let text = TextModel::load(&files).map_err(|error| error.to_string())?;
    let config = ServerConfig { engine: options.clone(), request_timeout_seconds: 0.0, ..ServerConfig::default() };
    let factory: EngineFactory = Arc::new(move || launch::load_engine(&files, &options));
    let engine = EngineLoop::start(factory, text, launch::frontend_options(&config)).await?;

    let is_shown = std::io::stdout().is_terminal();
    let started = Instant::now();
    let mut streams = engine.frontend().submit(submission(args, is_shown)).await.map_err(|error| error.to_string())?;
    let stream = streams.pop().ok_or("the request was not accepted")?;
    let (reply, finished) = if is_shown { show(stream, args.fps).await? } else { print_plain(stream).await? };
    tell_figures(&reply, finished - started);
    engine.stop(Duration::ZERO).await;
    Ok(())
}

fn submission(args: &GenerateArgs, is_shown: bool) -> Submission {
    let defaults = SamplingParams::default();
    let input = if args.raw {
        ServingInput::text(args.prompt.clone())
    } else {
        ServingInput::Chat { messages: vec![ChatMessage { role: "user".to_owned(), content: args.prompt.clone() }] }
    };
    Submission {
        input,
        sampling_params: SamplingParams {
            max_tokens: args.max_tokens.unwrap_or(defaults.max_tokens),
            temperature: args.temperature.unwrap_or(defaults.temperature),
            seed: args.seed,
            ..defaults
        },
        stream: is_shown,
        stream_mode: StreamMode::Denoise,
        snapshot: SnapshotSpan::Window,
        suffix: None,
        fills_masks: args.raw,
        adapter: None,
        user: None,
        n_choices: 1,
    }
}

/// Prints the answer; the reply, and when it was complete.
async fn print_plain(mut stream: EventStream) -> Result<(ServingReply, Instant), String> {
    while let Some(event) = stream.next_event().await {
        match event {
            StreamEvent::Reply(reply) => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{}", reply.text).map_err(|error| error.to_string())?;
                return Ok((*reply, Instant::now()));
            }
            StreamEvent::Error(error) => return Err(error.message),
            StreamEvent::Delta(_) | StreamEvent::Snapshot(_) => {}
        }
    }
    Err("the request ended without an answer".to_owned())
}

/// Draws every snapshot over the one before it; the reply, and when it was complete, which is before it is drawn.
async fn show(mut stream: EventStream, fps: f64) -> Result<(ServingReply, Instant), String> {
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
    let mut screen = Screen::default();
    let mut next_frame = Instant::now();
    let mut outcome = Err("the request ended without an answer".to_owned());
    while let Some(event) = paced.recv().await {
        sleep_until(next_frame).await;
        next_frame = Instant::now() + pause;
        match event {
            StreamEvent::Snapshot(snapshot) => screen.draw(&snapshot)?,
            StreamEvent::Reply(reply) => {
                screen.finish(&reply.text)?;
                outcome = Ok(*reply);
            }
            StreamEvent::Error(error) => outcome = Err(error.message),
            StreamEvent::Delta(_) => {}
        }
    }
    let finished = reading.await.map_err(|error| error.to_string())?;
    outcome.map(|reply| (reply, finished))
}

/// The answer on the terminal: committed text, then the window that can still change.
#[derive(Default)]
struct Screen {
    committed: String,
    n_rows_drawn: usize,
}

impl Screen {
    fn draw(&mut self, snapshot: &ServingBufferSnapshot) -> Result<(), String> {
        self.committed.push_str(&printable(&snapshot.committed_text));
        let mut drawing = self.committed.clone();
        let n_final = snapshot.committed_len.saturating_sub(snapshot.token_offset) as usize;
        for (index, piece) in snapshot.pieces.iter().enumerate().skip(n_final) {
            let confidence = snapshot.confidences.get(index).copied().unwrap_or(0.0);
            match piece {
                Some(piece) => drawing.push_str(&format!("\x1b[{}m{}\x1b[0m", colour(confidence), printable(piece))),
                None => drawing.push_str("\x1b[2m░\x1b[0m"),
            }
        }
        self.replace(&drawing)
    }

    fn finish(&mut self, text: &str) -> Result<(), String> {
        self.replace_with(&printable(text))?;
        write_out("\n")
    }

    /// Draws the end of it, as much as the terminal shows at once: what has left it cannot be drawn over.
    fn replace(&mut self, drawing: &str) -> Result<(), String> {
        let (width, height) = terminal_size();
        let rows = rows(drawing, width);
        let shown = &rows[rows.len().saturating_sub(height)..];
        self.replace_with(&shown.join("\r\n"))?;
        self.n_rows_drawn = shown.len();
        Ok(())
    }

    fn replace_with(&self, text: &str) -> Result<(), String> {
        // Back to the first row of the last drawing, then clear to the end of the screen.
        let up = if self.n_rows_drawn > 1 { format!("\x1b[{}A", self.n_rows_drawn - 1) } else { String::new() };
        write_out(&format!("{up}\r\x1b[J{text}"))
    }
}

/// Red to green as the model gets surer; 256-colour codes.
fn colour(confidence: f32) -> &'static str {
    match confidence {
        confidence if confidence >= 0.9 => "38;5;114",
        confidence if confidence >= 0.7 => "38;5;150",
        confidence if confidence >= 0.5 => "38;5;186",
        confidence if confidence >= 0.3 => "38;5;215",
        _ => "38;5;210",
    }
}

/// Text without control characters, which a terminal would obey; line breaks stay.
fn printable(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '\n' => '\n',
            '\t' => ' ',
            other if other.is_control() => char::REPLACEMENT_CHARACTER,
            other => other,
        })
        .collect()
}

/// A drawing cut into the rows it takes; colours take no column.
fn rows(drawing: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let (mut column, mut in_escape) = (0, false);
    for character in drawing.chars() {
        let n_columns = match character {
            '\x1b' => {
                in_escape = true;
                0
            }
            _ if in_escape => {
                in_escape = character != 'm';
                0
            }
            _ => character.width().unwrap_or(0),
        };
        if character == '\n' || column + n_columns > width {
            rows.push(String::new());
            column = 0;
        }
        column += n_columns;
        if character != '\n'
            && let Some(row) = rows.last_mut()
        {
            row.push(character);
        }
    }
    rows
}

/// Columns and rows.
fn terminal_size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let (columns, rows) = size.map_or((0, 0), |size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    // Where the terminal does not say: the width of a punched card and of every default since, and its usual height.
    (if columns == 0 { 80 } else { columns }, if rows == 0 { 24 } else { rows })
}

fn write_out(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())
}

fn tell_figures(reply: &ServingReply, elapsed: Duration) {
    let n_tokens = reply.token_ids.len();
    let seed = reply.seed.map(|seed| format!(", seed {seed}")).unwrap_or_default();
    let rate = n_tokens as f64 / elapsed.as_secs_f64().max(1e-9);
    let line = format!(
        "{n_tokens} tokens in {} forwards, {:.2} s, {rate:.0} tokens/s, {}{seed}\n",
        reply.nfe,
        elapsed.as_secs_f64(),
        reply.finish_reason.as_str()
    );
    // A closed standard error is no reason to fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_wide_as_the_terminal_and_escapes_take_no_room() {
        assert_eq!(rows("abc", 3), ["abc"]);
        assert_eq!(rows("abcd", 3), ["abc", "d"]);
        assert_eq!(rows("a\nb", 3), ["a", "b"]);
        assert_eq!(rows("\x1b[38;5;114mabc\x1b[0m", 3), ["\x1b[38;5;114mabc\x1b[0m"]);
        assert_eq!(rows("a汉字", 4), ["a汉", "字"]);
        assert_eq!(rows("e\u{301}e\u{301}e\u{301}", 3).len(), 1);
    }

    #[test]
    fn a_model_does_not_command_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc\td\u{7}"), "a\u{fffd}[2Jb\nc d\u{fffd}");
    }
}
