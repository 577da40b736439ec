//! `<tool_call>` and `</tool_call>` around each object: NousResearch's Hermes 2 Pro and the chat templates of Qwen 2.5 and Qwen 3, which
//! SDAR, Dream and Fast-dLLM inherit.

use super::form::{Form, Notation};

pub(super) const MARK: &str = "<tool_call>";

pub(super) const FORM: Form = Form {
    notation: Notation::Json,
    opening: MARK,
    opening_may_miss: false,
    writes_opening: true,
    is_list: false,
    closing: "</tool_call>",
    padding: "\n",
    arguments: "arguments",
    separator: "\n",
    has_short_ids: false,
};
