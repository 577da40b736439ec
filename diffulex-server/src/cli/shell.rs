//! The `shell` subcommand: a chat in the terminal. Lines are turns or commands; a pipe works as a keyboard does.
//!
//! Never here: how an answer is drawn, HTTP.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use diffulex_engine::{ChatMessage, ServingInput};
use tokio::sync::mpsc;

use crate::cli::commands::ShellArgs;
use crate::cli::launch::{self, LaunchError};
use crate::cli::local_model::{Display, LocalModel, LocalModelError};
use crate::observe::log;
use crate::os::terminal::say;

const HELP: &str = "/reset forgets the chat, /mode denoise or /mode append changes how answers appear, /exit leaves. Ctrl-C \
                    stops an answer.";

/// A line of the user.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Nothing,
    Exit,
    Reset,
    Help,
    Mode(Display),
    /// A command that there is not.
    Unknown(&'a str),
    Turn(&'a str),
}

impl<'a> Line<'a> {
    fn of(text: &'a str) -> Self {
        let text = text.trim();
        if !text.starts_with('/') {
            return if text.is_empty() { Self::Nothing } else { Self::Turn(text) };
        }
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["/exit" | "/quit"] => Self::Exit,
            ["/reset"] => Self::Reset,
            ["/help"] => Self::Help,
            ["/mode", "denoise"] => Self::Mode(Display::Denoise),
            ["/mode", "append"] => Self::Mode(Display::Append),
            _ => Self::Unknown(text),
        }
    }
}

/// Chats until the input ends or `/exit`, with `model` or else that of the flags.
pub fn shell(args: &ShellArgs, model: Option<&Path>) -> Result<(), LocalModelError> {
    let _log = log::init(&args.local.log_level, log::LogFormat::Text).map_err(LaunchError::from)?;
    launch::runtime()?.block_on(run(args, model))
}

async fn run(args: &ShellArgs, model: Option<&Path>) -> Result<(), LocalModelError> {
    let mut config = args.local.engine.config().map_err(LaunchError::from)?;
    config.model = model.map(Path::to_owned).or(config.model);
    let model = LocalModel::start(config, &args.answers).await?;
    let is_interactive = std::io::stdin().is_terminal();
    let mut display = model.best_display();
    let mut chat: Vec<ChatMessage> = Vec::new();
    let mut lines = lines();
    if is_interactive {
        say(&format!("{}. {HELP}", model.name()));
    }
    loop {
        if is_interactive {
            prompt();
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            interrupt = tokio::signal::ctrl_c() => interrupt.map(|()| None)?,
        };
        let Some(line) = line.transpose()? else { break };
        match Line::of(&line) {
            Line::Nothing => {}
            Line::Exit => break,
            Line::Reset => chat.clear(),
            Line::Help => say(HELP),
            Line::Mode(mode) => display = mode,
            Line::Unknown(text) => say(&format!("there is no {text}: {HELP}")),
            Line::Turn(text) => {
                chat.push(message("user", text));
                let input = ServingInput::chat(chat.clone());
                let answer = tokio::select! {
                    answer = model.answer("shell", input, false, display) => Some(answer),
                    interrupt = tokio::signal::ctrl_c() => interrupt.map(|()| None)?,
                };
                match answer {
                    Some(Ok(reply)) => chat.push(message("assistant", &reply.text)),
                    // The chat goes on without the turn.
                    Some(Err(error @ (LocalModelError::Refused(_) | LocalModelError::Failed(_)))) => {
                        chat.pop();
                        say(&format!("{error}; /reset forgets the chat"));
                    }
                    Some(Err(error)) => return Err(error),
                    None => {
                        chat.pop();
                        say("\n(stopped; the chat goes on without this turn)");
                    }
                }
            }
        }
    }
    model.stop().await;
    Ok(())
}

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage::new(role, content)
}

fn prompt() {
    let mut out = std::io::stderr().lock();
    // A closed standard error is no reason to fail.
    let _ = out.write_all(b"> ").and_then(|()| out.flush());
}

/// Lines of standard input. On a thread of its own, as a read of a terminal cannot be given up.
fn lines() -> mpsc::Receiver<std::io::Result<String>> {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_turns_or_commands() {
        for (text, line) in [
            ("  \n", Line::Nothing),
            (" hello /exit ", Line::Turn("hello /exit")),
            ("/exit", Line::Exit),
            ("/mode  append", Line::Mode(Display::Append)),
            ("/mode denoise", Line::Mode(Display::Denoise)),
            ("/mode", Line::Unknown("/mode")),
            ("/resett", Line::Unknown("/resett")),
        ] {
            assert_eq!(Line::of(text), line, "{text:?}");
        }
    }
}
