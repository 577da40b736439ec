//! The command line: subcommands, and the help with every default in it.
//!
//! The flags themselves are in [`crate::config::flags`]; [`crate::config`] says what they come to. Never here: effects.

use clap::{Args, CommandFactory, Parser, Subcommand};
use std::path::PathBuf;

use diffulex_protocol::SamplingParams;
use serde_json::{Map, Value};

use crate::config::ServerConfig;
use crate::config::flags::{EngineFlags, ServeArgs};
use crate::observe::profile_report::ReportArgs;

/// Serves a diffusion language model over HTTP.
///
/// Without --model, the small demo model inside this program is served.
#[derive(Debug, Parser)]
#[command(name = "diffulex-server", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// The subcommand; `serve` if there is none.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `serve`.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve over HTTP (the default).
    Serve(Box<ServeArgs>),
    /// Write one answer in the terminal and show each denoise step.
    Generate(Box<GenerateArgs>),
    /// Chat in the terminal and show each denoise step.
    Shell(Box<ShellArgs>),
    /// Answer requests from a file, in the form of OpenAI's batches.
    Batch(Box<BatchArgs>),
    /// Report where the time of a profile's requests went.
    ProfileReport(ReportArgs),
    /// Run an engine that servers attach to (serve --connect).
    Worker(Box<WorkerArgs>),
}

/// Everything `generate` takes.
#[derive(Clone, Debug, Args)]
pub struct GenerateArgs {
    /// The prompt; - reads it from standard input, as does a pipe without a prompt.
    pub prompt: Option<String>,
    /// Use the prompt as it is, without the model's chat template.
    #[arg(long)]
    pub raw: bool,
    /// Of the answer.
    #[command(flatten)]
    pub answers: AnswerFlags,
    /// Of the model that runs in this process.
    #[command(flatten)]
    pub local: LocalFlags,
}

/// Everything `shell` takes.
#[derive(Clone, Debug, Args)]
pub struct ShellArgs {
    /// Of the answers.
    #[command(flatten)]
    pub answers: AnswerFlags,
    /// Of the model that runs in this process.
    #[command(flatten)]
    pub local: LocalFlags,
}

/// Flags of a model that runs in the process of the command.
#[derive(Clone, Debug, Args)]
pub struct LocalFlags {
    /// Log level: error, warn, info, debug, trace, or a filter.
    #[arg(long, default_value = "warn", value_name = "LEVEL")]
    pub log_level: String,
    /// Of the model and the engine.
    #[command(flatten, next_help_heading = "Model and engine")]
    pub engine: EngineFlags,
}

/// Flags of answers on the terminal.
#[derive(Clone, Debug, Args)]
pub struct AnswerFlags {
    /// Longest answer, in tokens.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// Adapter to answer with, by its name; default: the one of --lora-path.
    #[arg(long, value_name = "NAME")]
    pub adapter: Option<String>,
    /// Sampling temperature, 0 (greedy) to 2.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Seed of the sampler; the same seed gives the same answer.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Denoise steps shown per second; 0 shows each as it arrives.
    #[arg(long, default_value_t = 30.0, value_name = "N")]
    pub fps: f64,
}

/// Everything `batch` takes.
#[derive(Clone, Debug, Args)]
pub struct BatchArgs {
    /// File with a request per line: custom_id, url and body; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    pub input: PathBuf,
    /// File for the answers; - is standard output. A file that an interrupted run has left is continued.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Of the model that runs in this process.
    #[command(flatten)]
    pub local: LocalFlags,
}

/// Everything `worker` takes. Without `--listen`, it takes its orders from the server that starts it.
#[derive(Clone, Debug, Args)]
pub struct WorkerArgs {
    /// Folder to listen in, as ipc:///FOLDER; it is made if it does not exist. Required.
    #[arg(long, value_name = "URL")]
    pub listen: Option<String>,
    /// Allow a folder that other users of this machine can reach; docs/operations.md describes the risk.
    #[arg(long)]
    pub allow_shared_zmq: bool,
    /// Folder below which servers that attach may record profiles, their --profile-dir; default: profiles are refused.
    #[arg(long, value_name = "PATH")]
    pub profile_dir: Option<PathBuf>,
    /// Time for running requests to finish after SIGTERM or SIGINT; a second signal ends them at once.
    #[arg(long, value_name = "S")]
    pub shutdown_grace_seconds: Option<f64>,
    /// Log level: error, warn, info, debug, trace, or a filter.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    pub log_level: String,
    /// Of the model and the engine.
    #[command(flatten, next_help_heading = "Model and engine")]
    pub engine: EngineFlags,
}

/// The command line's grammar, with every default that there is written into the help.
pub fn command() -> clap::Command {
    let of_serve = ServerConfig::flag_defaults();
    let mut of_generate = of_serve.clone();
    let SamplingParams { max_tokens, temperature, .. } = SamplingParams::default();
    let unless_named = |value: String| format!("the checkpoint's, otherwise {value}").into();
    of_generate.extend([
        ("max_tokens".to_owned(), unless_named(max_tokens.to_string())),
        ("temperature".to_owned(), unless_named(format!("{temperature:?}"))),
    ]);
    with_defaults(Cli::command(), &of_serve)
        // The flags of `serve`, whose own help has them all.
        .mut_args(|argument| {
            let is_rare = !is_common(&argument);
            argument.hide_short_help(is_rare).hide_long_help(is_rare)
        })
        .after_help(format!(
            "Examples:\n{SERVE_EXAMPLES}{GENERATE_EXAMPLES}\n`serve --help` and `generate --help` have all flags."
        ))
        .mut_subcommand("serve", |command| of_subcommand(command, &of_serve, SERVE_EXAMPLES))
        .mut_subcommand("batch", |command| of_subcommand(command, &of_serve, BATCH_EXAMPLES))
        .mut_subcommand("worker", |command| of_subcommand(command, &of_serve, WORKER_EXAMPLES))
        .mut_subcommand("shell", |command| of_subcommand(command, &of_generate, SHELL_EXAMPLES))
        .mut_subcommand("generate", |command| of_subcommand(command, &of_generate, GENERATE_EXAMPLES))
}

/// Flags in the short help: those for a first use, and all flags without a heading.
const COMMON_FLAGS: [&str; 9] =
    ["host", "port", "api_key", "log_level", "model", "lora_path", "quantization", "threads", "max_model_len"];

const SERVE_EXAMPLES: &str =
    "  diffulex-server                                      the built-in model, on http://127.0.0.1:8000
  diffulex-server --model SDAR-1.7B-Chat --port 8080   a checkpoint folder
  diffulex-server --model llada-q8_0.gguf              a GGUF file
";

const GENERATE_EXAMPLES: &str = "  diffulex-server generate \"Tell me a story about a dragon\"
  diffulex-server generate --model SDAR-1.7B-Chat --quantization int8 \"What is a prime?\"
  echo \"What is 2 + 2?\" | diffulex-server generate
";

const SHELL_EXAMPLES: &str = "  diffulex-server shell
  diffulex-server shell --model SDAR-1.7B-Chat --quantization int8 --temperature 0
";

const BATCH_EXAMPLES: &str = "  diffulex-server batch -i requests.jsonl -o answers.jsonl
  diffulex-server batch --model SDAR-1.7B-Chat --max-num-reqs 32 -i requests.jsonl -o answers.jsonl
";

const WORKER_EXAMPLES: &str = "  diffulex-server worker --listen ipc:///run/user/1000/diffulex --model SDAR-1.7B-Chat
  diffulex-server --connect ipc:///run/user/1000/diffulex --model SDAR-1.7B-Chat
";

fn of_subcommand(command: clap::Command, defaults: &Map<String, Value>, examples: &str) -> clap::Command {
    with_defaults(command, defaults)
        .mut_args(|argument| {
            let is_rare = !is_common(&argument);
            argument.hide_short_help(is_rare)
        })
        .after_help(format!("Examples:\n{examples}\n`--help` has all flags."))
        .after_long_help(format!("Examples:\n{examples}"))
}

fn is_common(argument: &clap::Arg) -> bool {
    argument.get_help_heading().is_none() || COMMON_FLAGS.contains(&argument.get_id().as_str())
}

fn with_defaults(command: clap::Command, defaults: &Map<String, Value>) -> clap::Command {
    // So that a number out of range is told as such, and not taken for a flag.
    command.allow_negative_numbers(true).mut_args(|argument| {
        // A default of the grammar's own is in the help already.
        let is_told = !argument.get_default_values().is_empty();
        let Some(value) = defaults.get(argument.get_id().as_str()).filter(|_| !is_told) else { return argument };
        let default = match value {
            Value::String(text) => text.clone(),
            // Settings are 32-bit floats, to which JSON adds the digits that only 64 bits have.
            Value::Number(number) if number.is_f64() => (number.as_f64().unwrap_or_default() as f32).to_string(),
            value => value.to_string(),
        };
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        argument.help(format!("{help} [default: {default}]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn serve_is_the_default_subcommand() {
        let bare = Cli::try_parse_from(["diffulex-server", "--port", "9"]).expect("parses");
        assert_eq!((bare.command.is_none(), bare.serve.server.port), (true, Some(9)));
        let named = Cli::try_parse_from(["diffulex-server", "serve", "--port", "9"]).expect("parses");
        assert!(matches!(named.command, Some(Command::Serve(args)) if args.server.port == Some(9)));
    }

    #[test]
    fn help_shows_defaults() {
        let mut command = command();
        let help = command.render_long_help().to_string();
        assert!(help.contains("Port to listen on; 0 takes a free one [default: 8000]"), "{help}");
        let help = command.find_subcommand_mut("serve").expect("serve").render_long_help().to_string();
        assert!(help.contains("[default: 0.9]") && help.contains("[default: 600]"), "{help}");
        let help = command.find_subcommand_mut("generate").expect("generate").render_long_help().to_string();
        let defaults = [
            "[default: the checkpoint's, otherwise 512]",
            "[default: the checkpoint's, otherwise 1.0]",
            "[default: warn]",
        ];
        for default in defaults {
            assert!(help.contains(default), "{default}: {help}");
        }
    }

    #[test]
    fn help_has_no_names_of_the_source() {
        for subcommand in command().get_subcommands_mut() {
            let help = subcommand.render_long_help().to_string();
            assert!(!help.contains("crate::") && !help.contains("[`"), "{help}");
        }
    }

    #[test]
    fn settings_of_strategies_have_a_heading() {
        let mut command = command();
        let help = command.find_subcommand_mut("serve").expect("serve").render_long_help().to_string();
        let (flags, settings) = help.split_once("Settings of decoding strategies:").expect("the heading");
        assert!(flags.contains("--decoding-strategy") && flags.contains("--max-model-len"), "{flags}");
        assert!(settings.contains("--accept-threshold") && !settings.contains("--max-model-len"), "{settings}");
    }

    #[test]
    fn help_lists_what_the_program_can_do() {
        let help = command().render_long_help().to_string();
        assert!(help.contains("  serve ") && help.contains("  generate "), "{help}");
        assert!(help.contains("  batch ") && help.contains("  worker ") && !help.contains("enforce-eager"), "{help}");
    }
}
