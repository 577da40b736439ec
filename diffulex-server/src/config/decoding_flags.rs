//! A flag for each setting of a decoding strategy, made from the strategies' own declarations.
//!
//! Never here: names, ranges, help texts; a new setting is a flag by being declared.

use clap::builder::Str;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use diffulex_engine::{Setting, Values, settings, strategies_with};
use diffulex_protocol::{DecodingSettings, SettingValue};
use serde::{Deserialize, Serialize};

/// The settings that flags set.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DecodingFlags(pub DecodingSettings);

/// The flag of the setting called `name`.
pub(crate) fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

/// Title in the help: the strategies that have the setting.
fn heading(setting: &Setting) -> String {
    let strategies = strategies_with(setting);
    if strategies.is_empty() {
        "Decoding: accept rules".to_owned()
    } else {
        format!("Decoding: {}", strategies.join(", "))
    }
}

fn argument(setting: &'static Setting) -> Arg {
    let argument = Arg::new(setting.name)
        .long(Str::from(setting.name.replace('_', "-")))
        .value_name(setting.placeholder)
        .help_heading(Str::from(heading(setting)))
        .help(setting.full_help());
    match setting.values {
        Values::Number { .. } => argument.value_parser(value_parser!(f64)),
        Values::Count { .. } => argument.value_parser(value_parser!(u32)),
        Values::Choice(_) => argument.value_parser(value_parser!(String)),
        Values::Flag => argument
            .value_parser(value_parser!(bool))
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
    }
}

fn value(setting: &Setting, matches: &ArgMatches) -> Option<SettingValue> {
    let name = setting.name;
    match setting.values {
        Values::Number { .. } => matches.get_one::<f64>(name).map(|number| SettingValue::Number(*number)),
        Values::Count { .. } => matches.get_one::<u32>(name).map(|count| SettingValue::Integer(i64::from(*count))),
        Values::Choice(_) => matches.get_one::<String>(name).map(|text| SettingValue::Text(text.clone())),
        Values::Flag => matches.get_one::<bool>(name).map(|flag| SettingValue::Flag(*flag)),
    }
}

impl Args for DecodingFlags {
    fn augment_args(command: Command) -> Command {
        command.args(settings().into_iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for DecodingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in settings() {
            if let Some(value) = value(setting, matches) {
                self.0.set(setting.name, value);
            }
        }
        Ok(())
    }
}
