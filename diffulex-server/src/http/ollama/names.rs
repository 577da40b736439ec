//! Names of models as Ollama's clients write them: with a tag.
//!
//! Never here: which models there are.

use crate::http::app::App;

/// The tag that a name without one stands for.
const DEFAULT_TAG: &str = ":latest";

/// The name of a model as the other interfaces know it.
pub(super) fn untagged<'a>(app: &App, name: &'a str) -> &'a str {
    let is_known = app.options.is_served(name) || app.frontend.has_adapter(name);
    if is_known { name } else { name.strip_suffix(DEFAULT_TAG).unwrap_or(name) }
}

/// The name of a model as Ollama's clients know it.
pub(super) fn tagged(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { format!("{name}{DEFAULT_TAG}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_tag() {
        assert_eq!((tagged("m"), tagged("m:7b")), ("m:latest".to_owned(), "m:7b".to_owned()));
    }
}
