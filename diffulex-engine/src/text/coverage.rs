//! The maximum number of bytes per token, which proves that a text is too long without tokenising it.
//!
//! The bound exists only if the tokenizer drops no part of a text, which is true for most. For any other the result is `None`,
//! which is always correct. Never here: limits of a model.

use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer};

use super::byte_alphabet::letter_of_byte;

/// Largest factor by which NFC shrinks UTF-8, rounded up: 3.5, for U+1FBE U+0308 U+0301 (7 bytes) to U+0390 (2 bytes). Found by
/// a search over all characters of Unicode 15.
const NFC_SHRINKS_BY: usize = 4;

/// The maximum number of bytes of a text that become one token, if there is one.
pub(super) fn max_bytes_per_token(tokenizer: &Tokenizer) -> Option<usize> {
    // An added token that strips surrounding white space has no maximum.
    let added = tokenizer.get_added_tokens_decoder();
    if added.values().any(|token| token.lstrip || token.rstrip) {
        return None;
    }
    let pre_tokenizer = match tokenizer.get_pre_tokenizer() {
        Some(pre_tokenizer) => serde_json::to_value(pre_tokenizer).ok()?,
        None => Value::Null,
    };
    let normalizer = match tokenizer.get_normalizer() {
        Some(normalizer) => serde_json::to_value(normalizer).ok()?,
        None => Value::Null,
    };
    if !keeps_all(&pre_tokenizer) {
        return None;
    }
    let writes_bytes_as_letters = has_step(&pre_tokenizer, "ByteLevel") || has_step(&normalizer, "ByteLevel");
    // Without all bytes, an unknown piece is dropped or becomes a single unknown token.
    let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
    let has = |token: String| tokenizer.token_to_id(&token).is_some();
    let is_complete = if writes_bytes_as_letters {
        (0..=u8::MAX).all(|byte| has(letter_of_byte(byte).to_string()))
    } else {
        model.byte_fallback && (0..=u8::MAX).all(|byte| has(format!("<0x{byte:02X}>")))
    };
    if !is_complete {
        return None;
    }
    let vocabulary = tokenizer.get_vocab(false);
    let n_bytes = |token: &String| if writes_bytes_as_letters { token.chars().count() } else { token.len() };
    let longest = vocabulary.keys().map(n_bytes).chain(added.values().map(|token| token.content.len())).max()?;
    Some(longest * shrinks_by(&normalizer)?)
}

/// Largest factor by which a normalizer shrinks a text; `None` if it might drop text.
fn shrinks_by(normalizer: &Value) -> Option<usize> {
    match normalizer["type"].as_str() {
        None => normalizer.is_null().then_some(1),
        Some("NFC") => Some(NFC_SHRINKS_BY),
        Some("ByteLevel" | "Prepend") => Some(1),
        Some("Replace") => {
            let pattern = normalizer["pattern"]["String"].as_str()?;
            let content = normalizer["content"].as_str()?;
            (!content.is_empty()).then(|| pattern.len().div_ceil(content.len()).max(1))
        }
        Some("Sequence") => {
            normalizer["normalizers"].as_array()?.iter().map(shrinks_by).try_fold(1, |all, one| Some(all * one?))
        }
        Some(_) => None,
    }
}

/// True for a pre-tokenizer that splits a text and drops nothing.
fn keeps_all(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer["type"].as_str() {
        None => pre_tokenizer.is_null(),
        Some("ByteLevel" | "Digits" | "Metaspace") => true,
        Some("Split" | "Punctuation") => {
            pre_tokenizer["behavior"].as_str().is_some_and(|behavior| behavior != "Removed")
        }
        Some("Sequence") => pre_tokenizer["pretokenizers"].as_array().is_some_and(|steps| steps.iter().all(keeps_all)),
        Some(_) => false,
    }
}

fn has_step(component: &Value, kind: &str) -> bool {
    let steps = component["pretokenizers"].as_array().or_else(|| component["normalizers"].as_array());
    component["type"] == kind || steps.is_some_and(|steps| steps.iter().any(|step| has_step(step, kind)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// GPT-2's alphabet and one merge, modified by `change`.
    fn tokenizer(change: impl FnOnce(&mut Value)) -> Tokenizer {
        let letters = (0..=u8::MAX).map(|byte| letter_of_byte(byte).to_string());
        let mut vocabulary: serde_json::Map<String, Value> = letters.zip((0_u32..).map(Value::from)).collect();
        vocabulary.insert("ab".to_owned(), json!(256));
        let mut file = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "decoder": null, "added_tokens": [],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]]},
        });
        change(&mut file);
        Tokenizer::from_bytes(file.to_string()).expect("a tokenizer")
    }

    fn added(content: &str, lstrip: bool) -> Value {
        json!([{"id": 300, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": false,
                "normalized": false, "special": true}])
    }

    #[test]
    fn the_longest_token_is_the_bound_where_nothing_is_lost() {
        assert_eq!(max_bytes_per_token(&tokenizer(|_| {})), Some(2));
        let nfc = tokenizer(|file| file["normalizer"] = json!({"type": "NFC"}));
        assert_eq!(max_bytes_per_token(&nfc), Some(8));
        let long = tokenizer(|file| file["added_tokens"] = added("<|end|>", false));
        assert_eq!(max_bytes_per_token(&long), Some(7));
    }

    #[test]
    fn there_is_no_bound_where_text_may_be_lost() {
        let changes: [fn(&mut Value); 6] = [
            |file| file["added_tokens"] = added("<|end|>", true),
            |file| file["normalizer"] = json!({"type": "Strip", "strip_left": true, "strip_right": true}),
            |file| file["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}),
            |file| file["pre_tokenizer"] = json!({"type": "Whitespace"}),
            |file| file["pre_tokenizer"] = Value::Null,
            |file| {
                file["model"]["vocab"].as_object_mut().expect("a map").remove("!");
            },
        ];
        for (index, change) in changes.into_iter().enumerate() {
            assert_eq!(max_bytes_per_token(&tokenizer(change)), None, "{index}");
        }
    }

    #[test]
    fn no_text_has_fewer_tokens_than_the_bound_says() {
        let tokenizer = tokenizer(|file| file["normalizer"] = json!({"type": "NFC"}));
        let bound = max_bytes_per_token(&tokenizer).expect("a bound");
        for text in ["ab".repeat(50), "\u{1fbe}\u{308}\u{301}".repeat(50), "\u{212a}".repeat(50), "ab \n\t".repeat(50)]
        {
            let n_tokens = tokenizer.encode_fast(text.as_str(), false).expect("ids").get_ids().len();
            assert!(text.len().div_ceil(bound) <= n_tokens, "{} bytes, {n_tokens} tokens", text.len());
        }
    }
}
