//! What a package installs beside the program, made from the command line's grammar: completions of shells and manual pages.
//!
//! In: the grammar. Out: text. Never here: the grammar, which is [`crate::cli::commands`].

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::commands::{self, CompletionsArgs, ManArgs};

/// A page that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// There is no such subcommand.
    #[error("{name}: not a subcommand; expected one of {}", .known.join(", "))]
    Unknown {
        /// What was given.
        name: String,
        /// All there are.
        known: Vec<String>,
    },
    /// A page cannot be written to the folder.
    #[error("cannot write the pages to {}: {error}", .folder.display())]
    Folder {
        /// `--out`.
        folder: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A page cannot be printed.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

/// The `completions` subcommand.
pub fn completions(args: CompletionsArgs) -> Result<(), PageError> {
    print(&script(args.shell))
}

/// The `man` subcommand.
pub fn man(args: &ManArgs) -> Result<(), PageError> {
    match &args.out {
        Some(folder) => write_all(folder).map_err(|error| PageError::Folder { folder: folder.clone(), error }),
        None => print(&page(args.subcommand.as_deref())?),
    }
}

fn script(shell: Shell) -> Vec<u8> {
    let mut command = commands::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    // It panics where it cannot write, which memory always lets it.
    clap_complete::generate(shell, &mut command, &name, &mut script);
    if shell != Shell::Bash {
        return script;
    }
    // clap_complete 4.6 names the states of a program with a hyphen in two ways: one where they begin, and another where they are
    // looked up, so that no subcommand would be completed.
    let looked_up =
        String::from_utf8_lossy(&script).replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__"));
    looked_up.into_bytes()
}

fn page(subcommand: Option<&str>) -> Result<Vec<u8>, PageError> {
    let mut command = commands::command();
    command.build();
    let described = match subcommand {
        None => command,
        Some(name) => command.find_subcommand(name).cloned().ok_or_else(|| PageError::Unknown {
            name: name.to_owned(),
            known: command.get_subcommands().map(|known| known.get_name().to_owned()).collect(),
        })?,
    };
    let mut page = Vec::new();
    Man::new(described).render(&mut page).map_err(PageError::Output)?;
    Ok(page)
}

fn write_all(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(commands::command(), folder)
}

fn print(text: &[u8]) -> Result<(), PageError> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        // Whoever reads, such as `head`, has what it wanted.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(PageError::Output),
    }
}
