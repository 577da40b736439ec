//! Written forms of calls: what a model writes to call a tool.
//!
//! In most forms a call is a JSON object with the tool's name and its arguments, and forms differ in what is around it; two have a notation of
//! their own. Each file has one form and its source. Never here: how text is read ([`super::reader`]).

mod form;
mod gemma4;
mod hermes;
mod llama3_json;
mod mistral;
mod notations;
mod qwen3_coder;

use serde::{Deserialize, Serialize};

pub(in crate::http) use form::Form;
pub(super) use form::{ARGUMENTS, Notation};
pub(super) use notations::gemma::QUOTE;

/// The form in which the model writes calls of tools, by vLLM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum ToolCallParser {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, SDAR, Dream, Ling.
    Hermes,
    /// `{"name": ..., "parameters": {...}}`: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`: Mistral.
    Mistral,
    /// `<tool_call><function=...><parameter=...>...</parameter></function></tool_call>`: Qwen3-Coder.
    #[serde(alias = "qwen3_xml")]
    #[value(alias = "qwen3_xml")]
    Qwen3Coder,
    /// `<|tool_call>call:...{...}<tool_call|>`: Gemma 4, DiffusionGemma.
    Gemma4,
}

impl Form {
    /// The form that `chosen` names, or else that of the calls in a chat `template`.
    pub(in crate::http) fn of(chosen: Option<ToolCallParser>, template: &str) -> &'static Self {
        let named = || {
            // Qwen3-Coder's templates have the mark of hermes, too.
            let marks = [
                (qwen3_coder::MARK, ToolCallParser::Qwen3Coder),
                (gemma4::MARK, ToolCallParser::Gemma4),
                (hermes::MARK, ToolCallParser::Hermes),
                (mistral::MARK, ToolCallParser::Mistral),
                (llama3_json::MARK, ToolCallParser::Llama3Json),
            ];
            marks.into_iter().find(|(mark, _)| template.contains(mark)).map(|(_, form)| form)
        };
        match chosen.or_else(named).unwrap_or(ToolCallParser::Hermes) {
            ToolCallParser::Hermes => &hermes::FORM,
            ToolCallParser::Llama3Json => &llama3_json::FORM,
            ToolCallParser::Mistral => &mistral::FORM,
            ToolCallParser::Qwen3Coder => &qwen3_coder::FORM,
            ToolCallParser::Gemma4 => &gemma4::FORM,
        }
    }

    /// The form of calls that a constraint keeps to their schemas: this one where its calls are JSON.
    pub(super) fn enforced(&'static self) -> &'static Self {
        if self.notation == Notation::Json { self } else { &hermes::FORM }
    }
}

#[cfg(test)]
mod tests {
    use diffulex_engine::ToolCall;
    use diffulex_protocol::Tag;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_names_its_form_unless_one_is_chosen() {
        let cases = [
            ("{{ '<tool_call>' }}", &hermes::FORM),
            ("{{ '[TOOL_CALLS]' }}", &mistral::FORM),
            ("{{ '<|python_tag|>' }}", &llama3_json::FORM),
            ("{{ '<tool_call>\n<function=' + name }}", &qwen3_coder::FORM),
            ("{{ '<|tool_call>call:' + name }}", &gemma4::FORM),
            // As in the templates of Ling 2 and LLaDA2.
            ("<role>ASSISTANT</role>{{ '<tool_call>\n{\"name\": \"' }}", &hermes::FORM),
            ("{{ messages }}", &hermes::FORM),
        ];
        for (template, form) in cases {
            assert_eq!(Form::of(None, template), form, "{template}");
            assert_eq!(Form::of(Some(ToolCallParser::Mistral), template), &mistral::FORM);
        }
    }

    #[test]
    fn a_tag_and_a_written_call_are_of_the_same_text() {
        let arguments = json!({"b": 1, "a": "x"}).as_object().unwrap().clone();
        let call = ToolCall { id: "1".to_owned(), name: "look_up".to_owned(), arguments };
        for form in [&hermes::FORM, &llama3_json::FORM, &mistral::FORM] {
            let Tag { begin, schema, end } = form.tag("look_up", "{}".to_owned());
            assert_eq!(schema, "{}");
            let without_space = |text: &str| text.replace(' ', "");
            let tagged = without_space(&format!("{begin}{{\"b\":1,\"a\":\"x\"}}{end}"));
            assert_eq!(without_space(&form.written(std::slice::from_ref(&call))), tagged);
        }
        assert_eq!(gemma4::FORM.enforced(), &hermes::FORM);
        assert_eq!(mistral::FORM.enforced(), &mistral::FORM);
        let tag = hermes::FORM.tag("f", String::new());
        assert_eq!(tag.begin, "<tool_call>\n{\"name\": \"f\", \"arguments\": ");
        assert_eq!(tag.end, "}\n</tool_call>");
        assert_eq!(mistral::FORM.tag("f", String::new()).end, "}]");
    }
}
