//! A form of calls: how a call is written, and what is around it.

use diffulex_engine::ToolCall;
use diffulex_protocol::Tag;
use serde_json::{Value, json};

use super::notations::{gemma, parameters};

/// How the name and the arguments of a call are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http::tools) enum Notation {
    /// A JSON object with both.
    Json,
    /// Gemma 4's.
    Gemma,
    /// Qwen3-Coder's.
    Parameters,
}

/// A form of calls.
#[derive(Debug, PartialEq)]
pub(in crate::http) struct Form {
    /// How a call is written between opening and closing.
    pub(in crate::http::tools) notation: Notation,
    /// Text before the object of a call, without white space at its end. Read with any white space after it.
    pub(in crate::http::tools) opening: &'static str,
    /// An object without the opening is a call, too.
    pub(in crate::http::tools) opening_may_miss: bool,
    /// The opening is written.
    pub(super) writes_opening: bool,
    /// The objects of calls are the items of a list, which follows the opening.
    pub(in crate::http::tools) is_list: bool,
    /// Text after the object, read with any white space before it; missing at the end of an answer.
    pub(in crate::http::tools) closing: &'static str,
    /// White space that is written inside of opening and closing.
    pub(super) padding: &'static str,
    /// Key of the arguments, as it is written. Both keys of [`ARGUMENTS`] are read.
    pub(super) arguments: &'static str,
    /// Text that is written between two calls; read with any white space.
    pub(in crate::http::tools) separator: &'static str,
    /// Templates take ids of nine letters and digits only.
    pub(in crate::http::tools) has_short_ids: bool,
}

/// Keys of the arguments in any form.
pub(in crate::http::tools) const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];

impl Form {
    /// A call of the tool `name` whose arguments fit `schema`, in a form of JSON.
    pub(in crate::http::tools) fn tag(&self, name: &str, schema: String) -> Tag {
        let begin = format!("{}{{\"name\": {}, \"{}\": ", self.before(), Value::from(name), self.arguments);
        Tag { begin, schema, end: format!("}}{}", self.after()) }
    }

    /// `calls` as the model would have written them.
    pub(in crate::http::tools) fn written(&self, calls: &[ToolCall]) -> String {
        let call = |call: &ToolCall| {
            let call = match self.notation {
                Notation::Json => json!({"name": call.name, self.arguments: call.arguments}).to_string(),
                Notation::Gemma => gemma::call(call),
                Notation::Parameters => parameters::call(call),
            };
            format!("{}{call}{}", self.before(), self.after())
        };
        calls.iter().map(call).collect::<Vec<_>>().join(self.separator)
    }

    /// What to write for a call, with words in the place of its parts.
    pub(in crate::http::tools) fn example(&self) -> String {
        let call = match self.notation {
            Notation::Json => format!("{{\"name\": NAME, \"{}\": ARGUMENTS}}", self.arguments),
            Notation::Gemma => gemma::EXAMPLE.to_owned(),
            Notation::Parameters => parameters::EXAMPLE.to_owned(),
        };
        format!("{}{call}{}", self.before(), self.after())
    }

    fn before(&self) -> String {
        let opening = if self.writes_opening { self.opening } else { "" };
        format!("{opening}{}{}", self.padding, if self.is_list { "[" } else { "" })
    }

    fn after(&self) -> String {
        format!("{}{}{}", if self.is_list { "]" } else { "" }, self.padding, self.closing)
    }
}
