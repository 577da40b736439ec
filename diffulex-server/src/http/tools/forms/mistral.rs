//! A list after `[TOOL_CALLS]`: Mistral's tokenizers of version 3 (mistral-common, `InstructTokenizerV3`). Its templates take ids of nine
//! letters and digits only. The mark is a special token in Mistral's own vocabularies, and then no part of an answer's text.

use super::form::{Form, Notation};

pub(super) const MARK: &str = "[TOOL_CALLS]";

pub(super) const FORM: Form = Form {
    notation: Notation::Json,
    opening: MARK,
    opening_may_miss: true,
    writes_opening: true,
    is_list: true,
    closing: "",
    padding: "",
    arguments: "arguments",
    separator: "",
    has_short_ids: true,
};
