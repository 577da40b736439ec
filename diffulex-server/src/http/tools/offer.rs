//! What a request offers: its tools and the choice among them, checked against each other.
//!
//! Out: what the chat template gets, the constraint of the answer, and how calls are found in it.

use diffulex_protocol::{Constraint, Tags};
use serde_json::Value;

use super::calls::CallForm;
use super::choice::ToolChoice;
use super::definitions::{self, Tool};
use super::fields::ToolField;
use super::forms::Form;
use crate::http::answer::error::ApiError;
use crate::http::answer::event_form::EventForm;
use crate::http::app::AppState;
use crate::http::request::constraint::GivenConstraint;
use crate::http::request::field_lists::{checked_choice, foreign};

/// Tools of a request, as an interface has read them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::http) struct GivenTools {
    pub(in crate::http) tools: Vec<Tool>,
    pub(in crate::http) choice: ToolChoice,
    /// Several calls in one answer; `None` is yes.
    pub(in crate::http) are_parallel: Option<bool>,
}

/// Tools that the model sees.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) struct Offer {
    tools: Vec<Tool>,
    choice: ToolChoice,
    is_single: bool,
    pub(super) form: &'static Form,
}

/// Refuses tools on a route without a conversation, unless none is to be called.
pub(in crate::http) fn refuse(tools: &[ToolField], choice: Option<&Value>) -> Result<(), ApiError> {
    let is_without_calls = checked_choice(choice)?;
    if tools.is_empty() || is_without_calls { Ok(()) } else { Err(foreign("tools")) }
}

impl GivenTools {
    /// Those of a body of chat.
    pub(in crate::http) fn of_chat(
        tools: Vec<ToolField>,
        choice: Option<&Value>,
        are_parallel: Option<bool>,
    ) -> Result<Self, ApiError> {
        let choice = ToolChoice::of_openai(choice)?;
        // What is not seen is not judged.
        let tools = if choice == ToolChoice::Never { Vec::new() } else { tools };
        let tools = tools.into_iter().enumerate().map(|(index, tool)| tool.into_tool(index));
        Ok(Self { tools: tools.collect::<Result<_, _>>()?, choice, are_parallel })
    }

    /// These, or else `other`.
    pub(in crate::http) fn or(self, other: Self) -> Self {
        if self == Self::default() { other } else { self }
    }

    /// The offer; `None` if the model sees no tool.
    pub(in crate::http) fn into_offer(self, app: &AppState) -> Result<Option<Offer>, ApiError> {
        let Self { tools, choice, are_parallel } = self;
        definitions::check(&tools)?;
        match &choice {
            ToolChoice::Never => return Ok(None),
            ToolChoice::Auto => {}
            ToolChoice::Required if tools.is_empty() => {
                let message = "tool_choice asks for a call of a tool, and tools has none";
                return Err(ApiError::invalid("tool_choice", message));
            }
            ToolChoice::Required => {}
            ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
                let message = format!("tool_choice names {name:?}, which is not in tools");
                return Err(ApiError::invalid("tool_choice", message));
            }
            ToolChoice::Named(_) => {}
        }
        if tools.is_empty() {
            return Ok(None);
        }
        let form = Form::of(app.options.tool_call_parser, app.frontend.text().chat_template());
        let form = settled(form, &tools, &choice)?;
        let is_single = are_parallel == Some(false) || matches!(choice, ToolChoice::Named(_));
        Ok(Some(Offer { tools, choice, is_single, form }))
    }
}

/// The form of the calls of an answer. Calls that must fit their schemas are written as JSON, whatever form the model writes by itself; where
/// the model may also write freely, it would not know which, so strict tools are refused.
fn settled(form: &'static Form, tools: &[Tool], choice: &ToolChoice) -> Result<&'static Form, ApiError> {
    if *choice != ToolChoice::Auto {
        return Ok(form.enforced());
    }
    match tools.iter().position(|tool| tool.is_strict).filter(|_| form.enforced() != form) {
        None => Ok(form),
        Some(index) => {
            let place = format!("tools[{index}]");
            let message = format!(
                "{place}: strict: calls in the form of --tool-call-parser gemma4 and qwen3_coder are not held to a schema while the model may choose; \
                 use tool_choice \"required\" or name the function"
            );
            Err(ApiError::invalid(&place, message))
        }
    }
}

impl Offer {
    /// The tools as chat templates expect them.
    pub(super) fn for_template(&self) -> Vec<Value> {
        self.tools.iter().map(Tool::for_template).collect()
    }

    /// How calls are found in an answer whose stream has the form `events`.
    pub(in crate::http) fn calls(&self, events: EventForm) -> Result<CallForm, ApiError> {
        if events == EventForm::Diffulex {
            let message = "denoise.form \"diffulex\" has no place for calls of tools; \"chunks\" has one";
            return Err(ApiError::invalid("denoise.form", message));
        }
        Ok(self.call_form())
    }

    /// The constraint of the answer: that of the tools, or the one that is `given` beside them. Both together are refused.
    pub(in crate::http) fn constrain(
        &self,
        given: Option<GivenConstraint>,
    ) -> Result<Option<GivenConstraint>, ApiError> {
        match (self.constraint(), given) {
            (Some(_), Some(_)) => {
                let message = "tools that are strict, or that tool_choice asks to be called, decide the form of the answer; it cannot \
                               have another form at the same time";
                Err(ApiError::invalid("tools", message))
            }
            (Some(constraint), None) => Ok(Some(GivenConstraint { field: "tools", constraint })),
            (None, given) => Ok(given),
        }
    }

    /// The language of the answer, where the request asks for one: calls of tools whose arguments fit their schemas. Where the model
    /// may choose, only strict tools are held to theirs.
    fn constraint(&self) -> Option<Constraint> {
        let tools: Vec<&Tool> = self.kept().collect();
        if tools.is_empty() {
            return None;
        }
        let is_free = self.choice == ToolChoice::Auto;
        Some(Constraint::Tags(Tags {
            tags: tools.into_iter().map(|tool| self.form.tag(&tool.name, tool.schema())).collect(),
            allows_text: is_free,
            least: u32::from(!is_free),
            repeats: !self.is_single,
            separator: self.form.separator.to_owned(),
        }))
    }

    /// How calls are found in the answer.
    fn call_form(&self) -> CallForm {
        let may_be_called = |tool: &&Tool| match &self.choice {
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Auto | ToolChoice::Required | ToolChoice::Never => true,
        };
        let name = |tool: &Tool| tool.name.clone();
        CallForm {
            form: self.form,
            tools: self.tools.iter().filter(may_be_called).cloned().collect(),
            kept: self.kept().map(name).collect(),
            is_single: self.is_single,
        }
    }

    /// Tools whose calls the constraint keeps to their schemas.
    fn kept(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().filter(|tool| match &self.choice {
            ToolChoice::Auto => tool.is_strict,
            ToolChoice::Required => true,
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Never => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tools::forms::ToolCallParser;

    fn offer(choice: ToolChoice, is_single: bool) -> Offer {
        let tool = |name: &str, strict: bool| {
            Tool::checked("t", Some(name.to_owned()), None, ("parameters", None), Some(strict)).unwrap()
        };
        let tools = vec![tool("loose", false), tool("exact", true)];
        Offer { tools, choice, is_single, form: Form::of(Some(ToolCallParser::Hermes), "") }
    }

    fn tags(offer: &Offer) -> Option<(Vec<String>, bool, u32, bool)> {
        let Some(Constraint::Tags(tags)) = offer.constraint() else { return None };
        assert_eq!(tags.separator, "\n");
        let begins = tags.tags.into_iter().map(|tag| tag.begin.split('"').nth(3).unwrap_or_default().to_owned());
        Some((begins.collect(), tags.allows_text, tags.least, tags.repeats))
    }

    #[test]
    fn the_constraint_follows_the_choice() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(tags(&offer(ToolChoice::Auto, false)), Some((names(&["exact"]), true, 0, true)));
        let required = offer(ToolChoice::Required, false);
        assert_eq!(tags(&required), Some((names(&["loose", "exact"]), false, 1, true)));
        let named = offer(ToolChoice::Named("loose".to_owned()), true);
        assert_eq!(tags(&named), Some((names(&["loose"]), false, 1, false)));
        assert_eq!(named.call_form().tools.len(), 1);
        assert_eq!(named.call_form().tools[0].name, "loose");
        let mut loose = offer(ToolChoice::Auto, false);
        loose.tools.pop();
        assert_eq!(loose.constraint(), None);
    }
}
