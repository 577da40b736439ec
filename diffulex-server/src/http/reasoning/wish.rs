//! What a request says about thinking, in the fields of any interface.
//!
//! In: values of fields. Out: one [`Wish`], or an error that names the field. Never here: what a model can do ([`super::Reasoning`]).

use serde_json::{Map, Value};

use crate::http::access::refusals::start_of;
use crate::http::answer::error::ApiError;

/// Efforts at which a model is not to think.
const NO_EFFORT: [&str; 2] = ["none", "minimal"];

/// OpenAI's default effort, which asks for nothing.
const DEFAULT_EFFORT: &str = "medium";

const KWARGS: &str = "chat_template_kwargs";

/// What a request says about thinking.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) struct Wish {
    /// Whether the model thinks, and the client's field that says so; `None`: as its template has it.
    pub(super) thinks: Option<(bool, String)>,
    /// How hard, and the field.
    pub(super) effort: Option<(String, String)>,
    /// Thoughts are told from the text.
    pub(super) is_apart: bool,
    /// They are a part of the answer.
    pub(super) is_shown: bool,
}

impl Default for Wish {
    fn default() -> Self {
        Self { thinks: None, effort: None, is_apart: true, is_shown: true }
    }
}

/// True for an effort that says no more than whether to think.
pub(super) fn is_known_effort(effort: &str) -> bool {
    effort == DEFAULT_EFFORT || NO_EFFORT.contains(&effort)
}

impl Wish {
    /// Thinking is on or off, by `field`; an error where another field says otherwise.
    pub(in crate::http) fn set_thinks(&mut self, field: &str, thinks: Option<bool>) -> Result<(), ApiError> {
        let Some(thinks) = thinks else { return Ok(()) };
        match &self.thinks {
            Some((other, first)) if *other != thinks => {
                let on_or_off = |thinks: bool| if thinks { "on" } else { "off" };
                let (this, that) = (on_or_off(thinks), on_or_off(*other));
                let message = format!("{field} turns thinking {this}, and {first} turns it {that}; send one of them");
                Err(ApiError::invalid(field, message))
            }
            Some(_) => Ok(()),
            None => {
                self.thinks = Some((thinks, field.to_owned()));
                Ok(())
            }
        }
    }

    /// OpenAI's effort, by `field`: a word of OpenAI's, or one that the template knows.
    pub(in crate::http) fn set_effort(&mut self, field: &str, effort: Option<String>) -> Result<(), ApiError> {
        let Some(effort) = effort.filter(|effort| !effort.is_empty()) else { return Ok(()) };
        if NO_EFFORT.contains(&effort.as_str()) {
            self.set_thinks(field, Some(false))?;
        }
        self.effort = Some((effort, field.to_owned()));
        Ok(())
    }

    /// Ollama's `think`: a flag, or a level, at which the model thinks.
    pub(in crate::http) fn set_think(&mut self, think: Option<&Value>) -> Result<(), ApiError> {
        const FIELD: &str = "think";
        match think {
            None | Some(Value::Null) => Ok(()),
            Some(Value::Bool(thinks)) => self.set_thinks(FIELD, Some(*thinks)),
            Some(Value::String(level)) if ["low", "medium", "high", "max"].contains(&level.as_str()) => {
                self.set_thinks(FIELD, Some(true))
            }
            Some(other) => {
                let message =
                    format!("{FIELD} must be true, false, \"low\", \"medium\", \"high\" or \"max\", got {other}");
                Err(ApiError::invalid(FIELD, message))
            }
        }
    }

    /// Variables of the chat template: those of thinking.
    pub(in crate::http) fn set_kwargs(&mut self, kwargs: Option<Map<String, Value>>) -> Result<(), ApiError> {
        for (name, value) in kwargs.unwrap_or_default().into_iter().filter(|(_, value)| !value.is_null()) {
            let field = format!("{KWARGS}.{}", start_of(&name));
            match (name.as_str(), value) {
                ("enable_thinking" | "thinking", Value::Bool(thinks)) => self.set_thinks(&field, Some(thinks))?,
                ("reasoning_effort", Value::String(effort)) => self.set_effort(&field, Some(effort))?,
                ("enable_thinking" | "thinking", other) => {
                    return Err(ApiError::invalid(&field, format!("{field} must be true or false, got {other}")));
                }
                ("reasoning_effort", other) => {
                    return Err(ApiError::invalid(&field, format!("{field} must be a string, got {other}")));
                }
                _ => {
                    let known = "enable_thinking, thinking and reasoning_effort are";
                    let message = format!("{field} is not supported by this server; {known}");
                    return Err(ApiError::invalid(&field, message));
                }
            }
        }
        Ok(())
    }

    /// Refuses a wish about a prompt, which no chat template turns into the model's own form.
    pub(in crate::http) fn check_prompt(&self) -> Result<(), ApiError> {
        let thinks = self.thinks.as_ref().filter(|(thinks, _)| *thinks).map(|(_, field)| field);
        let effort = self.effort.as_ref().filter(|(effort, _)| !is_known_effort(effort)).map(|(_, field)| field);
        match thinks.or(effort) {
            Some(field) => Err(ApiError::invalid(field, format!("{field} needs messages; a prompt is taken as it is"))),
            None => Ok(()),
        }
    }

    /// Thoughts stay in the text.
    pub(in crate::http) fn keep_together(&mut self) {
        self.is_apart = false;
    }

    /// Thoughts are left out of the answer.
    pub(in crate::http) fn hide(&mut self) {
        self.is_shown = false;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_field_is_read_and_two_that_disagree_are_refused() {
        let mut wish = Wish::default();
        wish.set_think(Some(&json!("high"))).unwrap();
        assert_eq!(wish.thinks, Some((true, "think".to_owned())));
        wish.set_thinks("enable_thinking", Some(true)).unwrap();
        let error = wish.set_effort("reasoning_effort", Some("none".to_owned())).unwrap_err();
        assert_eq!(error.message(), "reasoning_effort turns thinking off, and think turns it on; send one of them");
        let kwargs = |value: Value| Wish::default().set_kwargs(value.as_object().cloned());
        assert!(kwargs(json!({"enable_thinking": false, "thinking": null, "reasoning_effort": "minimal"})).is_ok());
        for (value, what) in [
            (
                json!({"enable_thinking": "no"}),
                "chat_template_kwargs.enable_thinking must be true or false, got \"no\"",
            ),
            (json!({"reasoning_effort": 1}), "chat_template_kwargs.reasoning_effort must be a string, got 1"),
            (
                json!({"messages": []}),
                "chat_template_kwargs.messages is not supported by this server; \
                                       enable_thinking, thinking and reasoning_effort are",
            ),
        ] {
            assert_eq!(kwargs(value).unwrap_err().message(), what);
        }
        for think in [json!("a lot"), json!(1), json!({})] {
            assert!(Wish::default().set_think(Some(&think)).is_err(), "{think}");
        }
    }
}
