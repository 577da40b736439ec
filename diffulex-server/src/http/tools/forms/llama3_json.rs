//! An object alone: Meta's Llama 3.1 and later ("JSON based tool calling" of its model card). `<|python_tag|>` may be before it;
//! several are separated by semicolons.

use super::form::{Form, Notation};

pub(super) const MARK: &str = "<|python_tag|>";

pub(super) const FORM: Form = Form {
    notation: Notation::Json,
    opening: "<|python_tag|>",
    opening_may_miss: true,
    writes_opening: false,
    is_list: false,
    closing: "",
    padding: "",
    arguments: "parameters",
    separator: "; ",
    has_short_ids: false,
};
