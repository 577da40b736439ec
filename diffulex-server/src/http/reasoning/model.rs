//! What the served model's chat template does about thinking.
//!
//! Read once from the template: the variables that turn thinking on and off, and how the prompt ends with each of them. A template may end
//! within a block of thoughts, or behind an empty one. Never here: reading answers.

use diffulex_engine::{ChatMessage, ConversationEnd, TextModel};
use diffulex_protocol::{After, Constraint};
use serde_json::{Map, Value};

use super::parser::{Marks, ReasoningParser};
use super::reader::ReasoningForm;
use super::wish::{Wish, is_known_effort};
use crate::http::answer::error::ApiError;
use crate::http::answer::event_form::EventForm;

/// Variables by which templates turn thinking on and off: Qwen 3's and Gemma 4's, and DeepSeek V3.1's.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// The variable of templates that know efforts.
const EFFORT: &str = "reasoning_effort";

/// What the model's chat template does about thinking.
#[derive(Debug)]
pub(in crate::http) struct Reasoning {
    marks: Option<&'static Marks>,
    /// An answer may begin with thoughts that have no opening.
    opening_may_miss: bool,
    /// Those of [`SWITCHES`] that the template reads.
    switches: Vec<&'static str>,
    reads_effort: bool,
    ends: Ends,
}

/// How prompts end, where the request says nothing, and with thinking off and on.
#[derive(Debug)]
struct Ends {
    plain: PromptEnd,
    off: PromptEnd,
    on: PromptEnd,
}

/// The end of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PromptEnd {
    /// The answer may begin with a block of thoughts.
    Before,
    /// The prompt has opened the block.
    Within,
    /// It has closed it.
    Behind,
}

/// A request's thinking, as it is served.
#[derive(Debug, Default)]
pub(in crate::http) struct Settled {
    /// For the chat template.
    pub(in crate::http) variables: Map<String, Value>,
    /// How thoughts are told from the text; `None`: everything is text.
    pub(in crate::http) form: Option<ReasoningForm>,
    /// What the answer writes before what a constraint is about, and the end of that; `None`: nothing.
    thoughts: Option<(String, &'static str)>,
}

impl Settled {
    /// How thoughts are told in an answer whose stream has the form `events`.
    pub(in crate::http) fn form_in(&self, events: EventForm) -> Result<Option<ReasoningForm>, ApiError> {
        if events == EventForm::Diffulex && self.form.is_some_and(|form| !form.is_shown) {
            let message =
                "include_reasoning: thoughts stay in the text of denoise.form \"diffulex\"; \"chunks\" leaves them out";
            return Err(ApiError::invalid("include_reasoning", message));
        }
        Ok(self.form)
    }

    /// `constraint` of an answer behind the thoughts, where the answer has some.
    pub(in crate::http) fn behind_thoughts(&self, constraint: Constraint) -> Constraint {
        match &self.thoughts {
            None => constraint,
            Some((begin, end)) => {
                let (begin, end) = (begin.clone(), (*end).to_owned());
                Constraint::After(Box::new(After { begin, end, then: constraint }))
            }
        }
    }
}

impl PromptEnd {
    /// That of a conversation of `text`'s template, with `switches` set to `thinks`.
    fn of(text: &TextModel, marks: &Marks, switches: &[&str], thinks: Option<bool>) -> Self {
        let variables = thinks.map(|thinks| variables(switches, thinks)).unwrap_or_default();
        // A template that has no such conversation is asked by its requests, which get its error.
        let Ok(prompt) = text.render_chat_with(&[ChatMessage::new("user", "?")], &variables) else {
            return Self::Before;
        };
        let prompt = prompt.trim_end();
        let opened = format!("{}{}", marks.opening, marks.label);
        if prompt.ends_with(opened.trim_end()) || prompt.ends_with(marks.opening) {
            Self::Within
        } else if prompt.ends_with(marks.closing) {
            Self::Behind
        } else {
            Self::Before
        }
    }
}

fn variables(switches: &[&str], thinks: bool) -> Map<String, Value> {
    switches.iter().map(|name| ((*name).to_owned(), thinks.into())).collect()
}

impl Reasoning {
    /// That of the model of `text`, which writes thoughts in the form that `chosen` names, or in its template's.
    pub(in crate::http) fn of(text: &TextModel, chosen: Option<ReasoningParser>) -> Self {
        let parser = ReasoningParser::of(chosen, text.chat_template());
        let marks = parser.marks();
        let switches: Vec<&str> = SWITCHES.into_iter().filter(|name| text.template_reads(name)).collect();
        let end = |thinks| marks.map_or(PromptEnd::Before, |marks| PromptEnd::of(text, marks, &switches, thinks));
        Self {
            marks,
            opening_may_miss: parser == ReasoningParser::DeepseekR1,
            reads_effort: text.template_reads(EFFORT),
            ends: Ends { plain: end(None), off: end(Some(false)), on: end(Some(true)) },
            switches,
        }
    }

    /// The thinking of a request with `wish`, whose conversation `messages` ends at `end`.
    pub(in crate::http) fn settle(
        &self,
        wish: Wish,
        messages: &[ChatMessage],
        end: ConversationEnd,
    ) -> Result<Settled, ApiError> {
        let thinks = self.checked(&wish)?;
        let mut variables = thinks.map(|thinks| variables(&self.switches, thinks)).unwrap_or_default();
        if let Some((effort, _)) = wish.effort.filter(|_| self.reads_effort) {
            variables.insert(EFFORT.to_owned(), effort.into());
        }
        let Some(marks) = self.marks else { return Ok(Settled { variables, form: None, thoughts: None }) };
        let end = match end {
            ConversationEnd::GenerationPrompt => self.end_with(thinks),
            ConversationEnd::LastMessage => PromptEnd::Before,
            ConversationEnd::Content => end_of_content(marks, messages.last().map_or("", |last| &last.content)),
        };
        let is_open =
            end == PromptEnd::Within || end == PromptEnd::Before && self.opening_may_miss && thinks != Some(false);
        let is_behind = end == PromptEnd::Behind;
        let thoughts = match (is_behind, is_open, thinks) {
            (true, ..) | (false, false, None | Some(false)) => None,
            (false, true, _) => Some((String::new(), marks.closing)),
            (false, false, Some(true)) => Some((format!("{}{}", marks.opening, marks.label), marks.closing)),
        };
        let form = ReasoningForm { marks, is_open, is_shown: wish.is_shown };
        Ok(Settled { variables, form: Some(form).filter(|_| wish.is_apart && !is_behind), thoughts })
    }

    /// Whether the model is to think; an error where it cannot be told so.
    fn checked(&self, wish: &Wish) -> Result<Option<bool>, ApiError> {
        if let Some((effort, field)) = wish.effort.as_ref().filter(|_| !self.reads_effort)
            && !is_known_effort(effort)
        {
            let message = format!(
                "{field}: {effort:?} is not supported by this model, whose chat template knows no efforts; none, minimal and medium are"
            );
            return Err(ApiError::invalid(field, message));
        }
        let Some((thinks, field)) = &wish.thinks else { return Ok(None) };
        let refused = |why: &str| Err(ApiError::invalid(field, format!("{field}: {why}")));
        if *thinks && self.marks.is_none() && self.switches.is_empty() {
            return refused("this model does not think; its chat template has no place for it");
        }
        if !*thinks && self.end_with(Some(false)) == PromptEnd::Within {
            return refused("this model always thinks; its chat template cannot turn it off");
        }
        Ok(Some(*thinks))
    }

    fn end_with(&self, thinks: Option<bool>) -> PromptEnd {
        match thinks {
            None => self.ends.plain,
            Some(false) => self.ends.off,
            Some(true) => self.ends.on,
        }
    }
}

/// The end of a prompt that ends with the `content` of a message, which the answer continues.
fn end_of_content(marks: &Marks, content: &str) -> PromptEnd {
    match content.trim_start().strip_prefix(marks.opening) {
        Some(thoughts) if !thoughts.contains(marks.closing) => PromptEnd::Within,
        None if content.trim().is_empty() => PromptEnd::Before,
        Some(_) | None => PromptEnd::Behind,
    }
}

#[cfg(test)]
mod tests {
    use diffulex_engine::ModelFiles;
    use serde_json::json;

    use super::*;

    const SWITCHED: &str = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}";
    const OPENED: &str = "{{ messages[0].content }}<think>\n";
    const BOTH: &str = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}";
    const CHANNEL: &str =
        "{% if enable_thinking %}<|think|>{% endif %}{{ messages[0].content }}{{ '<|channel>' if false }}";
    const PLAIN: &str = "{{ messages[0].content }}";

    fn reasoning(template: &str, chosen: Option<ReasoningParser>) -> Reasoning {
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/sdar");
        let folder = tempfile::tempdir().unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json", "config.json"] {
            std::fs::copy(golden.join(file), folder.path().join(file)).unwrap();
        }
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        Reasoning::of(&TextModel::load(&ModelFiles::folder(folder.path()).unwrap()).unwrap(), chosen)
    }

    fn wish(thinks: Option<bool>) -> Wish {
        let mut wish = Wish::default();
        wish.set_thinks("f", thinks).unwrap();
        wish
    }

    /// Whether thoughts are told apart, whether the answer begins within them, and what is before a constraint.
    fn settled(template: &str, thinks: Option<bool>) -> Result<(bool, bool, Option<String>), String> {
        let settled = reasoning(template, None).settle(wish(thinks), &[], ConversationEnd::GenerationPrompt);
        let settled = settled.map_err(|error| error.message().to_owned())?;
        let is_open = settled.form.is_some_and(|form| form.is_open);
        Ok((settled.form.is_some(), is_open, settled.thoughts.map(|(begin, _)| begin)))
    }

    #[test]
    fn a_template_says_whether_an_answer_begins_with_thoughts() {
        let begin = |text: &str| Some(text.to_owned());
        assert_eq!(settled(SWITCHED, None), Ok((true, false, None)));
        assert_eq!(settled(SWITCHED, Some(true)), Ok((true, false, begin("<think>"))));
        assert_eq!(settled(SWITCHED, Some(false)), Ok((false, false, None)));
        assert_eq!(settled(OPENED, None), Ok((true, true, begin(""))));
        assert_eq!(settled(OPENED, Some(true)), Ok((true, true, begin(""))));
        assert!(settled(OPENED, Some(false)).unwrap_err().starts_with("f: this model always thinks"));
        assert_eq!(settled(BOTH, None), Ok((true, true, begin(""))));
        assert_eq!(settled(BOTH, Some(false)), Ok((false, false, None)));
        assert_eq!(settled(CHANNEL, None), Ok((true, false, None)));
        assert_eq!(settled(CHANNEL, Some(true)), Ok((true, false, begin("<|channel>thought\n"))));
        assert_eq!(settled(PLAIN, None), Ok((false, false, None)));
        assert_eq!(settled(PLAIN, Some(false)), Ok((false, false, None)));
        assert!(settled(PLAIN, Some(true)).unwrap_err().starts_with("f: this model does not think"));
    }

    #[test]
    fn a_parser_can_be_chosen() {
        let settle = |template, chosen, thinks| {
            let settled =
                reasoning(template, Some(chosen)).settle(wish(thinks), &[], ConversationEnd::GenerationPrompt);
            settled.unwrap().form.map(|form| form.is_open)
        };
        assert_eq!(settle(PLAIN, ReasoningParser::DeepseekR1, None), Some(true));
        assert_eq!(settle(SWITCHED, ReasoningParser::DeepseekR1, Some(false)), None);
        assert_eq!(settle(PLAIN, ReasoningParser::Qwen3, None), Some(false));
        assert_eq!(settle(OPENED, ReasoningParser::None, None), None);
    }

    #[test]
    fn variables_are_those_that_the_template_reads() {
        let both = "{{ messages[0].content }}{{ enable_thinking }}{{ reasoning_effort }}";
        let mut wish = wish(Some(true));
        wish.set_effort("reasoning_effort", Some("high".to_owned())).unwrap();
        let settle = |template| reasoning(template, None).settle(wish.clone(), &[], ConversationEnd::GenerationPrompt);
        let variables = Value::Object(settle(both).unwrap().variables);
        assert_eq!(variables, json!({"enable_thinking": true, "reasoning_effort": "high"}));
        let message = settle(SWITCHED).unwrap_err().message().to_owned();
        assert!(message.starts_with("reasoning_effort: \"high\" is not supported by this model"), "{message}");
    }

    #[test]
    fn a_continued_answer_is_where_its_content_ends() {
        let end = |content: &str| {
            let messages = [ChatMessage::new("assistant", content)];
            let settled = reasoning(BOTH, None).settle(Wish::default(), &messages, ConversationEnd::Content).unwrap();
            settled.form.map(|form| form.is_open)
        };
        assert_eq!(end("<think>\nHm"), Some(true));
        assert_eq!(end("<think>\nHm</think>Yes"), None);
        assert_eq!(end("Yes"), None);
        assert_eq!(end(""), Some(false));
    }
}
