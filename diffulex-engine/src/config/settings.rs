//! A strategy's settings between the protocol, which carries them, and the strategy, which knows what they mean.

use diffulex_protocol::{DecodingSettings, OfferedRule, SettingValue};
use diffulex_strategies::accept::ACCEPT_RULE;
use diffulex_strategies::{AcceptRule, SettingError, Strategy, Value, check_settings};

use crate::error::RequestError;

/// As strategies read them.
pub(crate) fn values_of(settings: &DecodingSettings) -> impl Iterator<Item = (&str, Value<'_>)> {
    settings.iter().map(|(name, value)| {
        let value = match value {
            SettingValue::Flag(flag) => Value::Flag(*flag),
            SettingValue::Integer(integer) => Value::Integer(*integer),
            SettingValue::Number(number) => Value::Number(*number),
            SettingValue::Text(text) => Value::Text(text),
        };
        (name, value)
    })
}

/// Refuses unknown names and values out of range, as far as they can be told without a model.
pub fn check(settings: &DecodingSettings) -> Result<(), SettingError> {
    check_settings(values_of(settings))
}

/// `base` with what a request sets.
pub(crate) fn for_request(base: &Strategy, settings: &DecodingSettings) -> Result<Strategy, RequestError> {
    if settings.is_empty() {
        return Ok(base.clone());
    }
    base.with(values_of(settings)).map_err(|error| {
        let param = format!("decoding.{}", error.name);
        let message = format!("{param} {}", error.what);
        RequestError::invalid(param, message)
    })
}

/// The accept rules that requests to `strategy` may name: those it does not refuse.
pub(crate) fn offered_rules(strategy: &Strategy) -> Vec<OfferedRule> {
    let with = |name: &'static str| strategy.with([(ACCEPT_RULE.name, Value::Text(name))]).ok();
    let rules =
        AcceptRule::NAMES.iter().filter_map(|name| with(name)).filter_map(|strategy| strategy.declared().accept);
    rules
        .map(|rule| OfferedRule {
            name: rule.name().to_owned(),
            settings: rule.settings().iter().map(|setting| setting.name.to_owned()).collect(),
        })
        .collect()
}
