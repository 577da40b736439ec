//! Flags of Diffulex's server that have nothing to act on here: one table of names, kinds and reasons.
//!
//! They are accepted so that scripts written for Diffulex run. A value that would change answers is refused, any other is
//! a notice. Flags of settings that act with some strategies only are
//! `THRESHOLDS`. Never here: flags that act.

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Map, Value};

use crate::config::error::ConfigError;

/// The form of a flag's value.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Integer,
    Number,
    Switch,
}

/// The effect of a flag.
#[derive(Clone, Copy)]
enum Outcome {
    /// It changes nothing, for this reason.
    NoEffect(&'static str),
    /// It changes nothing, for this reason; but a value that Diffulex does not know is a mistake.
    OneOf(&'static [&'static str], &'static str),
    /// Only values that ask for what happens anyway are accepted, for this reason.
    Only(&'static [&'static str], &'static str),
}

use Kind::{Integer, Number, Switch, Text};
use Outcome::{NoEffect, OneOf, Only};

const ONE_PROCESS: &str = "there is one engine process and no process group";
const ONE_DEVICE: &str = "a model runs on one device; --quantization makes a larger one fit";
const ONE_REPLICA: &str =
    "a server has one copy of the model; start a server for each device, with a --device-ids and --port of its own";
const NO_TORCH: &str = "there is no PyTorch here, and kernels need no such choice";
const NO_TORCH_PROFILER: &str = "profiles are recorded without torch; --profile-dir is their folder";
const NO_AUTO_NFE: &str = "max_nfe is not chosen automatically; send it";

/// Every one of them, by its long name.
const FLAGS: [(&str, Kind, Outcome); 30] = [
    ("tensor-parallel-size", Integer, Only(&["1"], ONE_DEVICE)),
    ("data-parallel-size", Integer, Only(&["1"], ONE_REPLICA)),
    ("master-addr", Text, NoEffect(ONE_PROCESS)),
    ("master-port", Integer, NoEffect(ONE_PROCESS)),
    ("distributed-timeout-seconds", Integer, NoEffect(ONE_PROCESS)),
    ("disable-prefill-cudagraph", Switch, NoEffect(NO_TORCH)),
    ("prefill-cudagraph-max-len", Integer, NoEffect(NO_TORCH)),
    ("disable-full-static-runner", Switch, NoEffect(NO_TORCH)),
    ("disable-torch-compile", Switch, NoEffect(NO_TORCH)),
    ("enable-cudagraph-torch-compile", Switch, NoEffect(NO_TORCH)),
    ("torch-compile-mode", Text, NoEffect(NO_TORCH)),
    ("enforce-eager", Switch, NoEffect(NO_TORCH)),
    ("auto-max-nfe-warmup-steps", Integer, Only(&["8"], NO_AUTO_NFE)),
    ("auto-max-nfe-tpf-floor", Number, Only(&["1", "1.0"], NO_AUTO_NFE)),
    ("attn-impl", Text, OneOf(&["triton_grouped", "triton", "naive"], "--device chooses the kernels")),
    ("kv-cache-layout", Text, Only(&["unified"], "there is one layout")),
    ("moe-dispatcher-backend", Text, NoEffect(NO_TORCH)),
    ("moe-gemm-impl", Text, NoEffect(NO_TORCH)),
    ("moe-topk-impl", Text, NoEffect(NO_TORCH)),
    ("deepep-mode", Text, NoEffect(NO_TORCH)),
    ("deepep-num-max-dispatch-tokens-per-rank", Integer, NoEffect(NO_TORCH)),
    ("token-stability-threshold", Number, Only(&["0", "0.0"], "no strategy here edits by a threshold")),
    ("profiler", Text, NoEffect(NO_TORCH_PROFILER)),
    ("torch-profiler-dir", Text, NoEffect(NO_TORCH_PROFILER)),
    ("profiler-record-shapes", Switch, NoEffect(NO_TORCH_PROFILER)),
    ("profiler-profile-memory", Switch, NoEffect(NO_TORCH_PROFILER)),
    ("profiler-memory", Switch, NoEffect(NO_TORCH_PROFILER)),
    ("profiler-with-stack", Switch, NoEffect(NO_TORCH_PROFILER)),
    ("profiler-delay-iterations", Integer, NoEffect(NO_TORCH_PROFILER)),
    ("profiler-max-iterations", Integer, NoEffect(NO_TORCH_PROFILER)),
];

/// Settings whose flags Diffulex's scripts pass whatever the strategy: one that the strategy lacks is left out, with a warning.
pub(crate) const THRESHOLDS: [&str; 4] =
    ["accept_threshold", "add_block_threshold", "remask_threshold", "semi_complete_threshold"];

/// Those that were given on the command line, with their values.
#[derive(Clone, Debug, Default)]
pub struct DiffulexFlags {
    given: Vec<(&'static str, String)>,
}

impl DiffulexFlags {
    /// Takes those that `file`, the keys of a configuration file, has and the command line has not; then judges them all.
    /// Returns a notice for each that has no effect. The error is a value that is not supported.
    pub(crate) fn judge(&self, file: &mut Map<String, Value>) -> Result<Vec<String>, ConfigError> {
        let mut notices = Vec::new();
        for (name, kind, outcome) in FLAGS {
            let on_line = self.given.iter().find(|(given, _)| *given == name).map(|(_, value)| value.clone());
            let in_file = kind.take_from(file, &name.replace('-', "_"))?;
            let Some(value) = on_line.or(in_file) else { continue };
            match outcome {
                NoEffect(reason) => notices.push(format!("--{name} {value} has no effect: {reason}")),
                OneOf(known, reason) if known.contains(&value.as_str()) => {
                    notices.push(format!("--{name} {value} has no effect: {reason}"));
                }
                OneOf(known, _) => {
                    let problem = format!("expected one of {}, got {value:?}", known.join(", "));
                    return Err(ConfigError::flag(format!("--{name}"), problem));
                }
                Only(accepted, _) if accepted.contains(&value.as_str()) => {}
                Only(_, reason) => {
                    return Err(ConfigError::NotSupported { flag: format!("--{name}"), value, reason });
                }
            }
        }
        Ok(notices)
    }
}

impl Kind {
    /// The value of `key`, which leaves `file`.
    fn take_from(self, file: &mut Map<String, Value>, key: &str) -> Result<Option<String>, ConfigError> {
        let (is_of_kind, expected): (fn(&Value) -> bool, _) = match self {
            Self::Text => (Value::is_string, "a string"),
            Self::Integer => (Value::is_u64, "an integer"),
            Self::Number => (Value::is_number, "a number"),
            Self::Switch => (Value::is_boolean, "true or false"),
        };
        match file.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if matches!(self, Self::Text) => Ok(Some(text)),
            Some(value) if is_of_kind(&value) => Ok(Some(value.to_string())),
            Some(value) => {
                Err(ConfigError::Key { key: key.to_owned(), problem: format!("expected {expected}, got {value}") })
            }
        }
    }

    fn parser(self) -> ValueParser {
        match self {
            Self::Text => ValueParser::string(),
            Self::Integer => value_parser!(u32).into(),
            Self::Number => value_parser!(f64).into(),
            Self::Switch => ValueParser::bool(),
        }
    }
}

impl clap::Args for DiffulexFlags {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, (name, kind, outcome)| {
            let help = match outcome {
                NoEffect(reason) | OneOf(_, reason) => format!("No effect: {reason}."),
                Only(accepted, reason) => format!("Only {}: {reason}.", accepted[0]),
            };
            let argument = Arg::new(*name).long(*name).hide(true).help(help).value_parser(kind.parser());
            command.arg(match kind {
                Switch => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
                Text | Integer | Number => argument,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for DiffulexFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value_of = |name| Some(matches.get_raw(name)?.next_back()?.to_string_lossy().into_owned());
        let given = FLAGS.iter().filter_map(|(name, ..)| Some((*name, value_of(name)?))).collect();
        Ok(Self { given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
