//! How the parts of a request's answers are found.

use diffulex_engine::TextModel;
use diffulex_protocol::ServingReply;

use super::part::Parts;
use super::reader::ContentReader;
use crate::http::answer::parts::{CompletionTokensDetails, Usage};
use crate::http::reasoning::reader::ReasoningForm;
use crate::http::tools::calls::CallForm;

/// How the parts of a request's answers are found.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct ContentForm {
    /// How thoughts are; `None`: they are text.
    pub(in crate::http) reasoning: Option<ReasoningForm>,
    /// How calls of tools are; `None` where no tools are offered.
    pub(in crate::http) calls: Option<CallForm>,
}

impl ContentForm {
    /// An answer is text and nothing else.
    pub(in crate::http) fn is_text_alone(&self) -> bool {
        self.reasoning.is_none() && self.calls.is_none()
    }

    /// A reader of one answer, whose calls have ids that begin with `prefix`.
    pub(in crate::http) fn reader(&self, prefix: &'static str) -> ContentReader {
        let calls = self.calls.as_ref().map(|form| form.reader(prefix));
        ContentReader::new(self.reasoning.map(ReasoningForm::reader), calls)
    }

    /// The parts of a whole answer.
    pub(in crate::http) fn parts(&self, answer: &str, prefix: &'static str) -> Parts {
        let mut reader = self.reader(prefix);
        let mut parts = Parts::default();
        for piece in reader.push(answer).into_iter().chain(reader.finish()) {
            parts.add(piece);
        }
        parts
    }

    /// The usage of one reply, with the tokens of its thoughts where those are told apart.
    pub(in crate::http) fn usage(&self, text: &TextModel, reply: &ServingReply) -> Usage {
        Usage { completion_tokens_details: self.completion_details(text, reply), ..Usage::of(reply) }
    }

    /// What the tokens of one reply are; `None` where thoughts are not told apart.
    pub(in crate::http) fn completion_details(
        &self,
        text: &TextModel,
        reply: &ServingReply,
    ) -> Option<CompletionTokensDetails> {
        let n_thought = |form: ReasoningForm| form.n_tokens(&reply.token_ids, |ids| text.decode(ids));
        // Pinned tokens are the client's own.
        let n_written = reply.written_tokens();
        self.reasoning.map(|form| CompletionTokensDetails { reasoning_tokens: n_thought(form).min(n_written) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::content::part::Part;
    use crate::http::tools::forms::ToolCallParser;

    #[test]
    fn calls_are_looked_for_behind_the_thoughts() {
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        let form = ContentForm {
            reasoning: Some(ReasoningForm::think(false)),
            calls: Some(CallForm::of_f(ToolCallParser::Hermes, false)),
        };
        let parts = form.parts(&format!("<think>Shall I {call}?</think>\n\nLook: {call}"), "call_");
        let [Part::Thought(thought), Part::Text(text), Part::Call(found)] = &parts.0[..] else { panic!("{parts:?}") };
        assert_eq!((thought.as_str(), text.as_str()), (format!("Shall I {call}?").as_str(), "Look:"));
        assert_eq!((found.name.as_str(), found.is_whole), ("f", true));
        assert_eq!(parts.thoughts().as_deref(), Some(thought.as_str()));
        // An answer that ends within its thoughts has nothing else.
        let parts = ContentForm { reasoning: Some(ReasoningForm::think(true)), ..form.clone() }.parts(call, "call_");
        assert_eq!(parts.0, [Part::Thought(call.to_owned())]);
        let together = ContentForm { reasoning: None, ..form };
        assert!(together.parts(&format!("<think>{call}</think>"), "call_").has_calls());
    }
}
