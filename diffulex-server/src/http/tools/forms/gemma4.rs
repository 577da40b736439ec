//! `<|tool_call>` and `<tool_call|>` around `call:NAME{...}`: the chat templates of Gemma 4 and DiffusionGemma.

use super::form::{Form, Notation};

pub(super) const MARK: &str = "<|tool_call>";

pub(super) const FORM: Form = Form {
    notation: Notation::Gemma,
    opening: MARK,
    opening_may_miss: false,
    writes_opening: true,
    is_list: false,
    closing: "<tool_call|>",
    padding: "",
    arguments: "",
    separator: "",
    has_short_ids: false,
};
