//! Calls of tools in an answer: each with an id, as all interfaces have them.
//!
//! Never here: how an interface writes them.

use std::hash::{BuildHasher, RandomState};

use super::definitions::Tool;
use super::forms::Form;
use super::reader::{Event, Reader};
use crate::http::content::part::{Call, Piece};

/// Letters and digits of an id that is made here: as many as in OpenAI's.
const ID_LENGTH: usize = 24;

/// Those of an id for templates that take short ones only (Mistral's).
const SHORT_ID_LENGTH: usize = 9;

/// How calls are found in the answers of a request.
#[derive(Clone, Debug)]
pub(in crate::http) struct CallForm {
    pub(super) form: &'static Form,
    /// Tools that may be called.
    pub(super) tools: Vec<Tool>,
    /// Names of those whose calls the constraint of the answer keeps whole.
    pub(super) kept: Vec<String>,
    /// Calls after the first are left out.
    pub(super) is_single: bool,
}

/// Reads calls as an answer is committed.
#[derive(Debug)]
pub(in crate::http) struct CallReader {
    reader: Reader,
    ids: Ids,
    is_single: bool,
    n_calls: usize,
}

/// Ids of calls.
#[derive(Debug)]
struct Ids {
    prefix: &'static str,
    length: usize,
}

impl CallForm {
    /// That of a tool `f`.
    #[cfg(test)]
    pub(in crate::http) fn of_f(parser: super::forms::ToolCallParser, is_single: bool) -> Self {
        Self { form: Form::of(Some(parser), ""), tools: vec![Tool::of_test("f")], kept: Vec::new(), is_single }
    }

    /// A reader of one answer, whose ids begin with `prefix`.
    pub(in crate::http) fn reader(&self, prefix: &'static str) -> CallReader {
        let ids = if self.form.has_short_ids {
            Ids { prefix: "", length: SHORT_ID_LENGTH }
        } else {
            Ids { prefix, length: ID_LENGTH }
        };
        let reader = Reader::new(self.form, self.tools.clone(), self.kept.clone());
        CallReader { reader, ids, is_single: self.is_single, n_calls: 0 }
    }
}

impl CallReader {
    /// Reads on in committed text.
    pub(in crate::http) fn push(&mut self, text: &str) -> Vec<Piece> {
        let events = self.reader.push(text);
        self.pieces(events)
    }

    /// What was held back: the answer is over.
    pub(in crate::http) fn finish(&mut self) -> Vec<Piece> {
        let events = self.reader.finish();
        self.pieces(events)
    }

    /// There was a call.
    pub(in crate::http) fn has_calls(&self) -> bool {
        self.n_calls > 0
    }

    fn pieces(&mut self, events: Vec<Event>) -> Vec<Piece> {
        events.into_iter().filter_map(|event| self.piece(event)).collect()
    }

    fn piece(&mut self, event: Event) -> Option<Piece> {
        let is_left_out = |n_calls: usize| self.is_single && n_calls > 1;
        match event {
            Event::Text(text) => Some(Piece::Text(text)),
            Event::Start { name } => {
                self.n_calls += 1;
                let begin = || Piece::Begin(Call { id: self.ids.draw(), name, ..Call::default() });
                (!is_left_out(self.n_calls)).then(begin)
            }
            Event::Arguments(text) => (!is_left_out(self.n_calls)).then_some(Piece::Arguments(text)),
            Event::End => (!is_left_out(self.n_calls)).then_some(Piece::End),
        }
    }
}

impl Ids {
    /// An id that no other call has, as the process draws it.
    fn draw(&self) -> String {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let n_digits = DIGITS.len() as u64;
        let mut id = self.prefix.to_owned();
        let mut bits = 0;
        for nth in 0..self.length {
            // Twelve digits to a word.
            if nth.is_multiple_of(12) {
                bits = RandomState::new().hash_one(nth);
            }
            id.push(char::from(DIGITS[(bits % n_digits) as usize]));
            bits /= n_digits;
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::content::form::ContentForm;
    use crate::http::content::part::Part;
    use crate::http::tools::forms::ToolCallParser;

    fn parts(parser: ToolCallParser, is_single: bool, answer: &str) -> Vec<Part> {
        let calls = Some(CallForm::of_f(parser, is_single));
        ContentForm { calls, ..ContentForm::default() }.parts(answer, "call_").0
    }

    #[test]
    fn every_call_has_an_id_of_its_own() {
        let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
        let ids: BTreeSet<String> = (0..50)
            .flat_map(|_| parts(ToolCallParser::Hermes, false, &call.repeat(20)))
            .map(|part| match part {
                Part::Call(call) => call.id,
                part => panic!("{part:?}"),
            })
            .collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 29 && id.starts_with("call_")));
        let Part::Call(call) = &parts(ToolCallParser::Mistral, false, "[{\"name\": \"f\"}]")[0] else { panic!() };
        assert!(call.id.len() == 9 && call.id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{}", call.id);
    }

    #[test]
    fn a_request_for_one_call_at_a_time_gets_the_first() {
        let text = "a <tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}}</tool_call>\n\
                    <tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 2}}</tool_call> b";
        let only = parts(ToolCallParser::Hermes, true, text);
        let [Part::Text(before), Part::Call(call), Part::Text(after)] = &only[..] else { panic!("{only:?}") };
        assert_eq!((before.as_str(), call.arguments.as_str(), after.as_str()), ("a", "{\"n\": 1}", " b"));
        assert_eq!(parts(ToolCallParser::Hermes, false, text).len(), 4);
    }
}
