//! `<tool_call>` and `</tool_call>` around `<function=NAME>...</function>`: the chat template of Qwen3-Coder.

use super::form::{Form, Notation};

pub(super) const MARK: &str = "<function=";

pub(super) const FORM: Form = Form {
    notation: Notation::Parameters,
    opening: "<tool_call>",
    opening_may_miss: false,
    writes_opening: true,
    is_list: false,
    closing: "</tool_call>",
    padding: "\n",
    arguments: "",
    separator: "\n",
    has_short_ids: false,
};
