//! Settings: the fields of a strategy that operators and requests may change.
//!
//! A [`Setting`] declares its name, range and help once, beside the field that it sets. The command line, the HTTP API and the
//! engine read these declarations. Values arrive as a map from name to [`Value`]; a strategy takes its own, and any remaining
//! value is refused by name.

use std::collections::BTreeMap;

/// Declaration of a setting.
#[derive(Debug, PartialEq)]
pub struct Setting {
    /// Key in the request's `decoding`; with dashes, the name of the flag.
    pub name: &'static str,
    /// Type and range of the value.
    pub values: Values,
    /// Placeholder of the value in the help.
    pub placeholder: &'static str,
    /// One phrase without the range and without a full stop.
    pub help: &'static str,
}

/// Type and range of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// A number from `least` to `most`; `f32::MAX`: unbounded.
    Number {
        /// Inclusive, unless `is_open`.
        least: f32,
        /// Inclusive.
        most: f32,
        /// `least` is exclusive.
        is_open: bool,
    },
    /// A whole number from `least` to `most`; `u32::MAX`: unbounded.
    Count {
        /// Inclusive.
        least: u32,
        /// Inclusive.
        most: u32,
    },
    /// One of the given names.
    Choice(&'static [&'static str]),
    /// True or false.
    Flag,
}

/// Unchecked value for a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// True or false.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// A number, possibly NaN.
    Number(f64),
    /// A name.
    Text(&'a str),
}

/// Refusal of a setting's value.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingError {
    /// Name of the setting, or the unknown name.
    pub name: String,
    /// The problem, phrased to follow the name: `must be in [0, 1], got 2`.
    pub what: String,
    /// The name is unknown or the value has the wrong type, for any model.
    pub is_malformed: bool,
}

impl SettingError {
    /// Error for a value out of range or a setting that does not apply.
    pub fn refused(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { name: name.into(), what: what.into(), is_malformed: false }
    }

    fn malformed(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { is_malformed: true, ..Self::refused(name, what) }
    }

    /// Error for a name that is not a setting.
    pub fn unknown(name: impl Into<String>) -> Self {
        Self::malformed(name, "is not a setting of any strategy")
    }
}

impl std::fmt::Display for SettingError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.name, self.what)
    }
}

impl std::error::Error for SettingError {}

impl Setting {
    /// Declares a number in `[least, most]`.
    pub(crate) const fn number(
        name: &'static str,
        placeholder: &'static str,
        least: f32,
        most: f32,
        help: &'static str,
    ) -> Self {
        Self { name, values: Values::Number { least, most, is_open: false }, placeholder, help }
    }

    /// Declares a number above `least`.
    pub(crate) const fn above(name: &'static str, placeholder: &'static str, least: f32, help: &'static str) -> Self {
        Self { name, values: Values::Number { least, most: f32::MAX, is_open: true }, placeholder, help }
    }

    /// Declares a whole number in `least..=most`.
    pub(crate) const fn count(name: &'static str, least: u32, most: u32, help: &'static str) -> Self {
        Self { name, values: Values::Count { least, most }, placeholder: "N", help }
    }

    /// Declares a choice among `names`.
    pub(crate) const fn choice(name: &'static str, names: &'static [&'static str], help: &'static str) -> Self {
        Self { name, values: Values::Choice(names), placeholder: "NAME", help }
    }

    /// Declares a boolean.
    pub(crate) const fn flag(name: &'static str, help: &'static str) -> Self {
        Self { name, values: Values::Flag, placeholder: "BOOL", help }
    }

    /// Help text including the range.
    pub fn full_help(&self) -> String {
        let help = self.help;
        match self.values {
            Values::Number { least, most: f32::MAX, is_open: true } => format!("{help}; above {least}"),
            Values::Number { least, most: f32::MAX, is_open: false } => format!("{help}; {least} or more"),
            Values::Number { least, most, .. } => format!("{help}; {least} to {most}"),
            Values::Count { least, most: u32::MAX } => format!("{help}; {least} or more"),
            Values::Count { least, most } => format!("{help}; {least} to {most}"),
            Values::Choice([names @ .., last]) if !names.is_empty() => {
                format!("{help}: {} or {last}", names.join(", "))
            }
            Values::Choice(_) | Values::Flag => help.to_owned(),
        }
    }

    /// Refuses a value of another type or out of range.
    pub fn check(&self, value: Value<'_>) -> Result<(), SettingError> {
        let must_be = |what: &str| {
            // Debug prints tiny and huge numbers with an exponent.
            let got = match value {
                Value::Flag(flag) => format!("{flag}"),
                Value::Integer(integer) => format!("{integer}"),
                Value::Number(number) => format!("{:?}", number as f32),
                Value::Text(text) => format!("{text:?}"),
            };
            format!("must be {what}, got {got}")
        };
        let malformed = |what: &str| Err(SettingError::malformed(self.name, must_be(what)));
        let refused = |what: &str| Err(SettingError::refused(self.name, must_be(what)));
        match self.values {
            Values::Number { least, most, is_open } => {
                let Some(number) = value.number() else { return malformed("a number") };
                let is_above = if is_open { number > least } else { number >= least };
                // NaN fails both comparisons and is refused.
                match (is_above && number <= most, most, is_open) {
                    (true, ..) => Ok(()),
                    (false, f32::MAX, true) => refused(&format!("above {least}")),
                    (false, f32::MAX, false) => refused(&format!("{least} or more")),
                    (false, _, true) => refused(&format!("in ({least}, {most}]")),
                    (false, _, false) => refused(&format!("in [{least}, {most}]")),
                }
            }
            Values::Count { least, most } => {
                let Some(count) = value.count() else { return malformed("a whole number of 32 bits") };
                match (count >= least && count <= most, most) {
                    (true, _) => Ok(()),
                    (false, u32::MAX) => refused(&format!("at least {least}")),
                    (false, _) => refused(&format!("in {least}..={most}")),
                }
            }
            Values::Choice(names) => match value {
                Value::Text(name) if names.contains(&name) => Ok(()),
                Value::Text(_) => refused(&format!("one of {}", names.join(", "))),
                Value::Flag(_) | Value::Integer(_) | Value::Number(_) => malformed("a name"),
            },
            Values::Flag => match value {
                Value::Flag(_) => Ok(()),
                Value::Integer(_) | Value::Number(_) | Value::Text(_) => malformed("true or false"),
            },
        }
    }
}

impl<'a> Value<'a> {
    fn number(self) -> Option<f32> {
        match self {
            Self::Integer(integer) => Some(integer as f32),
            Self::Number(number) => Some(number as f32),
            Self::Flag(_) | Self::Text(_) => None,
        }
    }

    fn count(self) -> Option<u32> {
        match self {
            Self::Integer(integer) => u32::try_from(integer).ok(),
            Self::Number(number) => {
                let is_count = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
                is_count.then_some(number as u32)
            }
            Self::Flag(_) | Self::Text(_) => None,
        }
    }

    /// Returns the text of a `Text` value.
    pub fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Flag(_) | Self::Integer(_) | Self::Number(_) => None,
        }
    }
}

/// Reference to the field that a setting sets.
pub enum Field<'a> {
    /// Field of [`Values::Number`].
    Number(&'a mut f32),
    /// Field of [`Values::Count`].
    Count(&'a mut usize),
    /// Field of [`Values::Count`] that may be unset.
    OptionalCount(&'a mut Option<usize>),
    /// Field of [`Values::Flag`].
    Flag(&'a mut bool),
    /// Field of [`Values::Choice`].
    Choice(&'a mut dyn NamedChoice),
}

/// Type with named values.
pub trait NamedChoice {
    /// Returns the name of this value.
    fn name(&self) -> &'static str;
    /// Sets `self` to the value named `name`; does nothing if no value has that name.
    fn choose(&mut self, name: &str);
}

/// Settings and the fields that they set.
pub type SettingFields<'a> = Vec<(&'static Setting, Field<'a>)>;

impl Field<'_> {
    /// Returns the value; `None` if unset.
    fn value(&self) -> Option<Value<'static>> {
        let integer = |count: usize| Value::Integer(i64::try_from(count).unwrap_or(i64::MAX));
        match self {
            Self::Number(number) => Some(Value::Number(f64::from(**number))),
            Self::Count(count) => Some(integer(**count)),
            Self::OptionalCount(count) => count.map(integer),
            Self::Flag(flag) => Some(Value::Flag(**flag)),
            Self::Choice(choice) => Some(Value::Text(choice.name())),
        }
    }

    /// Sets the field to `value`, which must have passed [`Setting::check`].
    fn set(&mut self, value: Value<'_>) {
        match (self, value) {
            (Self::Number(field), value) => **field = value.number().unwrap_or(**field),
            (Self::Count(field), value) => **field = value.count().map_or(**field, |count| count as usize),
            (Self::OptionalCount(field), value) => **field = value.count().map(|count| count as usize),
            (Self::Flag(field), Value::Flag(flag)) => **field = flag,
            (Self::Choice(field), Value::Text(name)) => field.choose(name),
            (Self::Flag(_) | Self::Choice(_), _) => {}
        }
    }
}

/// Returns the names and values of the fields that are set.
pub fn values_of(fields: SettingFields<'_>) -> Vec<(&'static str, Value<'static>)> {
    fields.into_iter().filter_map(|(setting, field)| Some((setting.name, field.value()?))).collect()
}

/// Requested settings that no strategy or rule has taken yet.
#[derive(Debug)]
pub struct Overrides<'a>(BTreeMap<&'a str, Value<'a>>);

impl<'a> Overrides<'a> {
    /// Starts with all of `values`.
    pub(crate) fn new(values: impl IntoIterator<Item = (&'a str, Value<'a>)>) -> Self {
        Self(values.into_iter().collect())
    }

    /// Removes and checks the value for `setting`.
    pub fn take(&mut self, setting: &Setting) -> Result<Option<Value<'a>>, SettingError> {
        let Some(value) = self.0.remove(setting.name) else { return Ok(None) };
        setting.check(value)?;
        Ok(Some(value))
    }

    /// Checks the whole number for `setting` without removing it.
    pub(crate) fn count(&self, setting: &Setting) -> Result<Option<usize>, SettingError> {
        let Some(value) = self.0.get(setting.name) else { return Ok(None) };
        setting.check(*value)?;
        Ok(value.count().map(|count| count as usize))
    }

    /// Whether a value for `setting` remains.
    pub fn has(&self, setting: &Setting) -> bool {
        self.0.contains_key(setting.name)
    }

    /// Takes the values for `fields` and sets them; other fields keep theirs.
    pub fn apply(&mut self, fields: SettingFields<'_>) -> Result<(), SettingError> {
        for (setting, mut field) in fields {
            if let Some(value) = self.take(setting)? {
                field.set(value);
            }
        }
        Ok(())
    }

    /// Returns the name of a remaining value.
    pub(crate) fn first_left(&self) -> Option<&'a str> {
        self.0.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_and_of_another_type_are_refused_by_name_value_and_range() {
        let share = Setting::number("share", "P", 0.0, 1.0, "");
        let factor = Setting::above("factor", "F", 0.0, "");
        let count = Setting::count("count", 1, 8, "");
        let steps = Setting::count("steps", 1, u32::MAX, "");
        let name = Setting::choice("name", &["a", "b"], "");
        let flag = Setting::flag("flag", "");
        let cases = [
            (&share, Value::Number(2.0), "share must be in [0, 1], got 2.0", false),
            (&share, Value::Number(f64::NAN), "share must be in [0, 1], got NaN", false),
            (&share, Value::Integer(-1), "share must be in [0, 1], got -1", false),
            (&share, Value::Text("x"), "share must be a number, got \"x\"", true),
            (&factor, Value::Integer(0), "factor must be above 0, got 0", false),
            (&factor, Value::Number(1e39), "factor must be above 0, got inf", false),
            (&count, Value::Integer(9), "count must be in 1..=8, got 9", false),
            (&count, Value::Number(1.5), "count must be a whole number of 32 bits, got 1.5", true),
            (&count, Value::Integer(1 << 32), "count must be a whole number of 32 bits, got 4294967296", true),
            (&steps, Value::Integer(0), "steps must be at least 1, got 0", false),
            (&name, Value::Text("c"), "name must be one of a, b, got \"c\"", false),
            (&name, Value::Flag(true), "name must be a name, got true", true),
            (&flag, Value::Integer(1), "flag must be true or false, got 1", true),
        ];
        for (setting, value, message, is_malformed) in cases {
            let error = setting.check(value).expect_err(message);
            assert_eq!((error.to_string().as_str(), error.is_malformed), (message, is_malformed));
        }
        let good = [
            (&share, Value::Integer(1)),
            (&share, Value::Number(0.0)),
            (&factor, Value::Number(1e-45)),
            (&count, Value::Integer(8)),
            (&steps, Value::Integer(i64::from(u32::MAX))),
            (&name, Value::Text("b")),
            (&flag, Value::Flag(false)),
        ];
        for (setting, value) in good {
            assert_eq!(setting.check(value), Ok(()), "{setting:?}");
        }
    }

    #[test]
    fn the_help_has_the_range() {
        assert_eq!(Setting::number("x", "P", 0.0, 1.0, "A share").full_help(), "A share; 0 to 1");
        assert_eq!(Setting::above("x", "P", 0.0, "A factor").full_help(), "A factor; above 0");
        assert_eq!(Setting::number("x", "P", 0.0, f32::MAX, "A bound").full_help(), "A bound; 0 or more");
        assert_eq!(Setting::count("x", 1, 8, "Tokens").full_help(), "Tokens; 1 to 8");
        assert_eq!(Setting::choice("x", &["a", "b", "c"], "A rule").full_help(), "A rule: a, b or c");
        assert_eq!(Setting::choice("x", &["a"], "The one rule").full_help(), "The one rule");
    }
}
